"""A heat map as one SVG that needs nothing around it: for notebooks, in whatever colours they have."""

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

CELL, LETTER, SIZE = 22, 7.4, 13  # pixels: a cell, the width of a letter, its height
MOST = 64  # words a side that are drawn: what is larger is for `plot` and `saccade inspect`


def heat_map_svg(weights: npt.ArrayLike, rows: Sequence[str], columns: Sequence[str], label: str) -> str:
    """Rows down the side, columns along the top; the shade is the weight, and pointing at a cell says it.

    Letters have the colour of the text around, cells are shades of one blue: it holds on light and on dark.
    """
    array = np.asarray(weights, dtype=np.float64)[:MOST, :MOST]
    rows, columns = [_shown(row) for row in rows[:MOST]], [_shown(column) for column in columns[:MOST]]
    left = max((len(row) for row in rows), default=0) * LETTER + 8
    top = max((len(column) for column in columns), default=0) * LETTER * 0.8 + 16
    rows, columns = [escape(row) for row in rows], [escape(column) for column in columns]
    width, height = left + CELL * len(columns) + top * 0.7, top + CELL * len(rows) + 2
    parts = []
    for i, column in enumerate(columns):
        place = f"{left + CELL * (i + 0.6):.1f} {top - 6:.1f}"
        parts.append(f'<text transform="translate({place}) rotate(-52)">{column}</text>')
    for j, row in enumerate(rows):
        y = top + CELL * j
        parts.append(f'<text x="{left - 6:.1f}" y="{y + CELL * 0.7:.1f}" text-anchor="end">{row}</text>')
        for i, column in enumerate(columns):
            weight = float(array[j, i])
            shade = min(max(weight, 0.0), 1.0) if np.isfinite(weight) else 0.0
            parts.append(
                f'<rect x="{left + CELL * i:.1f}" y="{y:.1f}" width="{CELL - 1}" height="{CELL - 1}" fill="#3b8eea" '
                f'fill-opacity="{0.04 + 0.96 * shade:.3f}"><title>{row} – {column}: {weight:.3f}</title></rect>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(label)}" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="{SIZE}">{"".join(parts)}</svg>'
    )


def _shown(word: str) -> str:
    """Without characters that no document may hold, and not longer than a label can be."""
    kept = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in word)
    return kept if len(kept) <= 24 else kept[:23] + "…"
