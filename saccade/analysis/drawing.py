"""Charts and alignments as SVG text. Colours are the page's (`var(--one)`), so that they follow light and dark."""

from collections.abc import Sequence
from html import escape

import numpy as np

from saccade.looking.plots import Scale

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40
COLOURS = ("var(--one)", "var(--two)")
CHARACTER = 8.2  # width of a letter of the alignments, 13.5 pixels high

Points = Sequence[tuple[float, float]]


def _svg(width: float, height: float, body: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(label)}">{body}</svg>'
    )


def _axis(scale: Scale, label: str) -> str:
    """Horizontal lines with their numbers, and what they are."""
    parts = []
    for tick in scale.ticks(5):
        y = _down(scale, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(parts) + f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(label)}</text>'


def _down(scale: Scale, value: float) -> float:
    return TOP + (1 - float(scale.share(np.array([value]))[0])) * (HEIGHT - TOP - BOTTOM)


def lines(curves: Sequence[tuple[str, int, bool, Points]], label: str) -> str:
    """Curves: name, whose they are (0 or 1), whether dashed, points."""
    curves = [curve for curve in curves if curve[3]]
    if not curves:
        return '<p class="none">The folder has no log.</p>'
    x, y = (np.array([point[side] for curve in curves for point in curve[3]]) for side in (0, 1))
    across, up = Scale.over(x, False), Scale.over(y, False)
    parts = [_axis(up, label)]
    for tick in across.ticks(5):
        place = _right(across, tick)
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{tick:g}</text>')
    for name, whose, dashed, points in curves:
        path = " ".join(f"{_right(across, a):.1f},{_down(up, b):.1f}" for a, b in points)
        style = ' stroke-dasharray="5 4"' if dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[whose]}" stroke-width="2"{style}>'
            f"<title>{escape(name)}</title></polyline>"
        )
    return _svg(WIDTH, HEIGHT, "".join(parts), label)


def _right(scale: Scale, value: float) -> float:
    return LEFT + float(scale.share(np.array([value]))[0]) * (WIDTH - LEFT - RIGHT)


def bars(names: Sequence[str], series: Sequence[Sequence[float | None]], sizes: Sequence[int], label: str) -> str:
    """A bar for each group and folder; the numbers below are how many there are."""
    values = [value for each in series for value in each if value is not None]
    if not values:
        return '<p class="none">There is nothing to show.</p>'
    up = Scale.over(np.array([0.0, *values]), False)
    parts, room = [_axis(up, label)], (WIDTH - LEFT - RIGHT) / len(names)
    each = min(26.0, room * 0.8 / len(series))
    for place, name in enumerate(names):
        middle = LEFT + room * (place + 0.5)
        for whose, of_folder in enumerate(series):
            value = of_folder[place]
            if value is None:
                continue
            x, y = middle + (whose - len(series) / 2) * each, _down(up, value)
            height = _down(up, 0.0) - y
            parts.append(
                f'<rect x="{x + 0.75:.1f}" y="{y:.1f}" width="{each - 1.5:.1f}" height="{height:.1f}" rx="2" '
                f'fill="{COLOURS[whose]}"><title>{escape(name)}: {value:.1f} ({sizes[place]:,})</title></rect>'
            )
            parts.append(f'<text class="value" x="{x + each / 2:.1f}" y="{y - 3:.1f}">{value:.0f}</text>')
        below = HEIGHT - BOTTOM + 14
        parts.append(f'<text x="{middle:.1f}" y="{below}" text-anchor="middle">{escape(name)}</text>')
    return _svg(WIDTH, HEIGHT, "".join(parts), label)


def alignment(
    source: Sequence[str], target: Sequence[str], links: Sequence[tuple[int, int, float]], missed: Sequence[int]
) -> str:
    """Source words above, target words below, a line for each link, the surer the darker; ignored words are marked."""
    rows = []
    for words, y in ((source, 18), (target, 92)):
        x, places = 4.0, []
        for word in words:
            width = max(len(word), 1) * CHARACTER
            places.append(x + width / 2)
            x += width + 12
        rows.append((places, x, y))
    width = max(rows[0][1], rows[1][1])
    parts = []
    for s, t, sure in links:
        a, b = rows[0][0][s], rows[1][0][t]
        parts.append(
            f'<path class="link" d="M{a:.1f} 26 C{a:.1f} 52 {b:.1f} 52 {b:.1f} 78" '
            f'stroke-opacity="{0.25 + 0.75 * sure:.2f}">'
            f"<title>{escape(source[s])} – {escape(target[t])}: {sure:.2f}</title></path>"
        )
    for side, (words, (places, _, y)) in enumerate(zip((source, target), rows, strict=True)):
        for place, word in enumerate(words):
            style = ' class="word ignored"' if side == 0 and place in missed else ' class="word"'
            parts.append(f'<text{style} x="{places[place]:.1f}" y="{y}">{escape(word)}</text>')
    return f'<div class="scroll">{_svg(width, 102, "".join(parts), "alignment")}</div>'
