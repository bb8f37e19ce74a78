"""Two directions made one: intersection, union, and grow-diag-final-and (Koehn et al. 2003, 4; Och & Ney 2003, 4.3).

Links are boolean arrays (B, target words, source words), padded with False. The heuristics are sequential: a point that
was added lets its neighbours in, in the order of the words. Here each step is taken for all sentences of a batch at
once, so that the answer is that of the sequential rule and the time that of arrays.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from saccade.errors import SaccadeError

Links = npt.NDArray[np.bool_]

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(one: Links, other: Links) -> Links:
    """What both say."""
    return one & other


def union(one: Links, other: Links) -> Links:
    """What either says."""
    return one | other


def grow_diag(one: Links, other: Links) -> Links:
    """From the intersection, to neighbours (diagonal ones too) in the union of which either word has no link yet."""
    found, allowed = (np.ascontiguousarray(np.moveaxis(each, 0, -1)) for each in (one & other, one | other))
    return np.moveaxis(_grown(found, allowed), -1, 0)


def grow_diag_final_and(one: Links, other: Links) -> Links:
    """`grow_diag`, then links of the first direction, then of the other, of which both words have none yet."""
    found, allowed = (np.ascontiguousarray(np.moveaxis(each, 0, -1)) for each in (one & other, one | other))
    found = _grown(found, allowed)
    rows, columns = _linked(found)
    for links in (one, other):
        ordered = np.ascontiguousarray(np.moveaxis(links, 0, -1))
        for t, s in zip(*np.nonzero(np.asarray(ordered.any(-1))), strict=True):
            new = ordered[t, s] & ~rows[t] & ~columns[s]
            found[t, s] |= new
            rows[t] |= new
            columns[s] |= new
    return np.moveaxis(found, -1, 0)


METHODS: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag": grow_diag,
    "grow-diag-final-and": grow_diag_final_and,
}


def symmetrise(one: Links, other: Links, method: str = "grow-diag-final-and") -> Links:
    """One set of links from two of the same shape."""
    if method not in METHODS:
        raise SaccadeError(f"--symmetrise={method}: is not known; use {', '.join(METHODS)}")
    if one.shape != other.shape:
        raise ValueError(f"links of different shapes: {one.shape} and {other.shape}")
    return METHODS[method](one, other)


def _grown(found: Links, allowed: Links) -> Links:
    """`found` (T, S, B), grown until nothing more can be added."""
    T, S, _ = found.shape
    rows, columns = _linked(found)
    possible = np.asarray(allowed.any(-1))
    grew = True
    while grew:
        grew = False
        waiting = np.asarray((allowed & ~found).any(-1))
        for t in range(T):
            for s in range(S):
                here = found[t, s]
                if not possible[t, s] or not here.any():
                    continue
                for down, right in _NEIGHBOURS:
                    y, x = t + down, s + right
                    if not (0 <= y < T and 0 <= x < S and waiting[y, x]):
                        continue
                    new = here & allowed[y, x] & ~found[y, x] & ~(rows[y] & columns[x])
                    if not new.any():
                        continue
                    grew = True
                    found[y, x] |= new
                    rows[y] |= new
                    columns[x] |= new
    return found


def _linked(found: Links) -> tuple[Links, Links]:
    """Which words of the target (T, B) and of the source (S, B) have a link."""
    return np.asarray(found.any(1)), np.asarray(found.any(0))
