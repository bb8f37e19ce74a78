"""Whether an export says what the model says, token for token.

Both sides search for the same sentences in the same way. An answer is *equal* if its tokens are; it is *tied* if they
are not, but the model itself is indifferent: by its own log-probabilities the two choices are within 0.001 of each
other, so that the last bits of two programs decide. In greedy search the choice is the first token that differs, in
beam search the whole translation, as the search ranks it. Anything else is *different*. A sentence that comes to its
length limit is not compared: there each program has its own way to end.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.config import SearchConfig
from saccade.data.batching import collate
from saccade.engines.pytorch import TorchEngine
from saccade.generation.asked import search_of
from saccade.generation.loop import generate
from saccade.generation.orders import Job
from saccade.generation.rules import Prefixes, Rule, end_at_limit, forbid, no_specials
from saccade.generation.search import Beam, Hypothesis
from saccade.translator import Translator

TIE = 1e-3

Ids = list[int]
Answers = Sequence[Ids | None]  # the best answer for each source; None: it came to its limit
Other = Callable[[Sequence[Job], SearchConfig], Answers]


class Agreement(NamedTuple):
    """How many answers agree."""

    search: str
    equal: int
    tied: int
    different: int
    limited: int  # not compared

    @property
    def compared(self) -> int:
        return self.equal + self.tied + self.different

    @property
    def share(self) -> float:
        """Of the answers that were compared, those that are equal or tied."""
        return (self.equal + self.tied) / self.compared if self.compared else 1.0

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.search}: nothing, all {self.limited:,} came to their length limit; train the model more"
        tied = f", {self.tied} tied" if self.tied else ""
        limited = f" ({self.limited:,} came to their limit)" if self.limited else ""
        return f"{self.search}: {self.equal:,} of {self.compared:,} equal{tied}{limited}"


def renormalised(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
    """A rule: what is left adds up to one, as in a program that forbids tokens before its softmax."""
    return log_probs.log_softmax(-1)


def searches(settings: SearchConfig) -> list[SearchConfig]:
    """Greedy, and the folder's beam, stopped as every program can stop it.

    Without a length penalty: each program has another, and by its own it chooses what it hands out of that which ended.
    """
    plain = {"n_best": 1, "coverage_penalty": 0.0, "length_penalty": 0.0, "early_stopping": "beam"}
    beam = settings.beam if settings.beam > 1 else 5
    return [settings.model_copy(update=plain | {"beam": 1}), settings.model_copy(update=plain | {"beam": beam})]


def verify(
    translator: Translator, sources: Sequence[Ids], settings: SearchConfig, other: Other, renormalise: bool = False
) -> Agreement:
    """Search on both sides and compare. `renormalise`: the other side forbids tokens before its softmax."""
    forbidden = (no_specials, forbid(translator.never_written))
    rules: tuple[Rule, ...] = (*forbidden, renormalised, end_at_limit) if renormalise else (*forbidden, end_at_limit)
    name = "greedy" if settings.beam == 1 else f"beam {settings.beam}"
    equal = tied = different = limited = 0
    jobs = translator.jobs(sources, settings)
    ours = own_answers(translator, jobs, settings, rules)
    for job, found, theirs in zip(jobs, ours, other(jobs, settings), strict=True):
        if theirs is None or len(theirs) + 1 >= job.limit or len(found[0].tokens) + 1 >= job.limit:
            limited += 1
        elif theirs == found[0].tokens:
            equal += 1
        elif _indifferent(translator, job.source, found[0].tokens, theirs, settings, rules):
            tied += 1
        else:
            different += 1
    return Agreement(name, equal, tied, different, limited)


def own_answers(
    translator: Translator, jobs: Sequence[Job], settings: SearchConfig, rules: Sequence[Rule]
) -> list[list[Hypothesis]]:
    """What our own loop finds under these rules."""

    def search_batch(batch: Sequence[Job]) -> list[list[Hypothesis]]:
        made = collate([(job.source, []) for job in batch], range(len(batch))).to(translator.device)
        limits = torch.tensor([job.limit for job in batch], device=translator.device)
        return generate(translator.model, made.source, made.source_mask, search_of(settings, made), limits, rules)

    translator.model.eval()
    return TorchEngine(lambda settings: search_batch).search(jobs, settings)


def _indifferent(
    translator: Translator, source: Ids, ours: Ids, theirs: Ids, settings: SearchConfig, rules: Sequence[Rule]
) -> bool:
    one, two = (_log_probs(translator, source, target, rules) for target in (ours, theirs))
    if settings.beam == 1:
        ends = (*ours, -1), (*theirs, -1)
        first = next(t for t, (a, b) in enumerate(zip(*ends, strict=False)) if a != b)
        return abs(float(one[first] - two[first])) <= TIE
    ranks = [Beam(1, settings.length_penalty).divide(x.sum(), x.numel()) for x in (one, two)]
    return abs(float(ranks[0] - ranks[1])) <= TIE


@torch.inference_mode()
def _log_probs(translator: Translator, source: Ids, target: Ids, rules: Sequence[Rule]) -> Tensor:
    """The log-probability of each token of a target, its end too, under the rules of the search."""
    batch = collate([(source, target)], [0]).to(translator.device)
    hidden = translator.model(batch.source, batch.source_mask, batch.inputs).hidden[0]
    log_probs = translator.model.logits(hidden).float().log_softmax(-1)
    rows = torch.arange(log_probs.size(0), device=log_probs.device)
    prefixes = Prefixes(batch.inputs[0].unsqueeze(1)[:, :0], rows * 0, rows * 0 + 1_000_000)  # nowhere near a limit
    for rule in rules:
        log_probs = rule(log_probs, prefixes)
    return log_probs[rows, batch.gold[0]]
