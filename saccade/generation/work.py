"""Sentences at work: those that started together are a *cohort*, cohorts that share a state are a *lane*.

A cohort has a run of the search, and rules, of its own. Where the model's state allows (`SharedState`), a cohort joins
a lane that is at work; what a sentence's answer is does not depend on it.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from saccade.data.tokenizers import BOS
from saccade.errors import SaccadeError
from saccade.generation.rules import Rule, Weighing, apply
from saccade.generation.search import Run, Said, Search
from saccade.generation.search import Step as Choice
from saccade.models.protocol import DecoderOutput, EncoderDecoder, Memory, SharedState, State

PADDING = 64  # tokens of padding that are read rather than a batch cut in two


class Errand(NamedTuple):
    """Sentences that start together, and how they are searched."""

    source: Tensor  # (B, S)
    mask: Tensor  # (B, S)
    limits: Tensor  # (B,): most tokens of each, its end counted
    search: Search  # of these sentences alone
    rules: Sequence[Rule]
    weighings: Sequence[Weighing] = ()
    first: int = 0  # the number that the rules know the first of them by
    lengths: Sequence[int] | None = None  # tokens of each, if they are known


class Cohort:
    """Sentences that started together, with a run of the search, and the rows of theirs."""

    def __init__(self, errand: Errand, run: Run) -> None:
        self.errand, self.run = errand, run
        self.columns = errand.source.size(1)
        self.rows = run.rows.numel() / errand.source.size(0)  # of a sentence
        self.tokens = run.rows

    @property
    def first(self) -> int:
        return self.errand.first

    @property
    def last(self) -> int:
        return self.errand.first + self.errand.source.size(0)

    @property
    def sentences(self) -> float:
        """How many are at work: as many as their share of the rows."""
        return self.tokens.numel() / self.rows

    def choose(self, said: Said) -> Choice:
        """What each row writes next."""
        prefixes = self.run.prefixes()
        if self.first:
            prefixes = prefixes._replace(sentences=prefixes.sentences + self.first)
        log_probs = apply(self.errand.rules, apply(self.errand.weighings, said.log_probs, prefixes), prefixes)
        looked = None if said.looked is None else said.looked[:, : self.columns]
        choice = self.run.advance(Said(log_probs, looked, said.hidden))
        self.tokens = choice.tokens
        return choice

    def without(self, sentences: Sequence[int]) -> Tensor:
        """Some sentences (numbered from 0) leave; returns the rows that are left, as places among those before."""
        leaving = torch.tensor(sentences, device=self.tokens.device)
        rows = (~torch.isin(self.run.prefixes().sentences, leaving)).nonzero().flatten()
        if rows.numel() < self.tokens.numel():
            self.run.keep(rows)
            self.tokens = self.tokens[rows]
        return rows


class Begun(NamedTuple):
    """A cohort after its first step."""

    cohort: Cohort
    state: State
    size: int | None  # rows of a beam whose state is shared by them, and can join others of the same; None: it cannot


def begin(model: EncoderDecoder, errand: Errand) -> Begun:
    """Read the sources and take the first step, which all rows of a sentence have in common."""
    source, mask, limits = errand.source, errand.mask, errand.limits
    memory = _encode(model, errand)
    run = errand.search.start(limits, mask, torch.promote_types(memory.states.dtype, torch.float32))
    cohort = Cohort(errand, run)
    state = model.init_state(memory, capacity=int(limits.max()))
    needs_attention = errand.search.needs_attention
    output = model.decode(source.new_full((source.size(0), 1), BOS), state, needs_attention)
    what = said(model, output, needs_attention)
    rows = run.rows
    choice = cohort.choose(what if rows.numel() == source.size(0) else what.select(rows))
    state = output.state
    if choice.size is not None and isinstance(state, SharedState):
        if rows.numel() != source.size(0) * choice.size:  # several beams for a sentence
            state = state.select(rows[:: choice.size])
        return Begun(cohort, after(state.beams(choice.size), choice, True), choice.size)
    if rows.numel() != source.size(0) or choice.parents is not None:
        state = state.select(rows if choice.parents is None else rows.index_select(0, choice.parents))
    return Begun(cohort, state, None)


def _encode(model: EncoderDecoder, errand: Errand) -> Memory:
    """Read the sources, those of like length together: padding costs more than a few more calls."""
    source, mask = errand.source, errand.mask
    lengths = mask.sum(1).tolist() if errand.lengths is None else errand.lengths
    parts = []
    start = 0
    for end in range(1, len(lengths) + 1):
        widest = max(lengths[start:end])
        padding = widest * (end - start) - sum(lengths[start:end])
        if end < len(lengths) and padding + abs(widest - lengths[end]) * (end - start) <= PADDING:
            continue
        parts.append(model.encode(source[start:end, :widest], mask[start:end, :widest]))
        start = end
    return parts[0].together(parts)


class Lane:
    """Cohorts at work, one behind the other in one state."""

    state: State

    def __init__(self, model: EncoderDecoder, needs_attention: bool) -> None:
        self.model, self.needs_attention = model, needs_attention
        self.cohorts: list[Cohort] = []
        self.over: list[Cohort] = []
        self.size: int | None = None  # of the beams, if their rows share a state, so that others can join

    @property
    def joins(self) -> bool:
        return self.size is not None

    @property
    def sentences(self) -> float:
        return sum(cohort.sentences for cohort in self.cohorts)

    @property
    def rows(self) -> int:
        return sum(cohort.tokens.numel() for cohort in self.cohorts)

    @property
    def columns(self) -> int:
        return max((cohort.columns for cohort in self.cohorts), default=0)

    def take(self, begun: Begun) -> None:
        """A cohort joins the others, if it is not over after one step."""
        self.size = begun.size
        if not begun.cohort.tokens.numel():
            self.over.append(begun.cohort)
            return
        state = begun.state
        if self.cohorts:
            state = cast(SharedState, self.state).join(cast(SharedState, state))
        self.state = state
        self.cohorts.append(begun.cohort)

    def step(self) -> None:
        """All cohorts write one more token."""
        if len(self.cohorts) == 1:
            (cohort,) = self.cohorts
            output = self.model.decode(cohort.tokens.unsqueeze(1), self.state, self.needs_attention)
            choice = cohort.choose(said(self.model, output, self.needs_attention))
        else:
            tokens = torch.cat([cohort.tokens for cohort in self.cohorts])
            output = self.model.decode(tokens.unsqueeze(1), self.state, self.needs_attention)
            choice = self._choose(said(self.model, output, self.needs_attention))
        self._leave()
        if self.cohorts:
            self.state = after(output.state, choice, self.joins)

    def drop(self, leaving: dict[Cohort, list[int]]) -> None:
        """Sentences leave before they are done: their rows are gone from the next step on."""
        rows, start = [], 0
        for cohort in self.cohorts:
            before = cohort.tokens.numel()
            left = cohort.without(leaving[cohort]) if cohort in leaving else torch.arange(before)
            rows.append(left.to(cohort.tokens.device) + start)
            start += before
        kept = torch.cat(rows)
        if kept.numel() == start:
            return
        self._leave()
        if not self.cohorts:
            return
        if self.size is not None:
            self.state = cast(SharedState, self.state).keep(kept[:: self.size] // self.size)
        else:
            self.state = self.state.select(kept)

    def finished(self) -> list[Cohort]:
        """The cohorts that ended since this was last asked."""
        over, self.over = self.over, []
        return over

    def _leave(self) -> None:
        self.over.extend(cohort for cohort in self.cohorts if not cohort.tokens.numel())
        self.cohorts = [cohort for cohort in self.cohorts if cohort.tokens.numel()]

    def _choose(self, what: Said) -> Choice:
        """Each cohort chooses for its own rows; their choices as one."""
        sizes = [cohort.tokens.numel() for cohort in self.cohorts]
        choices = [cohort.choose(own) for cohort, own in zip(self.cohorts, what.split(sizes), strict=True)]
        parents, kept = [], []
        row, device = 0, what.log_probs.device
        for choice, rows in zip(choices, sizes, strict=True):
            size = choice.size or 1
            of_rows = torch.arange(rows, device=device) if choice.parents is None else choice.parents
            of_beams = torch.arange(rows // size, device=device) if choice.kept is None else choice.kept
            parents.append(of_rows + row)
            kept.append(of_beams + row // size)
            row += rows
        anyone_left = any(choice.kept is not None for choice in choices)
        return Choice(
            what.log_probs.new_empty(0),
            torch.cat(parents),
            choices[0].size,
            torch.cat(kept) if anyone_left else None,
        )


def after(state: State, choice: Choice, shared: bool) -> State:
    """The state of the rows that the search goes on with."""
    if not shared:
        return state if choice.parents is None else state.select(choice.parents)
    beams = cast(SharedState, state)
    if choice.kept is not None:
        beams = beams.keep(choice.kept)
    return beams if choice.parents is None else beams.follow(choice.parents)


def said(model: EncoderDecoder, output: DecoderOutput, needs_attention: bool) -> Said:
    """What the model says of the rows after a step; where they looked, if the search needs it."""
    hidden = output.hidden[:, -1]
    logits = model.logits(hidden)
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    state = hidden if model.has_top_state else None
    if not needs_attention:
        return Said(log_probs, None, state)
    if not output.attentions:
        raise SaccadeError("search.coverage_penalty needs a model with attention, which this one has not; set it to 0")
    return Said(log_probs, looked_at(output.attentions), state)


def looked_at(attentions: tuple[Tensor, ...] | None) -> Tensor | None:
    """Where a step looked, over all layers and heads: (B, H, 1, S) a layer → (B, S)."""
    if not attentions:
        return None
    return torch.stack([weights[:, :, -1].mean(1) for weights in attentions]).mean(0)
