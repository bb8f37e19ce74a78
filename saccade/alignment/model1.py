"""IBM Model 1 in both directions, as a judge of links: it knows words, and nothing of any head or of any order.

p(t | s) ∝ Σ over pairs of the chance that t came of s,   that chance ∝ p(t | s) within a sentence
                                                                               (Brown et al. 1993, 4.1; EM)

Each direction says how likely every link is, with the empty word as a cause of what has none; the judge believes the
geometric mean q of the two, so that they have to agree (Liang et al. 2006). Of links A it then expects

    F1 = 2 Σ_A q / (|A| + Σ q),

which falls when words are linked that have no counterpart as it does when words are left out that have one.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saccade.errors import SaccadeError

Chances = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

COUNTED = 20_000  # pairs of a text that words are learned from
JUDGED = 1000  # pairs, from all parts of the text, whose links are judged
ROUNDS = 6
NOTHING = 0.1  # how likely a word is to be of the empty word's making, before it is known which


class Judge(NamedTuple):
    """What Model 1 expects of links between the words of some pairs of a text."""

    sources: Sequence[str]
    targets: Sequence[str]
    chances: Chances  # (pairs, T, S): q, zero beyond the words

    @classmethod
    def of(cls, sources: Sequence[str], targets: Sequence[str]) -> "Judge":
        """A judge that knows the words of a text, and the links of some of its pairs by them."""
        usable = [i for i in range(len(sources)) if sources[i].strip() and targets[i].strip()]
        if not usable:
            raise SaccadeError("there is no pair with words on both sides, so no heads can be chosen; give some text")
        taken = [usable[i] for i in np.linspace(0, len(usable) - 1, min(len(usable), JUDGED)).astype(int)]
        counted = sorted({*taken, *usable[:COUNTED]})
        found = link_chances([sources[i] for i in counted], [targets[i] for i in counted])
        known = [found[bisect_left(counted, i)] for i in taken]
        T, S = (max(each.shape[side] for each in known) for side in (0, 1))
        chances = np.zeros((len(taken), T, S), np.float32)
        for row, each in enumerate(known):
            chances[row, : each.shape[0], : each.shape[1]] = each
        return cls([sources[i] for i in taken], [targets[i] for i in taken], chances)

    def flipped(self) -> "Judge":
        """The same judge of the same pairs, their sides exchanged."""
        return Judge(self.targets, self.sources, np.ascontiguousarray(self.chances.swapaxes(1, 2)))

    def expects(self, links: npt.NDArray[np.bool_]) -> float:
        """The F1 of links (pairs, T, S)."""
        return self.of_sums(float(self.chances[links].sum()), int(links.sum()))

    def of_sums(self, right: float, links: int) -> float:
        """… of so many links, of which so many are expected to be right."""
        return 2 * right / (links + float(self.chances.sum()))


def link_chances(sources: Sequence[str], targets: Sequence[str]) -> list[Chances]:
    """How likely each target word and each source word belong together, (target words, source words) a pair."""
    shapes = [(len(t.split()), len(s.split())) for s, t in zip(sources, targets, strict=True)]
    if not any(rows * across for rows, across in shapes):
        return [np.zeros(shape, np.float32) for shape in shapes]
    source, target = _numbered(sources), _numbered(targets)
    first = np.cumsum([(0, 0), *shapes], axis=0)  # where the words of each pair begin in the text
    t_place, s_place = (
        np.concatenate([np.zeros(0, np.int64), *cells])
        for cells in zip(
            *(
                (np.repeat(np.arange(t, t + rows), across), np.tile(np.arange(s, s + across), rows))
                for (rows, across), (t, s) in zip(shapes, first, strict=False)
            ),
            strict=True,
        )
    )
    kinds, kind = np.unique(source[s_place] * (int(target.max()) + 1) + target[t_place], return_inverse=True)
    kind_source, kind_target = np.divmod(kinds, int(target.max()) + 1)
    there = _posteriors(kind.ravel(), kind_source, t_place, target)
    back = _posteriors(kind.ravel(), kind_target, s_place, source)
    both = np.sqrt(there * back)
    ends = np.cumsum([rows * across for rows, across in shapes])
    return [
        part.reshape(shape).astype(np.float32) for part, shape in zip(np.split(both, ends[:-1]), shapes, strict=True)
    ]


def _numbered(texts: Sequence[str]) -> Integers:
    """The words of all texts, as numbers."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(word, len(known)) for text in texts for word in text.split()], np.int64)


def _posteriors(kind: Integers, given: Integers, place: Integers, words: Integers) -> Floats:
    """Of each cell, how likely its given word is to have caused the word at its place (EM).

    `kind` says which pair of words a cell is, `given` which word is given in a kind, `words` which stands at a place.
    """
    p = np.full(len(given), 1.0 / (int(words.max()) + 1))
    nothing = np.full(int(words.max()) + 1, 1.0 / (int(words.max()) + 1))  # p(word | the empty word)
    share = (1 - NOTHING) / np.bincount(place, minlength=len(words)).clip(min=1)  # of each cause that is a word
    for last in (*[False] * ROUNDS, True):
        chance = share[place] * p[kind]
        alone = NOTHING * nothing[words]
        sums = np.bincount(place, chance, minlength=len(words)) + alone
        chance /= sums[place]
        if last:
            return chance
        counts = np.bincount(kind, chance, minlength=len(given))
        p = counts / np.bincount(given, counts)[given]
        counts = np.bincount(words, alone / sums, minlength=len(nothing))
        nothing = counts / counts.sum()
    raise AssertionError
