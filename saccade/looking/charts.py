"""Plots in the terminal: curves in braille dots with a marker a series, heat maps in shades.

Nothing is told by colour alone: each series has its own marker, which the legend names, and a shade is its value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from saccade.looking.plots import Curves, HeatMap, Panel, Plot, Scale, Series, Values

HEIGHT = 12  # rows of a chart
_WIDEST, _NARROWEST = 72, 24  # columns of a chart
_GAP = 2
_BRAILLE = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class _Glyphs:
    """The characters a chart is made of."""

    markers: str
    theory: str
    tick: str
    side: str
    corner: str
    floor: str
    shades: str


_UNICODE = _Glyphs(markers="●▲■◆✚○", theory="┄", tick="┤", side="│", corner="└", floor="─", shades="·░▒▓█")
_ASCII = _Glyphs(markers="ox+*#@", theory=".", tick="+", side="|", corner="+", floor="-", shades=".-+*#")


@dataclass(frozen=True)
class _Block:
    """A drawn panel: lines, none wider than `width`."""

    lines: list[Text]
    width: int


def draw_plot(plot: Plot) -> RenderableType:
    """The plot for `rich` to print, laid out for the width and the characters of the terminal."""
    return _Chart(plot)


@dataclass(frozen=True)
class _Chart:
    plot: Plot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = _ASCII if options.ascii_only else _UNICODE
        room = max(options.max_width, _NARROWEST)
        yield from Text(self.plot.title, style="bold").wrap(console, room)
        row: list[_Block] = []
        for block in (_draw(panel, room, glyphs) for panel in self.plot.panels):
            if row and sum(each.width + _GAP for each in row) + block.width > room:
                yield from _side_by_side(row)
                row = []
            row.append(block)
        yield from _side_by_side(row)


def _draw(panel: Panel, room: int, glyphs: _Glyphs) -> _Block:
    return _curves(panel, room, glyphs) if isinstance(panel, Curves) else _heat_map(panel, room, glyphs)


def _side_by_side(blocks: list[_Block]) -> Iterator[Text]:
    yield Text()
    for i in range(max(len(block.lines) for block in blocks)):
        line = _line("")
        for block in blocks:
            part = block.lines[i] if i < len(block.lines) else _line("")
            line.append_text(part).append(" " * (block.width + _GAP - part.cell_len))
        line.rstrip()
        yield line


def _curves(panel: Curves, room: int, glyphs: _Glyphs) -> _Block:
    across, upward = panel.scales()
    labels = {HEIGHT - 1 - _cell(upward, tick, HEIGHT): f"{tick:g}" for tick in upward.ticks(5)}
    margin = max(map(len, labels.values())) + 1
    width = min(room, _WIDEST)
    columns = max(width - margin - 2, 8)
    cells = _canvas(panel, (across, upward), columns, glyphs)
    lines = [_line(_cut(panel.title, width), "bold"), _line(_cut(panel.y_label, width), "dim")]
    for number, row in enumerate(cells):
        label = labels.get(number, "")
        line = _line(label.rjust(margin - 1) + " " + (glyphs.tick if label else glyphs.side))
        for character, style in row:
            line.append(character, style)
        lines.append(line)
    lines.append(_line(" " * margin + glyphs.corner + glyphs.floor * columns))
    lines.append(_line(" " * (margin + 1) + _under(across, columns)))
    lines.append(_line(" " * (margin + 1) + _cut(panel.x_label, columns).center(columns).rstrip(), "dim"))
    lines += _legend(panel, width, glyphs)
    return _Block(lines, width)


def _canvas(panel: Curves, scales: tuple[Scale, Scale], columns: int, glyphs: _Glyphs) -> list[list[tuple[str, str]]]:
    """Characters and styles, top row first: dots of all curves, then the markers over them."""
    dots = np.zeros((HEIGHT * 4, columns * 2), dtype=bool)
    marks: dict[tuple[int, int], tuple[str, str]] = {}
    for number, series in enumerate(panel.series):
        x, y = panel.points(series)
        right = np.rint(scales[0].share(x) * (columns * 2 - 1))
        down = np.rint((1 - scales[1].share(y)) * (HEIGHT * 4 - 1))
        _trace(dots, right, down, dashed=series.theory)
        if series.theory:
            continue
        every = max(1, round(len(x) * 5 / columns))  # so many points as leave the curve in sight
        for i in range(number % every, len(x), every):
            marks[int(down[i]) // 4, int(right[i]) // 2] = _marker(panel, series, glyphs)
    rows = []
    for top in range(HEIGHT):
        row = []
        for left in range(columns):
            cell = dots[top * 4 : top * 4 + 4, left * 2 : left * 2 + 2]
            dotted = chr(0x2800 + int(_BRAILLE[cell].sum())) if glyphs is _UNICODE else "."
            row.append(marks.get((top, left), (dotted if cell.any() else " ", "")))
        rows.append(row)
    return rows


def _trace(dots: np.ndarray, right: Values, down: Values, dashed: bool) -> None:
    """Set the dots of straight lines from point to point."""
    drawn = 0
    for (x0, y0), (x1, y1) in pairwise(zip(right, down, strict=True)):
        length = int(max(abs(x1 - x0), abs(y1 - y0), 1))
        for step in range(length + 1):
            drawn += 1
            if dashed and drawn % 6 > 2:
                continue
            dots[round(y0 + (y1 - y0) * step / length), round(x0 + (x1 - x0) * step / length)] = True


def _marker(panel: Curves, series: Series, glyphs: _Glyphs) -> tuple[str, str]:
    if series.theory:
        return glyphs.theory * 2, ""
    number = [each for each in panel.series if not each.theory].index(series)
    return glyphs.markers[number % len(glyphs.markers)], _COLOURS[number % len(_COLOURS)]


def _legend(panel: Curves, width: int, glyphs: _Glyphs) -> list[Text]:
    lines: list[Text] = []
    for series in panel.series:
        marker, style = _marker(panel, series, glyphs)
        entry = _line(marker, style).append(" " + _cut(series.name, width - 4), "")
        if lines and lines[-1].cell_len + 3 + entry.cell_len <= width:
            lines[-1].append("   ").append_text(entry)
        else:
            lines.append(entry)
    return lines


def _under(scale: Scale, columns: int) -> str:
    """The numbers under an axis, each centred below its place, as many as do not touch."""
    line = ""
    for tick in scale.ticks(max(2, columns // 12)):
        label = f"{tick:g}"
        place = max(0, _cell(scale, tick, columns) - len(label) // 2)
        place = min(place, columns - len(label))
        if not line or place > len(line) + 1:
            line = line.ljust(place) + label
    return line


def _cell(scale: Scale, value: float, cells: int) -> int:
    return min(cells - 1, max(0, round(float(scale.share(np.array([value]))[0]) * (cells - 1))))


def _heat_map(panel: HeatMap, room: int, glyphs: _Glyphs) -> _Block:
    """Two characters a cell, so that a square is a square; every name that fits stands above its column."""
    margin = max(map(cell_len, panel.rows)) + 1
    cell = 2 if max(map(cell_len, panel.columns)) < 2 else 3
    fits = max(1, (room - margin) // cell)
    lines = [_line(_cut(panel.title, room), "bold"), _line(_cut(f"{panel.row_label} ↓ {panel.column_label} →", room))]
    if glyphs is _ASCII:
        lines[1] = _line(_cut(f"rows: {panel.row_label}, columns: {panel.column_label}", room))
    for start in range(0, len(panel.columns), fits):
        shown = slice(start, start + fits)
        lines.append(_line(" " * margin + "".join(_cut(name, cell).ljust(cell) for name in panel.columns[shown])))
        for name, values in zip(panel.rows, panel.values, strict=True):
            line = _line(name.rjust(margin - 1) + " ")
            for value in values[shown]:
                shade = glyphs.shades[0] if value <= panel.floor else glyphs.shades[1 + min(3, int(value * 4))]
                line.append(shade + " " * (cell - 1) if value <= panel.floor else shade * 2 + " " * (cell - 2))
            line.rstrip()
            lines.append(line)
    legend = f"{glyphs.shades[0]} {panel.floor:g}  {glyphs.shades[1:]} to 1"
    lines.append(_line(_cut(legend, room), "dim"))
    return _Block(lines, max(line.cell_len for line in lines))


def _line(text: str, style: str = "") -> Text:
    line = Text(no_wrap=True, overflow="ignore")
    return line.append(text, style) if text else line


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(width, 0))
