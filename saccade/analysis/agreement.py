"""How far different answers agree on which words mattered: rank correlation, and whether they name the same word."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saccade.analysis.attribution import METHODS, Attributions, attribute
from saccade.translator import Translator

FEWEST = 3  # words of a source, below which ranks say nothing

Array = npt.NDArray[np.float64]


class Agreement(NamedTuple):
    """Of two methods, means over target words."""

    one: str
    other: str
    spearman: float
    same_word: float  # share of target words for which both name the same source word
    words: int


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """ρ = the correlation of ranks, ties at their mean rank (Spearman 1904); 0 where one side is all ties."""
    a, b = (_ranks(np.asarray(side, np.float64)) for side in (x, y))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    return np.asarray((last - (count - 1) / 2)[place.ravel()])


def agreements(found: Sequence[Attributions]) -> list[Agreement]:
    """Of every two methods, by the size of what they say of each source word, signs aside."""
    rows: dict[str, list[Array]] = {method: [] for method in METHODS}
    for each in found:
        if len(each.source) >= FEWEST:
            for method in METHODS:
                rows[method] += list(np.abs(getattr(each, method)))
    made = []
    for one, other in combinations(METHODS, 2):
        pairs = list(zip(rows[one], rows[other], strict=True))
        ranks = [spearman(a, b) for a, b in pairs]
        same = [int(a.argmax() == b.argmax()) for a, b in pairs]
        made.append(Agreement(one, other, _mean(ranks), _mean(same), len(pairs)))
    return made


def measure(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    progress: Callable[[int], None] | None = None,
) -> list[Agreement]:
    """`agreements` over pairs; those without words on both sides are passed over."""
    found = []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
        if source.strip() and target.strip():
            found.append(attribute(translator, source, target))
        if progress is not None:
            progress(number)
    return agreements(found)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
