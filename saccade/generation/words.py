"""Words and phrases as pieces: how they may be spelled, and how they are kept out.

A piece never runs from one word into the next (see `tokenizers`), so a phrase begins where a piece begins: with the
space before it, or without one after something that is no letter. Byte by byte it can be cut into pieces in many ways;
a search that may not take one of them will try the others.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.data.tokenizers import EOS, Tokenizer
from saccade.errors import SaccadeError
from saccade.generation.characters import Characters
from saccade.generation.rules import Prefixes, Rule

# Scripts that put no space between words: in them a phrase may follow a letter.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


class Spelling(NamedTuple):
    """A phrase in pieces."""

    ids: tuple[int, ...]
    after_letters: bool = True  # whether it may follow a piece that ends in a letter or a digit


Phrase = tuple[Spelling, ...]  # any of its spellings will do; one at least may stand anywhere


class Speller:
    """What a tokenizer makes of words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._break = len(tokenizer.encode("\n"))

    @cached_property
    def ends_in_letter(self) -> Tensor:
        """(V,): pieces whose last character is a letter or a digit. Part of a character is taken for no letter."""
        last = (piece.decode("utf-8", "surrogateescape")[-1:] for piece in self.tokenizer.piece_bytes)
        return torch.tensor([_is_letter(character) for character in last])

    @cached_property
    def characters(self) -> Characters:
        return Characters(self.tokenizer.piece_bytes)

    def phrase(self, text: str, setting: str) -> Phrase:
        """The spellings of a phrase: with a space before it, and without."""
        text = _stripped(text, setting)
        spaced, bare = (tuple(self.tokenizer.encode("\n" + form)[self._break :]) for form in (" " + text, text))
        return Spelling(spaced), Spelling(bare, after_letters=_is_unspaced(text[0]))

    def prefix(self, text: str) -> list[int]:
        """How a target that begins with `text` begins."""
        return self.tokenizer.encode(text.strip()) if text.strip() else []

    def pieces(self, words: Iterable[str], setting: str) -> Tensor:
        """(V,): what words are spelled with, the end of the sentence always among it."""
        allowed = torch.zeros(self.tokenizer.size, dtype=torch.bool)
        allowed[EOS] = True
        for word in words:
            for spelling in self.phrase(word, setting):
                allowed[list(spelling.ids)] = True
        return allowed

    def banned(self, words: Sequence[str], device: torch.device) -> Rule:
        """A rule that stops words and phrases at their last piece, in whatever pieces they are spelled.

        A word within another is not stopped, unless the other begins with it and its pieces end where the word does. A
        phrase is a row of states, one for each of its bytes; pieces lead from state to state. Which states the rows
        have reached is read off their last pieces, as many as the longest phrase has bytes.
        """
        ids = {piece: id for id, piece in enumerate(self.tokenizer.piece_bytes) if piece}
        anywhere: list[int] = []  # states in which a phrase may begin
        after_no_letter: list[int] = []
        steps: list[tuple[int, int, int]] = []  # (state, piece, state)
        stops: list[tuple[int, int]] = []  # (state, piece) that would complete a phrase
        states = longest = 0
        most = max(map(len, ids), default=0)
        for word in words:
            text = _stripped(word, "search.banned")
            letters = (" " + text).encode()
            bound = _is_letter(text[0]) and not _is_unspaced(text[0])
            anywhere.append(states)  # its space
            (after_no_letter if bound else anywhere).append(states + 1)
            for start in range(len(letters)):
                for end in range(start + 1, min(start + most, len(letters)) + 1):
                    id = ids.get(letters[start:end])
                    if id is not None and end < len(letters):
                        steps.append((states + start, id, states + end))
                    elif id is not None:
                        stops.append((states + start, id))
            states, longest = states + len(letters), max(longest, len(letters))
        begins = torch.tensor(anywhere, device=device)
        begins_bare = torch.tensor(after_no_letter, device=device, dtype=torch.long)
        before, piece, after = torch.tensor(steps, device=device).reshape(-1, 3).long().unbind(1)
        last_before, last_piece = torch.tensor(stops, device=device).unbind(1)
        ends_in_letter = self.ends_in_letter.to(device)

        def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
            tail = prefixes.tokens[:, -longest:]
            R = tail.size(0)
            letter = ends_in_letter[prefixes.tokens[:, -longest - 1 : -longest]].any(1)  # (R,)
            reached = torch.zeros(R, states, dtype=torch.bool, device=device)
            for written in [*tail.unbind(1), None]:
                reached[:, begins] = True
                reached[:, begins_bare] |= ~letter.unsqueeze(1)
                if written is None:
                    break
                taken = reached[:, before] & (written.unsqueeze(1) == piece)  # (R, steps)
                counts = torch.zeros(R, states, dtype=torch.int32, device=device)
                reached = counts.index_add_(1, after, taken.int()) > 0
                letter = ends_in_letter[written]
            stopped = torch.zeros(R, len(stops), dtype=log_probs.dtype, device=device)
            stopped.masked_fill_(reached[:, last_before], -float("inf"))
            return log_probs.scatter_add_(1, last_piece.expand(R, -1), stopped)

        return rule


def _stripped(text: str, setting: str) -> str:
    if not text.strip():
        raise SaccadeError(f"{setting}: {text!r} is no word; leave it out")
    return text.strip()


def _is_letter(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LMN"


def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_UNSPACED)
