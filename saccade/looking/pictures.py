"""A look as a picture by matplotlib: the alignment, and a thumbnail for every head, on white."""

from collections.abc import Sequence
from pathlib import Path as File
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from saccade.errors import SaccadeError
from saccade.looking.figures import check_figure, importable, write_figure
from saccade.looking.look import STACKS, HeadWeights, Look
from saccade.looking.maps import Map, alignment_map, head_map, heads_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "Blues"  # nothing is white, all is dark: it holds in print, and for every kind of colour blindness
_THUMBNAIL, _CELL = 1.05, 0.34  # inches
_SMALLEST, _LARGEST = 3.2, 14.0
_STYLE = {"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "saccade", "text.usetex": False}


def draw_look(look: Look, path: int = 0) -> "Figure":
    """The alignment of a path, or its only head, and a grid of all heads: a row for each layer of each stack."""
    heads = heads_of(look, path)
    if not heads:
        raise SaccadeError(
            "there is nothing to draw: the model has no attention, or none of the chosen layers and heads is its own"
        )
    large = head_map(look, heads[0], path) if len(heads) == 1 else alignment_map(look, path)
    rows = [] if len(heads) == 1 else _grid(heads)
    width, height = (0.0, 0.0) if large is None else _size(large)
    columns = max((len(row) for row in rows), default=0)
    grid_width, grid_height = (columns * _THUMBNAIL + 0.9, len(rows) * (_THUMBNAIL + 0.22)) if rows else (0.0, 0.0)
    with _styled() as Figure:
        figure = Figure(figsize=(width + grid_width + 0.3, max(height, grid_height, 1.5) + 0.7), layout="constrained")
        figure.suptitle(_plain(shorten(f"{look.model}: {look.paths[path].target.text}", 100)), fontsize=11)
        sides = [share for share in (width, grid_width) if share]
        parts = iter(figure.subfigures(1, len(sides), squeeze=False, width_ratios=sides)[0])
        if large is not None:
            _heat_map(_upper(next(parts), height, max(height, grid_height)).subplots(), large)
        if rows:
            _thumbnails(next(parts), rows, columns)
    return figure


def draw_map(weights: npt.ArrayLike, rows: Sequence[str], columns: Sequence[str], title: str = "") -> "Figure":
    """One heat map."""
    import numpy as np

    drawn = Map(title, np.asarray(weights, dtype=np.float64), tuple(rows), tuple(columns))
    with _styled() as Figure:
        width, height = _size(drawn)
        figure = Figure(figsize=(width, height), layout="constrained")
        _heat_map(figure.subplots(), drawn)
    return figure


def save_look(look: Look, file: File, path: int = 0) -> None:
    """Write the picture of a look to a .png, .svg or .pdf file."""
    check_figure(file)
    write_figure(draw_look(look, path), file)


def _grid(heads: Sequence[HeadWeights]) -> list[list[HeadWeights]]:
    rows: dict[tuple[int, int], list[HeadWeights]] = {}
    for head in heads:
        rows.setdefault((STACKS.index(head.stack), head.layer), []).append(head)
    return [rows[place] for place in sorted(rows)]


def _upper(part: Any, height: float, whole: float) -> Any:
    """So much of a part of a figure, from the top; the rest stays empty."""
    if whole - height < _CELL:
        return part
    return part.subfigures(2, 1, height_ratios=[height, whole - height])[0]


def _thumbnails(part: Any, rows: list[list[HeadWeights]], columns: int) -> None:
    grid = part.subplots(len(rows), columns, squeeze=False)
    for of_row, heads in zip(grid, rows, strict=True):
        for axes in of_row[len(heads) :]:
            axes.set_axis_off()
        first = heads[0]
        of_row[0].set_ylabel(f"{first.stack} {first.layer}", rotation=0, ha="right", va="center")
        for axes, head in zip(of_row, heads, strict=False):
            axes.imshow(head.weights, cmap=COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"head {head.head}", fontsize=8, pad=2)
            for side in axes.spines.values():
                side.set(color="#999999", linewidth=0.6)


def _heat_map(axes: Any, drawn: Map) -> None:
    image = axes.imshow(drawn.weights, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_anchor("N")  # where the room is not the map's own shape
    axes.set_title(drawn.title, fontsize=10)
    for axis, names, turned in ((axes.xaxis, drawn.columns, 60), (axes.yaxis, drawn.rows, 0)):
        every = -(-len(names) // 48)
        shown = [_plain(name) for name in names[::every]]
        axis.set_ticks(range(0, len(names), every), shown, rotation=turned, ha="left" if turned else "right")
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=9)
    axes.set_xticks([x - 0.5 for x in range(1, len(drawn.columns))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(drawn.rows))], minor=True)
    if max(len(drawn.rows), len(drawn.columns)) <= 48:
        axes.grid(which="minor", color="#e5e5e5", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set(color="#999999", linewidth=0.6)
    axes.figure.colorbar(image, ax=axes, shrink=0.5, ticks=[0, 0.5, 1])


def _size(drawn: Map) -> tuple[float, float]:
    """Inches: a cell each, and room for the words."""
    longest = [max((len(name) for name in names), default=0) for names in (drawn.rows, drawn.columns)]
    width = len(drawn.columns) * _CELL + 0.085 * longest[0] + 1.3
    height = len(drawn.rows) * _CELL + 0.075 * longest[1] + 0.6
    return min(max(width, _SMALLEST), _LARGEST), min(max(height, _SMALLEST), _LARGEST)


def _plain(text: str) -> str:
    """A dollar sign would begin a formula."""
    return text.replace("$", r"\$")


class _styled:
    """matplotlib's figure without a window, in our style for as long as it lasts; what is missing is named."""

    def __enter__(self) -> Any:
        importable("pictures")
        import matplotlib
        from matplotlib.figure import Figure

        self.style = matplotlib.rc_context(_STYLE)
        self.style.__enter__()
        return Figure

    def __exit__(self, *error: Any) -> None:
        self.style.__exit__(*error)
