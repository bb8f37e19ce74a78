"""Reranking: the hypotheses of one folder, judged by others too.

s(Y, X) = (log P(Y | X) + Σ_i w_i log P_i) / lp(Y)

log P_i is log P_i(Y | X) of a second folder, or of one of the other direction log P_i(X | Y) (Li et al. 2016, section
4.2.2; Yee et al. 2019); lp is the search's length penalty (Wu et al. 2016, eq. 14). The others read the text, so their
vocabulary may be any.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from saccade.errors import SaccadeError
from saccade.generation.search import Hypothesis


class Scorer(Protocol):
    """What can say how likely a target is: a `Translator`."""

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log P(target | source) of each pair."""


@dataclass(frozen=True, eq=False)
class Judge:
    """A second folder and how much it says. `reverse`: it translates back, and judges the source by the target."""

    scorer: Scorer
    weight: float = 1.0
    reverse: bool = False

    def __post_init__(self) -> None:
        if not isfinite(self.weight):
            raise SaccadeError(f"the weight of the folder to rerank by is {self.weight}; give a finite number")

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        first, second = (targets, sources) if self.reverse else (sources, targets)
        try:
            scores = self.scorer.score(first, second)
        except SaccadeError as error:
            raise SaccadeError(f"the folder to rerank by cannot score what was found: {error}") from None
        return [self.weight * score for score in scores]


def rerank(
    sources: Sequence[str],
    found: Sequence[Sequence[Hypothesis]],
    texts: Sequence[Sequence[str]],
    judges: Sequence[Judge],
    length_penalty: float,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, with `texts` as theirs, by falling s, their new score; equals in the old order."""
    every_source = [source for source, several in zip(sources, texts, strict=True) for _ in several]
    every_text = [text for several in texts for text in several]
    judged = [judge.score(every_source, every_text) for judge in judges]
    sums = iter([sum(of_all) for of_all in zip(*judged, strict=True)])
    ranked = []
    for hypotheses in found:
        scored = [h._replace(score=(h.log_prob + next(sums)) / _lp(h, length_penalty)) for h in hypotheses]
        ranked.append(sorted(scored, key=lambda hypothesis: -hypothesis.score))
    return ranked


def _lp(hypothesis: Hypothesis, alpha: float) -> float:
    return float(((5 + len(hypothesis.tokens) + 1) / 6) ** alpha)
