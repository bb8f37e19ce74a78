"""IBM Model 1 in both directions, as a judge of links: it knows words, and nothing of any head.

p(t | s) ∝ Σ over pairs of the chance that t came of s,   that chance ∝ p(t | s) within a sentence
                                                                               (Brown et al. 1993, 4.1; EM)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

PAIRS = 20_000  # of a text, so many are counted
ROUNDS = 6


class Cells:
    """Every source word of a pair against every target word, of all pairs, one after the other."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        self._numbers: list[dict[str, int]] = [{}, {}]
        s, t, places, rows = [], [], [], 0
        for source, target in zip(sources, targets, strict=True):
            one, other = self._numbered(0, source), self._numbered(1, target)
            s.append(np.tile(one, len(other)))
            t.append(np.repeat(other, len(one)))
            places.append(np.repeat(np.arange(rows, rows + len(other)), len(one)))
            rows += len(other)
        self.source, self.target = (np.concatenate([*side, np.zeros(0, np.int64)]) for side in (s, t))
        self.row = np.concatenate([*places, np.zeros(0, np.int64)])  # which target word of the text

    def _numbered(self, side: int, text: str) -> Integers:
        known = self._numbers[side]
        return np.array([known.setdefault(word, len(known)) for word in text.split()], np.int64)


def likely_links(sources: Sequence[str], targets: Sequence[str]) -> list[npt.NDArray[np.float32]]:
    """How likely each source word is to be the one that a target word belongs to, (target words, source words) a pair.

    The product of both directions' p, so that they have to agree (Liang et al. 2006); rows sum to 1.
    """
    cells = Cells(sources, targets)
    if not len(cells.source):
        return [np.zeros((len(t.split()), len(s.split())), np.float32) for s, t in zip(sources, targets, strict=True)]
    pair = cells.source * (int(cells.target.max()) + 1) + cells.target
    kinds, kind = np.unique(pair, return_inverse=True)
    kind_source, kind_target = kinds // (int(cells.target.max()) + 1), kinds % (int(cells.target.max()) + 1)
    columns = _columns(sources, targets)
    there = _expectation_maximisation(kind.ravel(), kind_source, cells.row)
    back = _expectation_maximisation(kind.ravel(), kind_target, columns)
    both = (there * back)[kind.ravel()]
    sums = np.bincount(cells.row, both)[cells.row]
    both = np.divide(both, sums, out=np.zeros_like(both), where=sums > 0)
    shapes = [(len(t.split()), len(s.split())) for s, t in zip(sources, targets, strict=True)]
    ends = np.cumsum([rows * across for rows, across in shapes])
    return [
        part.reshape(shape).astype(np.float32) for part, shape in zip(np.split(both, ends[:-1]), shapes, strict=True)
    ]


def _columns(sources: Sequence[str], targets: Sequence[str]) -> Integers:
    """For each cell, which source word of the text."""
    found, first = [np.zeros(0, np.int64)], 0
    for source, target in zip(sources, targets, strict=True):
        words = len(source.split())
        found.append(np.tile(np.arange(first, first + words), len(target.split())))
        first += words
    return np.concatenate(found)


def _expectation_maximisation(kind: Integers, given: Integers, place: Integers) -> Floats:
    """p(word | given) of each kind of cell; at each place one of the words given is the cause, or none is."""
    p = np.full(len(given), 1.0)
    nothing = 1.0  # the chance of the empty word, which may cause anything
    for _ in range(ROUNDS):
        chance = p[kind]
        sums = np.bincount(place, chance)
        chance /= (sums + nothing)[place]
        counts = np.bincount(kind, chance, minlength=len(given))
        p = counts / np.bincount(given, counts)[given]
        nothing = float(np.median(p))
    return p
