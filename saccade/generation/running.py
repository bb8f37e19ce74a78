"""The generation loop for sentences that come and go: one running batch, for servers.

Sentences are submitted at any time, each under a key, and join at the next step. A sentence's answer is given out as
soon as it is known, whoever it started with; one that is no longer wanted leaves, with its rows, before the next step.
Who may start and when is not decided here.

Cohorts share a lane, and so a step of the model, if their states can join: the same rows to a sentence, and sources of
like width, so that a long one neither pads the short ones nor takes their room. Others have a lane of their own. Lanes
take their steps in turn, so that none waits for another to end.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import torch

from saccade.generation.rescoring import with_own_log_probs
from saccade.generation.search import Hypothesis
from saccade.generation.work import Cohort, Errand, Lane, begin
from saccade.models.protocol import EncoderDecoder

NARROW = 64  # columns of the narrowest lane; each wider one has twice those of the one before

Key = TypeVar("Key", bound=Hashable)


def width_of(columns: int) -> int:
    """The width of the lane for sources of so many tokens."""
    return max(NARROW, 1 << (columns - 1).bit_length())


class Running(Generic[Key]):
    """One running batch of a model."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model
        self.lanes: dict[tuple[object, ...], Lane] = {}
        self._at_work: dict[Key, tuple[Cohort, int]] = {}
        self._keys: dict[Cohort, dict[int, Key]] = {}  # of the sentences whose answer has not been given out
        self._ready: list[tuple[Key, list[Hypothesis]]] = []

    @property
    def sentences(self) -> int:
        """How many are at work."""
        return len(self._at_work)

    @property
    def busy(self) -> bool:
        """Whether another `step` has something to do, or to give out."""
        return bool(self.lanes or self._ready)

    def holds(self, key: Key) -> bool:
        """Whether a sentence is at work."""
        return key in self._at_work

    @property
    def rows(self) -> int:
        """Rows of the next step; those of answers that are given out may stay for a few steps."""
        return sum(lane.rows for lane in self.lanes.values())

    def cells(self, width: int) -> int:
        """Rows times columns at work in the lanes of a width."""
        return sum(lane.rows * width for lane in self.lanes.values() if width_of(lane.columns) == width)

    @torch.inference_mode()
    def start(self, errand: Errand, keys: Sequence[Key]) -> None:
        """Sentences take their first step, and join those that are at work."""
        begun = begin(self.model, errand)
        cohort = begun.cohort
        self._keys[cohort] = dict(enumerate(keys))
        self._at_work.update((key, (cohort, sentence)) for sentence, key in enumerate(keys))
        shared = (begun.size, errand.search.needs_attention, width_of(cohort.columns))
        name = (cohort,) if begun.size is None else shared
        lane = self.lanes.setdefault(name, Lane(self.model, errand.search.needs_attention))
        lane.take(begun)
        self._give_out([*lane.cohorts, *lane.finished()])
        self._tidy()

    @torch.inference_mode()
    def step(self) -> list[tuple[Key, list[Hypothesis]]]:
        """Every lane takes a step; returns the sentences that are done since the last one, with their hypotheses."""
        for lane in list(self.lanes.values()):
            lane.step()
            self._give_out([*lane.cohorts, *lane.finished()])
        self._tidy()
        ready, self._ready = self._ready, []
        return ready

    @torch.inference_mode()
    def drop(self, keys: Iterable[Key]) -> None:
        """Sentences that are no longer wanted leave, if they are at work."""
        leaving: dict[Cohort, list[int]] = {}
        for key in keys:
            if (place := self._at_work.pop(key, None)) is not None:
                cohort, sentence = place
                leaving.setdefault(cohort, []).append(sentence)
                del self._keys[cohort][sentence]
        if not leaving:
            return
        for lane in self.lanes.values():
            of_lane = {cohort: leaving[cohort] for cohort in lane.cohorts if cohort in leaving}
            if of_lane:
                lane.drop(of_lane)
                self._give_out(lane.finished())
        self._tidy()

    @torch.inference_mode()
    def so_far(self, key: Key) -> list[int]:
        """What the likeliest hypothesis of a sentence that is at work has written; it may not be the one that wins."""
        cohort, sentence = self._at_work[key]
        prefixes = cohort.run.prefixes()
        rows = (prefixes.sentences == sentence).nonzero().flatten()
        return prefixes.tokens[rows[0]].tolist() if rows.numel() else []

    def _give_out(self, cohorts: Iterable[Cohort]) -> None:
        for cohort in cohorts:
            waited_for = self._keys[cohort]
            over = cohort.run.over().tolist() if waited_for else []
            done = [sentence for sentence in waited_for if over[sentence]]
            found = [cohort.run.result(sentence) for sentence in done]
            if done and cohort.errand.weighings:
                sources = cohort.errand.source[done], cohort.errand.mask[done]
                found = with_own_log_probs(self.model, *sources, found)
            for sentence, hypotheses in zip(done, found, strict=True):
                key = waited_for.pop(sentence)
                del self._at_work[key]
                self._ready.append((key, hypotheses))

    def _tidy(self) -> None:
        self.lanes = {name: lane for name, lane in self.lanes.items() if lane.cohorts}
        at_work = {cohort for lane in self.lanes.values() for cohort in lane.cohorts}
        self._keys = {cohort: keys for cohort, keys in self._keys.items() if cohort in at_work}
