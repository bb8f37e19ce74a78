"""Plots in the terminal and as figures: readable without colour, within the width, the same bytes again."""

import io
import json
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from saccade.errors import SaccadeError
from saccade.looking import figures
from saccade.looking.charts import draw_plot
from saccade.looking.figures import save_figure
from saccade.looking.plots import Curves, HeatMap, Plot, Scale, Series

SQUARES = Curves(
    "squares",
    "number (count)",
    "its square (count)",
    (
        Series.of("measured", range(1, 9), [n * n for n in range(1, 9)]),
        Series.of("halved", range(1, 9), [n * n / 2 for n in range(1, 9)]),
        Series.of("theory", range(1, 9), [n * n for n in range(1, 9)], theory=True),
    ),
)
MAP = HeatMap.of("mask", ("output", "input"), [[1, 0], [0.01, 0.6]], "ab", "xy")
PLOT = Plot("two panels", (SQUARES, MAP))


def drawn(plot: Plot, width: int = 80, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, color_system=None, legacy_windows=False).print(draw_plot(plot))
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def test_every_series_has_its_own_marker_and_the_legend_names_it_without_colour():
    lines = drawn(Plot("", (SQUARES,)))
    assert lines[-1] == "● measured   ▲ halved   ┄┄ theory"
    chart = "\n".join(lines[:-1])
    assert chart.count("●") >= 6  # where both fall into one cell the later is seen
    assert chart.count("▲") == 8
    assert "number (count)" in chart
    assert "its square (count)" in chart


def test_a_rising_curve_rises():
    rows = [line for line in drawn(Plot("", (SQUARES,))) if "●" in line]
    assert [row.rindex("●") for row in rows] == sorted((row.rindex("●") for row in rows), reverse=True)


def test_an_axis_is_named_where_its_values_stand():
    flat = Curves("", "x", "y", (Series.of("a", [0, 10], [0, 10]),))
    lines = drawn(Plot("", (flat,)))
    assert next(line for line in lines if "●" in line).startswith("10 ┤")
    assert [line for line in lines if "●" in line][-2].startswith(" 0 ┤●")


def test_a_heat_map_tells_nothing_from_little():
    lines = drawn(Plot("", (MAP,)))
    assert [line.rstrip() for line in lines[-3:]] == ["a ██·", "b ░░▓▓", "· 0  ░▒▓█ to 1"]
    floored = HeatMap.of("mask", ("output", "input"), [[1, 0], [0.01, 0.6]], "ab", "xy", floor=0.1)
    assert drawn(Plot("", (floored,)))[-2].rstrip() == "b · ▓▓"


def test_a_terminal_without_unicode_gets_ascii():
    text = "\n".join(drawn(PLOT, encoding="ascii"))
    assert text.isascii()
    assert "o measured   x halved   .. theory" in text
    assert "rows: output, columns: input" in text


values = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


@settings(max_examples=60, deadline=None)
@given(
    points=st.lists(st.lists(st.tuples(values, values), min_size=1, max_size=30), min_size=1, max_size=6),
    cells=st.integers(1, 30),
    width=st.integers(24, 160),
    log=st.tuples(st.booleans(), st.booleans()),
)
def test_no_line_is_wider_than_the_terminal(points, cells, width, log):
    series = tuple(
        Series.of(f"series number {i}", [x for x, _ in row], [y for _, y in row]) for i, row in enumerate(points)
    )
    drawable = any(x > 0 and y > 0 for row in points for x, y in row)
    log_x, log_y = (each and drawable for each in log)
    curves = Curves("a title that is rather long for a panel", "x (unit)", "y (unit)", series, log_x, log_y)
    heat = HeatMap.of("map", ("row", "column"), np.zeros((3, cells)), range(3), range(cells))
    lines = drawn(Plot("plot", (heat, curves, heat, heat)), width)
    assert max(map(cell_len, lines)) <= width
    for i in range(len(series)):
        assert any(f"series number {i}"[: width - 4] in line for line in lines)


@settings(max_examples=100, deadline=None)
@given(low=st.floats(1e-6, 1e6), times=st.floats(1.01, 1e8), log=st.booleans(), most=st.integers(2, 12))
def test_ticks_are_few_and_on_the_axis(low, times, log, most):
    scale = Scale(low, low * times, log)
    ticks = scale.ticks(most)
    assert len(ticks) <= most
    assert ticks == sorted(set(ticks))
    assert all(-1e-6 <= share <= 1 + 1e-6 for share in scale.share(np.array(ticks)))


def test_what_an_axis_cannot_hold_is_left_out_and_an_empty_plot_is_refused():
    curves = Curves("t", "x", "y", (Series.of("a", [1, 2, 3], [0.0, 5.0, float("nan")]),), log_y=True)
    assert [part.tolist() for part in curves.points(curves.series[0])] == [[2.0], [5.0]]
    assert any("●" in line for line in drawn(Plot("", (curves,))))
    with pytest.raises(SaccadeError, match="plot 't': no point can be drawn"):
        Curves("t", "x", "y", (Series.of("a", [1], [-1.0]),), log_y=True).scales()


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(SaccadeError, match="series 'a' has 2 x and 1 y"):
        Series.of("a", [1, 2], [1])
    with pytest.raises(SaccadeError, match="2 row and 1 column names"):
        HeatMap.of("m", ("r", "c"), [[0, 1], [1, 0]], "ab", "x")
    with pytest.raises(SaccadeError, match="outside 0 … 1"):
        HeatMap.of("m", ("r", "c"), [[2.0]], "a", "x")


def test_a_figure_is_written_in_the_format_of_its_name(tmp_path):
    for suffix, start in ((".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        save_figure(PLOT, tmp_path / f"plot{suffix}")
        content = (tmp_path / f"plot{suffix}").read_bytes()
        assert content.startswith(start)
        save_figure(PLOT, tmp_path / f"again{suffix}")
        assert (tmp_path / f"again{suffix}").read_bytes() == content
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"two panels", "squares", "number (count)", "its square (count)", "measured", "theory", "output"} <= words


def test_a_figure_that_cannot_be_written_is_refused_with_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(SaccadeError, match=r"plot\.gif: .* \.png, \.svg, \.pdf"):
        save_figure(PLOT, tmp_path / "plot.gif")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SaccadeError, match="is a folder"):
        save_figure(PLOT, tmp_path / "folder.png")
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SaccadeError, match=r"need matplotlib; run: pip install 'saccade\[plots\]'"):
        save_figure(PLOT, tmp_path / "plot.png")


def test_the_command_prints_draws_and_writes(command, tmp_path):
    done = command("explain", "heads", "--steps", 2, "--out", tmp_path / "h.svg", "--json", tmp_path / "h.json")
    assert (done.status, done.err) == (0, "")
    assert "One head against eight" in done.out
    assert "● one head of 64" in done.out
    ElementTree.parse(tmp_path / "h.svg")
    written = json.loads((tmp_path / "h.json").read_text(encoding="utf-8"))
    assert (written["topic"], written["seed"], written["steps"]) == ("heads", 1, 2)
    printed = command("explain", "heads", "--steps", 2, "--json", "-")
    assert json.loads(printed.out) == written


def test_the_command_lists_its_topics_and_refuses_early(command, tmp_path):
    listed = command("explain")
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [
        "scaling",
        "positions",
        "masking",
        "heads",
        "bottleneck",
    ]
    helped = command("explain", "--help").out
    assert all(line.split()[0] in helped for line in listed.out.splitlines()[1:])
    unknown = command("explain", "bottlneck")
    assert unknown.status == 2
    assert "did you mean bottleneck?" in unknown.err
    wrong = command("explain", "bottleneck", "--out", tmp_path / "plot.bmp")
    assert wrong.status == 2
    assert "use one of .png, .svg, .pdf" in wrong.err
