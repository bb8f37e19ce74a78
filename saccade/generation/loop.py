"""The one generation loop, for every model and every search: a batch in, its hypotheses out.

Sentences are searched in *cohorts* (see `work`). Where the model's state allows, a cohort joins those that are at work
as soon as enough sentences have left, so that every step has a full batch. `running` is the same for sentences that
come and go one by one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.generation.captured import replayed
from saccade.generation.rescoring import with_own_log_probs
from saccade.generation.rules import DEFAULT_RULES, Rule, Weighing
from saccade.generation.search import Hypothesis, Search, part_of
from saccade.generation.work import Errand, Lane, begin
from saccade.models.protocol import EncoderDecoder


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

    A model on a GPU may be given them there or, which is quicker, on the host.

    `limits` (B,) is the most tokens each may have, its end counted: a sentence's own, so that no answer depends on
    what shares its batch. `weighings` change what the search chooses and ranks by (`Hypothesis.score`), never
    `Hypothesis.log_prob`. `at_once` is the most source tokens, padding counted, at work at the same time (None: any
    number); where it is less than all, sentences of like length should stand together, the longest first.
    """
    device = next((parameter.device for parameter in model.parameters()), source.device)
    waiting = _Waiting(mask, at_once)
    work = Lane(model, search.needs_attention)
    found: list[list[Hypothesis]] = [[] for _ in range(source.size(0))]
    while work.cohorts or waiting.sentences:
        newcomers = waiting.admit(work)
        if newcomers is not None:
            first, last = newcomers
            lengths = waiting.lengths[first:last]
            columns = max(lengths)
            sources, masks, most = source[first:last, :columns], mask[first:last, :columns], limits[first:last]
            if device.type == "cuda" and not weighings:
                answers = replayed(model, sources, masks, search, most, rules)
                if answers is not None:
                    found[first:last] = answers
                    continue
            part = part_of(search, first, last)
            there = sources.to(device), masks.to(device), most.to(device)
            errand = Errand(*there, part, rules, weighings, first, lengths)
            work.take(begin(model, errand))
        if work.cohorts:
            work.step()
        for cohort in work.finished():
            found[cohort.first : cohort.last] = cohort.run.results()
    return with_own_log_probs(model, source.to(device), mask.to(device), found) if weighings else found


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

    def admit(self, work: Lane) -> tuple[int, int] | None:
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
