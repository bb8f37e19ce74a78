"""The figures that made the field move, as SVG: score against length, alignments, loss curves, cost against length."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saccade.comparing.plan import Plan
from saccade.comparing.table import JUDGED
from saccade.errors import SaccadeError
from saccade.files import written_atomically

if TYPE_CHECKING:
    from saccade.comparing.table import Line

# Okabe & Ito's colours, told apart by every common kind of colour blindness; dashes and marks say the same again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")
DASHES = ("-", "--", "-.", ":")
MARKS = "osD^vPX*"


def draw_figures(lines: Sequence["Line"], plan: Plan, folder: Path) -> dict[str, Path]:
    """Draw what there is to draw; the title and the file of each."""
    plots = _pyplot()
    drawn = {
        **{
            f"{name[0].upper()}{name[1:]} against source length": _curves(
                plots,
                [(line.name, [(p["words"], p[metric]) for p in line.lengths if metric in p]) for line in lines],
                "source length (words)",
                name,
                folder / f"{metric}-by-length.svg",
            )
            for metric, name in JUDGED.items()
        },
        "Validation loss against target tokens": _curves(
            plots,
            [(line.name, [(p["tokens"] / 1e6, p["loss"]) for p in line.curve]) for line in lines],
            "target tokens learned from (millions)",
            "validation loss (nats a token of its own vocabulary)",
            folder / "loss-curves.svg",
            highest=3.0,
        ),
        "Cost of a training step against length": _curves(
            plots,
            [(line.name, [(p["length"], p["ms_per_1000"]) for p in line.cost]) for line in lines],
            "length of source and target (pieces)",
            "ms for 1,000 target tokens",
            folder / "cost-by-length.svg",
            logarithmic=True,
        ),
        "One sentence as every mechanism aligns it": _alignments(plots, lines, folder / "alignments.svg"),
    }
    return {title: path for title, path in drawn.items() if path is not None}


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise SaccadeError("figures need matplotlib, which is not installed: pip install 'saccade[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plots

    plots.rcParams.update({"svg.hashsalt": "saccade", "font.size": 10, "axes.spines.top": False})
    plots.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3})
    # Names and words are no formulas, and whoever opens the figure has the fonts for them.
    plots.rcParams.update({"text.parse_math": False, "svg.fonttype": "none"})
    return plots


def _curves(
    plots: Any,
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    x: str,
    y: str,
    path: Path,
    *,
    logarithmic: bool = False,
    highest: float | None = None,
) -> Path | None:
    """One line a row; `highest` cuts the axis at so many times the lowest value."""
    series = [(name, points) for name, points in series if points]
    if not series:
        return None
    figure, axes = plots.subplots(figsize=(9, 5), layout="constrained")
    for number, (name, points) in enumerate(series):
        axes.plot(
            *zip(*points, strict=True),
            label=name,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            marker=MARKS[number % len(MARKS)],
            markersize=4,
        )
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(plots.matplotlib.ticker.LogFormatter(minor_thresholds=(2, 0.5)))
    if highest is not None:
        lowest = min(value for _, points in series for _, value in points)
        axes.set_ylim(0.95 * lowest, min(highest * lowest, axes.get_ylim()[1]))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return _save(plots, figure, path)


def _alignments(plots: Any, lines: Sequence["Line"], path: Path) -> Path | None:
    """A heat map for each row that attends: target words down, source words across."""
    shown = [(line.name, line.drawn) for line in lines if line.drawn is not None]
    if not shown:
        return None
    across = min(4, len(shown))
    down = -(-len(shown) // across)
    figure, grid = plots.subplots(down, across, figsize=(3.4 * across, 3.2 * down), layout="constrained", squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (name, drawn) in zip(grid.flat, shown, strict=False):
        axes.set_axis_on()
        axes.imshow(np.array(drawn["weights"]), cmap="cividis", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(drawn["source"])), drawn["source"], rotation=90, fontsize=7)
        axes.set_yticks(range(len(drawn["target"])), drawn["target"], fontsize=7)
        axes.set_title(name, fontsize=9)
        axes.grid(False)
    return _save(plots, figure, path)


def _save(plots: Any, figure: Any, path: Path) -> Path:
    with written_atomically(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(part, format="svg", metadata={"Date": None})
    plots.close(figure)
    return path
