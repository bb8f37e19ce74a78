import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rich.cells import cell_len
from rich.console import Console

from saccade.errors import SaccadeError
from saccade.looking import crosses, draw_alignment, merge_to_words

SHADES = "·░▒▓█"


def lines_of(drawing, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(drawing)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def shade_of(weight):
    return SHADES[sum(weight >= bound for bound in (0.05, 0.25, 0.5, 0.75))]


def test_drawing_by_hand():
    weights = np.array([[0.9, 0.1, 0.0], [0.2, 0.2, 0.6]])
    assert lines_of(draw_alignment(weights, ["die", "Katze"], ["the", "black", "cat"], title="Words")) == [
        "Words",
        "       ┌ the",
        "       │  ┌ black",
        "       │  │  ┌ cat",
        "  die [█] ░  ·",
        "Katze  ░  ░ [▓]",
        "0 · .05 ░ .25 ▒ .5 ▓ .75 █ 1   []=strongest",
    ]


def test_shade_starts_at_its_bound():
    weights = np.array([[0.0, 0.049, 0.05, 0.249, 0.25, 0.5, 0.75, 1.0]])
    row = lines_of(draw_alignment(weights, ["x"], list("abcdefgh")))[8]
    assert row == "x  ·  ·  ░  ░  ▒  ▓  █ [█]"


def cells_of(drawing, labels, width):
    """The drawn cells of each row, three characters each, put together over the blocks."""
    cells = {label: [] for label in labels}
    for line in lines_of(drawing, width):
        label, _, rest = line.strip().partition(" ")
        if label in cells:
            rest = line[line.index(label) + len(label) + 1 :]
            cells[label] += [rest[i : i + 3].ljust(3) for i in range(0, len(rest), 3)]
    return [cells[label] for label in labels]


@given(
    weights=arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 14)),
        elements=st.floats(0, 1) | st.just(float("nan")),
    ),
    width=st.integers(16, 90),
)
@settings(max_examples=80, deadline=None)
def test_every_weight_is_drawn_once_at_any_width(weights, width):
    rows = [f"t{i}" for i in range(weights.shape[0])]
    columns = [f"word{i}" for i in range(weights.shape[1])]
    cells = cells_of(draw_alignment(weights, rows, columns), rows, width)
    for drawn, row in zip(cells, weights, strict=True):
        assert [cell[1] for cell in drawn] == ["?" if np.isnan(w) else shade_of(w) for w in row]
        marked = [column for column, cell in enumerate(drawn) if cell[0] == "["]
        known = np.nan_to_num(row)
        assert marked == ([int(known.argmax())] if known.max() > 0 else [])


@given(
    rows=st.lists(st.text(max_size=30), min_size=1, max_size=4),
    columns=st.lists(st.text(max_size=30), min_size=1, max_size=8),
    width=st.integers(16, 90),
)
@settings(max_examples=80, deadline=None)
def test_no_line_is_wider_than_asked_whatever_the_words(rows, columns, width):
    weights = np.full((len(rows), len(columns)), 1 / len(columns))
    for line in lines_of(draw_alignment(weights, rows, columns, width=width, title="a b " * 9), width=200):
        assert cell_len(line) <= width


def test_blocks_say_which_columns_they_hold():
    columns = [f"source{i}" for i in range(12)]
    lines = lines_of(draw_alignment(np.eye(12)[:1], ["target"], columns), width=40)
    assert [line for line in lines if line.startswith("source words")] == [
        "source words 1 to 8 of 12",
        "source words 9 to 12 of 12",
    ]
    assert all(any(line.endswith(f" {word}") for line in lines) for word in columns)


def test_a_shortened_word_shows_that_it_is():
    lines = lines_of(draw_alignment([[1.0]], ["Wahrscheinlichkeitsrechnung"], ["Donaudampfschifffahrt"]), width=40)
    assert lines[:2] == ["              ┌ Donaudampfs…", "Wahrscheinl… [█]"]


def test_width_asked_for_is_used_and_never_passes_the_terminal():
    columns = [f"source{i}" for i in range(12)]
    wide = lines_of(draw_alignment(np.eye(12), columns, columns), width=100)
    assert lines_of(draw_alignment(np.eye(12), columns, columns, width=500), width=100) == wide
    assert len(lines_of(draw_alignment(np.eye(12), columns, columns, width=30), width=100)) > len(wide)


def test_wide_characters_keep_the_columns_straight():
    lines = lines_of(draw_alignment(np.eye(2), ["黒い猫", "cat"], ["猫", "犬"]))
    assert lines[:4] == ["        ┌ 猫", "        │  ┌ 犬", "黒い猫 [█] ·", "   cat  · [█]"]
    cut = lines_of(draw_alignment([[1.0]], ["猫" * 20], ["x"]), width=40)[1]
    assert cut == "猫猫猫猫猫… [█]"


def test_right_to_left_words_do_not_turn_the_line():
    lines = lines_of(draw_alignment(np.eye(2), ["שלום", "cat"], ["سلام", "dog"]))
    mark = "\N{LEFT-TO-RIGHT MARK}"
    assert lines[:4] == [f"{mark}      ┌ سلام", "      │  ┌ dog", f"{mark}שלום [█] ·", " cat  · [█]"]


def test_a_row_that_looks_nowhere_has_no_strongest_word():
    lines = lines_of(draw_alignment([[0.0, 0.0], [0.0, 1.0]], ["a", "b"], ["c", "d"]))
    assert lines[2:4] == ["a  ·  ·", "b  · [█]"]


def test_nan_is_drawn_as_such_and_never_the_strongest():
    lines = lines_of(draw_alignment([[np.nan, 0.3], [np.nan, np.nan]], ["a", "b"], ["c", "d"]))
    assert lines[2:4] == ["a  ? [▒]", "b  ?  ?"]
    assert lines[4].endswith("[]=strongest   ?=NaN")


def test_words_cannot_move_the_cursor_nor_be_read_as_markup():
    lines = lines_of(draw_alignment([[1.0, 0.0, 0.0]], ["[red]"], ["\x1b[2J", "a\nb\u2028", "\u202e"]))
    assert lines[:4] == ["       ┌ \\x1b[2J", "       │  ┌ a\\nb\\u2028", "       │  │  ┌ \\u202e", "[red] [█] ·  ·"]


def test_a_word_of_spaces_can_be_seen():
    assert lines_of(draw_alignment([[1.0]], [""], [" "]))[:2] == ["   ┌ ␣", "␣ [█]"]


def test_a_terminal_without_unicode_gets_plain_characters():
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=40, color_system=None)
    console.print(draw_alignment([[0.9, 0.3], [0.1, 0.0]], ["für", "Wahrscheinlichkeit"], ["the", "猫"]))
    console.file.flush()
    assert [line.rstrip() for line in raw.getvalue().decode("ascii").splitlines()] == [
        "              , the",
        "              |  , \\u732b",
        "      f\\xfcr [#] +",
        "Wahrscheinl~ [-] .",
        "0 . .05 - .25 + .5 * .75 # 1",
        "[]=strongest",
    ]


def luminance(triplet):
    channels = [c / 255 for c in triplet]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_grow_lighter_with_the_weight_and_stand_out_from_their_ground():
    columns = [str(i) for i in range(11)]
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    segments = console.render(draw_alignment(np.linspace(0, 1, 11)[None], ["x"], columns))
    styles = [s.style for s in segments if s.text in tuple(SHADES) and s.style and s.style.bgcolor]
    contrast = [
        (luminance(style.color.get_truecolor()) + 0.05) / (luminance(style.bgcolor.get_truecolor()) + 0.05)
        for style in styles
    ]
    assert len(contrast) == 11
    assert contrast == sorted(contrast)
    assert contrast[0] > 3  # the least that accessibility guidelines allow for graphics
    assert contrast[-1] > 10


def test_colour_changes_no_character():
    drawing = draw_alignment([[0.7, 0.3]], ["a"], ["b", "c"], title="t")
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    text = "".join(segment.text for segment in console.render(drawing))
    assert [line.rstrip() for line in text.splitlines()] == lines_of(drawing)


@pytest.mark.parametrize(
    ("strongest", "expected"), [([0, 1, 2], 0), ([2, 1, 0], 3), ([0, 2, 1], 1), ([1, 1, 1], 0), ([2, 0, 1], 2)]
)
def test_crossings_by_hand(strongest, expected):
    assert crosses(np.eye(3)[strongest]) == expected


def test_rows_that_look_nowhere_cross_nothing():
    assert crosses([[0, 0, 1], [0, 0, 0], [np.nan, 1, 0]]) == 1
    assert crosses(np.zeros((0, 0))) == 0


@given(st.permutations(range(7)))
def test_crossings_are_the_inversions_of_a_permutation(order):
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :] if a > b]
    assert crosses(np.eye(7)[list(order)]) == len(pairs)


def test_merging_by_hand():
    pieces = [[0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]
    # The first two target pieces are one word, the last two source pieces another.
    assert merge_to_words(pieces, [0, 0, 1], [0, 1, 1]).tolist() == [[0.25, 0.75], [1.0, 0.0]]


@given(data=st.data(), weights=arrays(np.float64, (6, 5), elements=st.floats(0, 1)))
def test_merging_keeps_the_sum_of_a_row_and_one_piece_a_word_changes_nothing(data, weights):
    def words(pieces):
        return np.cumsum([0, *data.draw(st.lists(st.integers(0, 1), min_size=pieces - 1, max_size=pieces - 1))])

    target, source = words(6), words(5)
    merged = merge_to_words(weights, target.tolist(), source.tolist())
    sums = [weights.sum(axis=1)[target == word].mean() for word in range(target.max() + 1)]
    np.testing.assert_allclose(merged.sum(axis=1), sums, atol=1e-12)
    np.testing.assert_array_equal(merge_to_words(weights, range(6), range(5)), weights)


def test_merging_keeps_nan_where_it_was():
    merged = merge_to_words([[np.nan, 0.5, 0.5], [0.2, 0.3, 0.5]], [0, 1], [0, 0, 1])
    np.testing.assert_allclose(merged, [[np.nan, 0.5], [0.5, 0.5]])


def test_merging_nothing_gives_nothing():
    assert merge_to_words(np.zeros((0, 0)), [], []).shape == (0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_alignment(np.zeros(3), ["a"], ["b"]), "weights have shape (3,); expected two axes"),
        (lambda: draw_alignment(np.zeros((2, 3)), ["a"], ["b"] * 3), "weights are 2 × 3, but there are 1 target words"),
        (lambda: draw_alignment(np.zeros((0, 2)), [], ["a", "b"]), "nothing to draw: 0 target words (rows), 2 source"),
        (
            lambda: draw_alignment([[0.5, 1.7]], ["a"], ["b", "c"]),
            "weights[0, 1]=1.7 ('a', 'c') is not between 0 and 1",
        ),
        (lambda: draw_alignment([[-0.2]], ["a"], ["b"]), "weights[0, 0]=-0.2 ('a', 'b')"),
        (lambda: draw_alignment([[np.inf]], ["a"], ["b"]), "weights[0, 0]=inf"),
        (lambda: draw_alignment([[1.0]], ["a"], ["b"], width=15), "width=15 is too narrow for a drawing; use 16"),
        (lambda: crosses(np.zeros((1, 2, 3))), "weights have shape (1, 2, 3); expected two axes"),
        (lambda: merge_to_words(np.zeros((2, 2)), [0], [0, 1]), "2 × 2, but target_words names 1 pieces"),
        (lambda: merge_to_words(np.zeros((2, 1)), [0, 2], [0]), "target_words=[0, 2]: words are numbered from 0"),
        (lambda: merge_to_words(np.zeros((1, 1)), [0], [-1]), "source_words=[-1]: words are numbered from 0"),
    ],
)
def test_errors_name_the_value_and_the_remedy(call, message):
    with pytest.raises(SaccadeError) as caught:
        call()
    assert message in str(caught.value)


def test_rounding_beyond_one_is_forgiven():
    assert "[█]" in "\n".join(lines_of(draw_alignment(np.array([[1.0004, -0.0004]], np.float16), ["a"], ["b", "c"])))
