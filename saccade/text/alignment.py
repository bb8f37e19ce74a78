"""Which words of a translation were written for which of its source; characters, where there are no spaces.

A *unit* is a word with its hyphens and apostrophes, a single sign, a single character of a script without spaces, or a
protected stretch as a whole. The attention between pieces becomes weights between units through the characters they
cover. A model without attention gets the diagonal: the unit at 40% of the translation is that at 40% of the source.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from saccade.text.spans import UNSPACED

if TYPE_CHECKING:
    from saccade.translator import Translation

Array = npt.NDArray[np.float64]
Range = tuple[int, int]

_UNIT = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+(?:['’\-][^\W{UNSPACED}]+)*|\S")


class Piece(NamedTuple):
    """A stretch of a line that was translated on its own, and where its translation stands in that of the line."""

    translation: "Translation"
    source: Range  # in the text that was translated
    target: Range


def units_of(text: str, whole: Sequence[Range] = ()) -> list[Range]:
    """The units of a text, in their order; each of `whole` (in order, apart) is one."""
    units: list[Range] = []
    position = 0
    for start, end in [*whole, (len(text), len(text))]:
        units += [match.span() for match in _UNIT.finditer(text, position, start)]
        if end > start:
            units.append((start, end))
        position = end
    return units


def weights_between(pieces: Sequence[Piece], targets: Sequence[Range], sources: Sequence[Range]) -> tuple[Array, bool]:
    """Weights (targets, sources), whose rows sum to 1 or are zeros, and whether a model's attention gave them."""
    weights = np.zeros((len(targets), len(sources)))
    attended = False
    for piece in pieces:
        rows, columns = _within(targets, piece.target), _within(sources, piece.source)
        if not rows or not columns:
            continue
        found = _attention(piece, [targets[r] for r in rows], [sources[c] for c in columns])
        attended = attended or found is not None
        weights[np.ix_(rows, columns)] = _diagonal(len(rows), len(columns)) if found is None else found
    sums = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0), attended


def _attention(piece: Piece, targets: Sequence[Range], sources: Sequence[Range]) -> Array | None:
    weights = piece.translation.piece_attention  # (T, S)
    if weights is None:
        return None
    target_offsets, source_offsets = piece.translation.offsets
    to_target = _shares(targets, piece.target[0], target_offsets)  # (units, T)
    to_source = _shares(sources, piece.source[0], source_offsets)  # (units, S)
    return to_target @ weights @ to_source.T


def _shares(units: Sequence[Range], shift: int, pieces: Sequence[Range]) -> Array:
    """How much of each piece (columns) falls in each unit (rows), by characters."""
    starts, ends = (np.array(side, dtype=np.float64).reshape(-1, 1) - shift for side in zip(*units, strict=True))
    first, last = np.array(pieces, dtype=np.float64).reshape(-1, 2).T
    covered = np.minimum(ends, last) - np.maximum(starts, first)
    return np.clip(covered, 0, None) / np.maximum(last - first, 1)


def _diagonal(rows: int, columns: int) -> Array:
    centres = ((np.arange(rows) + 0.5) * columns / rows).astype(int)
    return np.eye(columns)[centres]


def _within(units: Sequence[Range], piece: Range) -> list[int]:
    return [i for i, (start, end) in enumerate(units) if start < piece[1] and piece[0] < end]
