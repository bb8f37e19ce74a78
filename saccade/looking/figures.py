"""Plots as figures by matplotlib, to be projected: large letters, and colours that every common eye tells apart."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.files import writing, written_atomically
from saccade.looking.plots import Curves, HeatMap, Panel, Plot

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's palette, the darkest first; each series has a marker of its own besides.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = "o^sDP*"
_STYLE: dict[str, Any] = {
    "font.size": 15,
    "axes.titlesize": 16,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "lines.linewidth": 2.5,
    "lines.markersize": 8,
    "legend.frameon": False,
    "legend.fontsize": 13,
    "svg.fonttype": "none",  # text stays text: it can be searched, and edited on a slide
    "svg.hashsalt": "saccade",  # the same plot is the same file
}
_MOST_MARKERS = 20


def check_figure(path: Path) -> None:
    """Refuse a figure that could not be written, before the work that it would show."""
    if path.suffix.lower() not in FORMATS:
        raise SaccadeError(f"{path}: the end of the name says the format; use one of {', '.join(FORMATS)}")
    if path.is_dir():
        raise SaccadeError(f"{path}: is a folder; name a file in it")
    importable(f"{path}: figures")


def importable(what: str) -> None:
    """Say what to install where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SaccadeError(f"{what} need matplotlib; run: pip install 'saccade[plots]'")


def save_figure(plot: Plot, path: Path) -> None:
    """Write the plot to a .png, .svg or .pdf file."""
    check_figure(path)
    with _figure(plot) as figure:
        write_figure(figure, path)


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib, on white."""
    import matplotlib

    # How text and names are written is asked for when the file is, not when the figure is drawn.
    style = {name: _STYLE[name] for name in ("svg.fonttype", "svg.hashsalt")}
    with matplotlib.rc_context(style), writing(path), written_atomically(path) as part:
        # The date is left out of the file, so that the same numbers give the same bytes.
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
        figure.savefig(part, dpi=160, metadata=dates[path.suffix.lower()], facecolor="white")


@contextmanager
def _figure(plot: Plot) -> Iterator[Any]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        curves = sum(isinstance(panel, Curves) for panel in plot.panels)
        maps = len(plot.panels) - curves
        # Curves in one row, heat maps in the next, four to a row.
        rows = (1 if curves else 0) + -(-maps // 4)
        height = (4.6 if curves else 0) + 3.4 * -(-maps // 4)
        figure = Figure(figsize=(13, height + 0.5), layout="constrained")
        figure.suptitle(plot.title, fontsize=18, fontweight="bold")
        parts = list(figure.subfigures(rows, 1, squeeze=False)[:, 0])
        groups = [[panel for panel in plot.panels if isinstance(panel, Curves)]] if curves else []
        others = [panel for panel in plot.panels if isinstance(panel, HeatMap)]
        all_groups: list[list[Any]] = [*groups, *(others[start : start + 4] for start in range(0, maps, 4))]
        for part, group in zip(parts, all_groups, strict=True):
            images = []
            row = part.subplots(1, len(group), squeeze=False)[0]
            for axes, panel in zip(row, group, strict=True):
                images.append(_draw(axes, panel))
            if images[-1] is not None:
                part.colorbar(images[-1], ax=row, shrink=0.8, ticks=[0, 0.5, 1])
        yield figure


def _draw(axes: Any, panel: Panel) -> Any:
    """The image of a heat map, for a colour bar; None for curves."""
    return _curves(axes, panel) if isinstance(panel, Curves) else _heat_map(axes, panel)


def _curves(axes: Any, panel: Curves) -> None:
    measured = 0
    for series in panel.series:
        x, y = panel.points(series)
        if series.theory:
            axes.plot(x, y, color="#444444", linestyle="--", linewidth=1.8, label=series.name)
            continue
        axes.plot(
            x,
            y,
            color=COLOURS[measured % len(COLOURS)],
            marker=MARKERS[measured % len(MARKERS)],
            markevery=max(1, len(x) // _MOST_MARKERS),
            linestyle=("-", "-.", ":")[measured // len(COLOURS) % 3],
            label=series.name,
        )
        measured += 1
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    if not panel.log_x and all(x.is_integer() for series in panel.series for x in series.x):
        axes.locator_params(axis="x", integer=True)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend()


def _heat_map(axes: Any, panel: HeatMap) -> Any:
    import numpy as np

    values = np.array(panel.values)
    axes.set_facecolor("#eeeeee")  # what is masked out has no colour of the scale
    image = axes.imshow(np.ma.masked_where(values <= panel.floor, values), cmap="cividis", vmin=0, vmax=1)
    axes.set(title=panel.title, xlabel=panel.column_label, ylabel=panel.row_label)
    for axis, names in ((axes.xaxis, panel.columns), (axes.yaxis, panel.rows)):
        every = -(-len(names) // 12)
        axis.set_ticks(range(0, len(names), every), names[::every])
    axes.tick_params(length=0, labelsize=12)
    return image
