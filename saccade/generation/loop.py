"""The one generation loop, for every model and every search.

Sentences are searched in *cohorts*: those that start together, with a run of the search of their own. Where the model's
state allows (`SharedState`), a cohort joins those that are at work as soon as enough sentences have left, so that every
step has a full batch; what a sentence's answer is does not depend on it.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from saccade.data.tokenizers import BOS
from saccade.errors import SaccadeError
from saccade.generation.captured import replayed
from saccade.generation.rescoring import with_own_log_probs
from saccade.generation.rules import DEFAULT_RULES, Rule, Weighing, apply
from saccade.generation.search import Hypothesis, Run, Search, part_of
from saccade.generation.search import Step as Choice
from saccade.models.protocol import DecoderOutput, EncoderDecoder, Memory, SharedState, State

PADDING = 64  # tokens of padding that are read rather than a batch cut in two


@torch.inference_mode()
def generate(
    model: EncoderDecoder,
    source: Tensor,
    mask: Tensor,
    search: Search,
    limits: Tensor,
    rules: Sequence[Rule] = DEFAULT_RULES,
    weighings: Sequence[Weighing] = (),
    at_once: int | None = None,
) -> list[list[Hypothesis]]:
    """Translate source ids (B, S): for each sentence its hypotheses, the best first.

    `limits` (B,) is the most tokens each may have, its end counted: a sentence's own, so that no answer depends on
    what shares its batch. `weighings` change what the search chooses and ranks by (`Hypothesis.score`), never
    `Hypothesis.log_prob`. `at_once` is the most source tokens, padding counted, at work at the same time (None: any
    number); where it is less than all, sentences of like length should stand together, the longest first.
    """
    waiting = _Waiting(mask, at_once)
    work = _Work(model, search, rules, weighings)
    found: list[list[Hypothesis]] = [[] for _ in range(source.size(0))]
    while work.cohorts or waiting.sentences:
        newcomers = waiting.admit(work)
        if newcomers is not None:
            first, last = newcomers
            lengths = waiting.lengths[first:last]
            columns = max(lengths)
            batch = source[first:last, :columns], mask[first:last, :columns]
            if source.device.type == "cuda" and not weighings:
                answers = replayed(model, *batch, search, limits[first:last], rules)
                if answers is not None:
                    found[first:last] = answers
                    continue
            work.start(first, *batch, limits[first:last], lengths)
        if work.cohorts:
            work.step()
        for cohort in work.finished():
            found[cohort.first : cohort.last] = cohort.run.results()
    return with_own_log_probs(model, source, mask, found) if weighings else found


class _Waiting:
    """The sentences that have not started, in their order."""

    def __init__(self, mask: Tensor, at_once: int | None) -> None:
        self.at_once = at_once
        self.next, self.last = 0, mask.size(0)
        # As many columns as the longest of those that start together needs; one read of the lengths for all.
        columns = torch.arange(1, mask.size(1) + 1, device=mask.device)
        self.lengths: list[int] = (mask * columns).amax(1).tolist() if self.last else []

    @property
    def sentences(self) -> int:
        return self.last - self.next

    def admit(self, work: "_Work") -> tuple[int, int] | None:
        """The first and the last (not counted) of those that may start now."""
        if self.next == self.last or (work.cohorts and not work.joins):
            return None
        first, widest, count = self.next, work.columns, work.sentences
        if self.at_once is None:
            self.next = self.last
        else:
            # Each arrival costs a copy of the state, so a quarter of the room must be free.
            if work.cohorts and count * widest > 0.75 * self.at_once:
                return None
            while self.next < self.last:
                widest = max(widest, self.lengths[self.next])
                if count and (count + 1) * widest > self.at_once:
                    break
                count += 1
                self.next += 1
        return (first, self.next) if self.next > first else None


class _Cohort:
    """Sentences that started together, with a run of the search, and the rows of theirs."""

    def __init__(self, first: int, run: Run, sentences: int, columns: int) -> None:
        self.first, self.last = first, first + sentences
        self.run = run
        self.columns = columns
        self.rows = run.rows.numel() / sentences  # of a sentence
        self.tokens = run.rows

    def choose(
        self, log_probs: Tensor, looked: Tensor | None, rules: Sequence[Rule], weighings: Sequence[Weighing]
    ) -> Choice:
        prefixes = self.run.prefixes()
        if self.first:
            prefixes = prefixes._replace(sentences=prefixes.sentences + self.first)
        log_probs = apply(rules, apply(weighings, log_probs, prefixes), prefixes)
        if looked is not None:
            looked = looked[:, : self.columns]
        choice = self.run.advance(log_probs, looked)
        self.tokens = choice.tokens
        return choice

    @property
    def sentences(self) -> float:
        """How many are at work: as many as their share of the rows."""
        return self.tokens.numel() / self.rows


class _Work:
    """The cohorts at work, one behind the other in the state."""

    state: State

    def __init__(
        self, model: EncoderDecoder, search: Search, rules: Sequence[Rule], weighings: Sequence[Weighing]
    ) -> None:
        self.model, self.search, self.rules, self.weighings = model, search, rules, weighings
        self.cohorts: list[_Cohort] = []
        self.over: list[_Cohort] = []
        self.joins = False  # whether states are shared by beams and can join; known after the first step

    @property
    def sentences(self) -> float:
        return sum(cohort.sentences for cohort in self.cohorts)

    @property
    def columns(self) -> int:
        return max((cohort.columns for cohort in self.cohorts), default=0)

    def _encode(self, source: Tensor, mask: Tensor, lengths: Sequence[int]) -> Memory:
        """Read the sources, those of like length together: padding costs more than a few more calls."""
        parts = []
        start = 0
        for end in range(1, len(lengths) + 1):
            widest = max(lengths[start:end])
            padding = widest * (end - start) - sum(lengths[start:end])
            if end < len(lengths) and padding + abs(widest - lengths[end]) * (end - start) <= PADDING:
                continue
            parts.append(self.model.encode(source[start:end, :widest], mask[start:end, :widest]))
            start = end
        return parts[0].together(parts)

    def start(self, first: int, source: Tensor, mask: Tensor, limits: Tensor, lengths: Sequence[int]) -> None:
        """Sentences take their first step, which all rows of a sentence have in common, and join the others."""
        memory = self._encode(source, mask, lengths)
        search = part_of(self.search, first, first + source.size(0))
        run = search.start(limits, mask, torch.promote_types(memory.states.dtype, torch.float32))
        cohort = _Cohort(first, run, source.size(0), source.size(1))
        state = self.model.init_state(memory, capacity=int(limits.max()))
        output = self.model.decode(source.new_full((source.size(0), 1), BOS), state, self.search.needs_attention)
        log_probs, looked = self._said(output)
        rows = run.rows
        if rows.numel() != source.size(0):
            log_probs = log_probs.index_select(0, rows)
            looked = None if looked is None else looked.index_select(0, rows)
        choice = cohort.choose(log_probs, looked, self.rules, self.weighings)
        state = output.state
        if choice.size is not None and isinstance(state, SharedState):
            self.joins = True
            if rows.numel() != source.size(0) * choice.size:  # several beams for a sentence
                state = state.select(rows[:: choice.size])
            state = self._after(state.beams(choice.size), choice)
        elif rows.numel() != source.size(0) or choice.parents is not None:
            state = state.select(rows if choice.parents is None else rows.index_select(0, choice.parents))
        if not cohort.tokens.numel():
            self.over.append(cohort)
            return
        if self.cohorts:
            state = cast(SharedState, self.state).join(cast(SharedState, state))
        self.state = state
        self.cohorts.append(cohort)

    def step(self) -> None:
        """All cohorts write one more token."""
        if len(self.cohorts) == 1:
            (cohort,) = self.cohorts
            output = self.model.decode(cohort.tokens.unsqueeze(1), self.state, self.search.needs_attention)
            choice = cohort.choose(*self._said(output), self.rules, self.weighings)
        else:
            tokens = torch.cat([cohort.tokens for cohort in self.cohorts])
            output = self.model.decode(tokens.unsqueeze(1), self.state, self.search.needs_attention)
            choice = self._choose(*self._said(output))
        self.over.extend(cohort for cohort in self.cohorts if not cohort.tokens.numel())
        self.cohorts = [cohort for cohort in self.cohorts if cohort.tokens.numel()]
        if self.cohorts:
            self.state = self._after(output.state, choice)

    def finished(self) -> list[_Cohort]:
        over, self.over = self.over, []
        return over

    def _after(self, state: State, choice: Choice) -> State:
        """The state of the rows that the search goes on with."""
        if not self.joins:
            return state if choice.parents is None else state.select(choice.parents)
        shared = cast(SharedState, state)
        if choice.kept is not None:
            shared = shared.keep(choice.kept)
        return shared if choice.parents is None else shared.follow(choice.parents)

    def _said(self, output: DecoderOutput) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities (R, V) of what comes next and, if the search needs it, where each row looked, (R, S)."""
        logits = self.model.logits(output.hidden[:, -1])
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        if not self.search.needs_attention:
            return log_probs, None
        if not output.attentions:
            raise SaccadeError(
                "search.coverage_penalty needs a model with attention, which this one has not; set it to 0"
            )
        return log_probs, looked_at(output.attentions)

    def _choose(self, log_probs: Tensor, looked: Tensor | None) -> Choice:
        """Each cohort chooses for its own rows; their choices as one."""
        sizes = [cohort.tokens.numel() for cohort in self.cohorts]
        parts = log_probs.split(sizes)
        looks = [None] * len(sizes) if looked is None else looked.split(sizes)
        choices = [
            cohort.choose(part, look, self.rules, self.weighings)
            for cohort, part, look in zip(self.cohorts, parts, looks, strict=True)
        ]
        parents, kept = [], []
        row = 0
        for choice, rows in zip(choices, sizes, strict=True):
            size = choice.size or 1
            of_rows = torch.arange(rows, device=log_probs.device) if choice.parents is None else choice.parents
            of_beams = torch.arange(rows // size, device=log_probs.device) if choice.kept is None else choice.kept
            parents.append(of_rows + row)
            kept.append(of_beams + row // size)
            row += rows
        anyone_left = any(choice.kept is not None for choice in choices)
        return Choice(
            log_probs.new_empty(0),
            torch.cat(parents),
            choices[0].size,
            torch.cat(kept) if anyone_left else None,
        )


def looked_at(attentions: tuple[Tensor, ...] | None) -> Tensor | None:
    """Where a step looked, over all layers and heads: (B, H, 1, S) a layer → (B, S)."""
    if not attentions:
        return None
    return torch.stack([weights[:, :, -1].mean(1) for weights in attentions]).mean(0)
