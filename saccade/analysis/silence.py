"""What is lost without a head, and without more and more of them in that order.

After Michel et al. 2019, 3, and Voita et al. 2019, 6.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from saccade.analysis.capture import silenced
from saccade.evaluation.metrics import bleu, tokenizer_for
from saccade.models.heads import HeadName, head_names
from saccade.translator import Translator

POINTS = 12  # of the curve, at most


class Loss(NamedTuple):
    """Without this head."""

    name: HeadName
    bleu: float  # points lost; negative: it is better without
    nll: float  # nats a token, added


class Point(NamedTuple):
    """Without the first so many heads of the order."""

    silenced: int
    bleu: float
    nll: float


class Silencing(NamedTuple):
    """All of it."""

    bleu: float  # with every head
    nll: float
    losses: list[Loss]  # in the order in which heads can go: least lost first
    curve: list[Point]

    @property
    def order(self) -> list[HeadName]:
        return [loss.name for loss in self.losses]

    def to_dict(self) -> dict[str, Any]:
        return {
            "bleu": self.bleu,
            "nll": self.nll,
            "heads": [{"name": str(loss.name), "bleu_lost": loss.bleu, "nll_added": loss.nll} for loss in self.losses],
            "curve": [point._asdict() for point in self.curve],
        }


class Judge:
    """BLEU and negative log-likelihood of some pairs."""

    def __init__(self, translator: Translator, sources: Sequence[str], references: Sequence[str], beam: int) -> None:
        self.translator, self.sources, self.references, self.beam = translator, sources, references, beam
        self.tokenize = tokenizer_for(translator.config.data.target, references)
        self._tokens = sum(len(ids) + 1 for ids in translator.tokenizers.target.encode_batch(list(references)))

    def __call__(self, without: Sequence[HeadName] = ()) -> tuple[float, float]:
        with silenced(self.translator.model, without):
            nll = -sum(self.translator.score(self.sources, self.references)) / self._tokens
            found = [each.text for each in self.translator.stream(self.sources, beam=self.beam, guard=False)]
        return bleu(found, self.references, tokenize=self.tokenize), nll


def silence(judge: Judge, progress: Callable[[int], None] | None = None) -> Silencing:
    """Each head alone, then the curve; an attention keeps its last head."""
    whole, nll = judge()
    names = head_names(judge.translator.model)
    losses = []
    for number, name in enumerate(names, start=1):
        without, worse = judge([name])
        losses.append(Loss(name, whole - without, worse - nll))
        if progress is not None:
            progress(number)
    losses.sort(key=lambda loss: (loss.bleu, loss.nll))
    order = removable([loss.name for loss in losses])
    curve = [Point(0, whole, nll)]
    for share in range(1, min(POINTS, len(order)) + 1):
        count = round(share * len(order) / min(POINTS, len(order)))
        curve.append(Point(count, *judge(order[:count])))
        if progress is not None:
            progress(len(names) + share)
    return Silencing(whole, nll, losses, curve)


def work(translator: Translator) -> int:
    """How many times `silence` will call progress."""
    names = head_names(translator.model)
    return len(names) + min(POINTS, len(removable(names)))


def removable(order: Sequence[HeadName]) -> list[HeadName]:
    """The order without the last head of each attention: one is left."""
    left: dict[Any, int] = {}
    for name in order:
        left[name.site] = left.get(name.site, 0) + 1
    kept = []
    for name in order:
        if left[name.site] > 1:
            left[name.site] -= 1
            kept.append(name)
    return kept
