"""Diverse beam search: the beam in groups, each of which keeps away from what those before it have just chosen."""

from dataclasses import dataclass

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.generation.rules import Prefixes
from saccade.generation.search import Beam, BeamRun, Hypothesis, Step


@dataclass(frozen=True)
class DiverseBeam:
    """`beam.size` hypotheses in `groups` of equal size (Vijayakumar et al. 2018, algorithm 1, Hamming diversity).

    In each step, group g chooses after groups 1 … g-1, by

    log P(Y | X) - λ · (how often the groups before it have just chosen the same token)

    The second term is for the choice of this step alone: hypotheses are kept and ranked with the model's own
    log-probability and the penalties of `beam`, over all groups in the end. What two groups have found counts once. A
    group is a beam search of its own, stops by the rules of one, and then keeps no other away; one group is `beam`.
    """

    beam: Beam
    groups: int
    diversity: float = 0.5  # λ

    def __post_init__(self) -> None:
        if self.beam.size % self.groups:
            raise SaccadeError(
                f"search.groups={self.groups} does not divide search.beam={self.beam.size}; "
                "groups are of equal size: change one of them"
            )

    @property
    def needs_attention(self) -> bool:
        return self.beam.needs_attention

    @property
    def group(self) -> Beam:
        """The search of one group."""
        size = self.beam.size // self.groups
        return Beam(
            size,
            self.beam.length_penalty,
            self.beam.coverage_penalty,
            min(size, self.beam.n_best),
            self.beam.stop_at_size,
        )

    def start(self, limits: Tensor, source_mask: Tensor, dtype: torch.dtype = torch.float32) -> "DiverseRun":
        return DiverseRun(self, limits, source_mask, dtype)


class DiverseRun(BeamRun):
    """A beam search in which every group is a sentence of its own: number `sentence · groups + group`."""

    def __init__(self, search: DiverseBeam, limits: Tensor, source_mask: Tensor, dtype: torch.dtype) -> None:
        G = search.groups
        super().__init__(search.group, limits.repeat_interleave(G), source_mask.repeat_interleave(G, dim=0), dtype)
        self.diverse = search
        self.rows = self.rows // G

    def prefixes(self) -> Prefixes:
        prefixes = super().prefixes()
        return prefixes._replace(sentences=prefixes.sentences // self.diverse.groups)

    def _best(self, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        K, V, G = self.search.size, log_probs.size(-1), self.diverse.groups
        continued = self.log_prob.unsqueeze(-1) + log_probs.view(-1, K, V)  # (N, K, V)
        sentences, groups = self.sentences // G, self.sentences % G
        chosen = continued.new_zeros(self.ended_count.numel() // G, V)  # how often, in this step
        places = self.sentences.new_empty(continued.size(0), count)
        for g in range(G):
            here = (groups == g).nonzero().flatten()
            apart = continued[here] - self.diverse.diversity * chosen[sentences[here]].unsqueeze(1)
            places[here] = apart.flatten(1).topk(count, dim=1).indices
            best = places[here, :K]
            possible = continued[here].flatten(1).gather(1, best) > -float("inf")
            chosen[sentences[here]] = chosen[sentences[here]].scatter_add(1, best % V, possible.to(chosen.dtype))
        return continued.flatten(1).gather(1, places), places // V, places % V

    def _next(self, tokens: Tensor, rows: Tensor) -> Step:
        step = super()._next(tokens, rows)
        return Step(step.tokens, step.parents)  # the rows of a group are not a sentence's beam: nothing is shared

    def results(self) -> list[list[Hypothesis]]:
        found, G = super().results(), self.diverse.groups
        return [_ranked(found[start : start + G], self.diverse.beam.n_best) for start in range(0, len(found), G)]

    def result(self, sentence: int) -> list[Hypothesis]:
        G = self.diverse.groups
        found = [super(DiverseRun, self).result(sentence * G + group) for group in range(G)]
        return _ranked(found, self.diverse.beam.n_best)

    def over(self) -> Tensor:
        return super().over().view(-1, self.diverse.groups).all(1)


def _ranked(groups: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """What the groups have found, each once, the best first."""
    found: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in sorted((h for group in groups for h in group), key=lambda h: -h.score):
        found.setdefault(tuple(hypothesis.tokens), hypothesis)
    return list(found.values())[:n_best]
