"""What a call asks of its translations, made into rules, limits and a search.

Settings (`SearchConfig`) hold for every sentence. An *order* is a sentence's own: how its translation begins, which
phrases it holds, which words it may use.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.config import SearchConfig
from saccade.errors import SaccadeError
from saccade.generation.automata import room_for
from saccade.generation.constraints import ConstrainedBeam
from saccade.generation.rules import (
    DEFAULT_RULES,
    Rule,
    Weighing,
    forbid,
    forced_prefix,
    min_length,
    no_repeat_ngram,
    repetition_penalty,
    shortlist,
)
from saccade.generation.search import Beam, Search
from saccade.generation.words import Phrase, Speller


class Order(NamedTuple):
    """What one sentence is told, in ids."""

    prefix: tuple[int, ...] = ()
    must: tuple[Phrase, ...] = ()
    allowed: Tensor | None = None  # (V,)

    @property
    def room(self) -> int:
        """Tokens that its prefix and its phrases take."""
        return len(self.prefix) + (room_for(self.must) if self.must else 0)  # asked thrice of every sentence


class Job(NamedTuple):
    """A sentence to be translated."""

    source: list[int]
    order: Order
    limit: int  # most tokens, the end counted


Phrases = Sequence[str] | Sequence[Sequence[str]]  # for all sentences, or for each its own


def orders_of(
    speller: Speller,
    sentences: int,
    settings: SearchConfig,
    prefix: str | Sequence[str] | None = None,
    must: Phrases | None = None,
    allowed: Phrases | None = None,
) -> list[Order]:
    """The order of each sentence. `prefix`, `must` and `allowed` are for all of them, or one for each."""
    prefixes = [prefix or ""] * sentences if prefix is None or isinstance(prefix, str) else prefix
    musts, words = _for_each(must, sentences), _for_each(allowed, sentences)
    for name, given in (("prefix", prefixes), ("must", musts), ("allowed", words)):
        if len(given) != sentences:
            raise SaccadeError(
                f"{name}: {len(given)} given for {sentences} sentences; give one for each, or one for all"
            )
    known: dict[str, Phrase] = {}
    everywhere = tuple(speller.phrase(text, "search.must") for text in settings.must)
    orders = []
    for begin, phrases, own in zip(prefixes, musts, words, strict=True):
        for text in phrases or ():
            if text not in known:
                known[text] = speller.phrase(text, "must")
        orders.append(
            Order(
                tuple(speller.prefix(begin)),
                (*everywhere, *(known[text] for text in phrases or ())),
                None if own is None else speller.pieces(own, "allowed"),
            )
        )
    return orders


def limit_of(source: Sequence[int], order: Order, settings: SearchConfig, longest: int | None) -> int:
    """The most tokens a translation may have, its end counted."""
    limit = int(len(source) * settings.max_length_factor) + settings.max_length_extra + 1 + order.room
    limit = max(limit, settings.min_length + 1)
    if settings.max_length:
        limit = min(limit, settings.max_length + 1)
    return limit if longest is None else min(limit, longest)


def check_limit(order: Order, limit: int, line: int) -> None:
    """Refuse what cannot be written within the limit."""
    if order.room >= limit:
        raise SaccadeError(
            f"line {line:,}: its prefix and the phrases it must hold take {order.room} pieces, but its translation may "
            f"have {limit - 1}; leave some out, or raise search.max_length if it is set"
        )


class Book:
    """The rules of a call that hold for every sentence, made once."""

    def __init__(
        self, speller: Speller, settings: SearchConfig, line_breaks: Sequence[int], device: torch.device
    ) -> None:
        self.speller, self.device = speller, device
        self.rules: list[Rule] = [*DEFAULT_RULES, forbid(line_breaks)]
        self.weighings: list[Weighing] = []
        if settings.min_length:
            self.rules.append(min_length(settings.min_length))
        if settings.no_repeat_ngram:
            self.rules.append(no_repeat_ngram(settings.no_repeat_ngram))
        if settings.banned:
            self.rules.append(speller.banned(settings.banned, device))
        if settings.shortlist:
            self.rules.append(shortlist(speller.pieces(_words_in(settings.shortlist), "search.shortlist").to(device)))
        if settings.method in ("sample", "contrastive"):
            self.rules.append(speller.characters.finished(device))
        if settings.repetition_penalty != 1.0:
            self.weighings.append(repetition_penalty(settings.repetition_penalty))

    def for_batch(self, orders: Sequence[Order]) -> list[Rule]:
        """The rules for a batch of sentences with these orders."""
        rules = list(self.rules)
        if any(order.allowed is not None for order in orders):
            every = torch.ones(self.speller.tokenizer.size, dtype=torch.bool)
            own = [every if order.allowed is None else order.allowed for order in orders]
            rules.append(shortlist(torch.stack(own).to(self.device)))
        if any(order.must for order in orders):
            told = torch.tensor([bool(order.must) for order in orders], device=self.device)
            rules.append(self.speller.characters.finished(self.device, told))
        if any(order.prefix for order in orders):
            prefixes = [torch.tensor(order.prefix, dtype=torch.long) for order in orders]
            wanted = pad_sequence(prefixes, batch_first=True, padding_value=-1)
            return [forced_prefix(wanted.to(self.device), rules)]
        return rules

    def search(self, search: Search, beam: Beam, orders: Sequence[Order]) -> Search:
        """`search`, or the one that keeps phrases if there are any."""
        if not any(order.must for order in orders):
            return search
        return ConstrainedBeam(beam, [order.must for order in orders], self.speller.ends_in_letter)


def _for_each(given: Phrases | None, sentences: int) -> Sequence[Sequence[str] | None]:
    if given is None:
        return [None] * sentences
    if isinstance(given, str):
        raise SaccadeError(f"{given!r} is a text where a list of phrases is wanted; write [{given!r}]")
    flat = [part for part in given if isinstance(part, str)]
    return [flat] * sentences if len(flat) == len(given) else given


def _words_in(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SaccadeError(f"search.shortlist={path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SaccadeError(f"search.shortlist={path}: not UTF-8 text; save it as UTF-8") from None
    words = [word for line in lines for word in line.split()]
    if not words:
        raise SaccadeError(f"search.shortlist={path}: has no words; write the allowed ones, one a line")
    return words
