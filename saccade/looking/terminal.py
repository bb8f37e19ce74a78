"""An alignment as a heat map in the terminal: target words down the side, source words along the top.

           ┌ the
           │  ┌ black
           │  │  ┌ cat
      die [█] ·  ·
    Katze  ·  ░ [▓]

Each source word stands on a line of its own above its column, so it is written whole and the right way round in any
script. The shade says the weight with or without colours; brackets mark the strongest source word of each row.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len, set_cell_size
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from saccade.errors import SaccadeError

Weights = npt.NDArray[np.float64]

# Where one shade ends and the next begins: attention is often spread thin, so the low end is cut finer.
SHADE_BOUNDS = (0.05, 0.25, 0.5, 0.75)

# Blue to yellow is told apart by every common kind of colour blindness, and grows lighter all the way. The dark
# ground under each cell keeps the light end readable in a white terminal.
_WEAK, _STRONG, _GROUND = ColorTriplet(64, 100, 172), ColorTriplet(255, 234, 70), "#101828"

_CELL = 3  # a shade and the room for its brackets
_NARROWEST = 16
_TURNS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_SLOP = 1e-3  # sums of half-precision weights may pass 1 by this much


@dataclass(frozen=True)
class _Glyphs:
    """The characters a drawing is made of."""

    shades: str
    corner: str
    bar: str
    cut: str
    blank: str


_UNICODE = _Glyphs(shades="·░▒▓█", corner="┌", bar="│", cut="…", blank="␣")
_ASCII = _Glyphs(shades=".-+*#", corner=",", bar="|", cut="~", blank="_")


def draw_alignment(
    weights: npt.ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    width: int | None = None,
    title: str | None = None,
) -> RenderableType:
    """Draw `weights[target, source]`, each between 0 and 1, for `rich` to print.

    The drawing fills at most `width` columns, by default those of the terminal it is printed to: what does not fit
    side by side goes in blocks, one below the other, and a word that is too long ends in "…". NaN is drawn as "?".
    """
    array = _matrix(weights)
    if not rows or not columns:
        raise SaccadeError(f"nothing to draw: {len(rows)} target words (rows), {len(columns)} source words (columns)")
    if array.shape != (len(rows), len(columns)):
        raise SaccadeError(
            f"weights are {array.shape[0]} × {array.shape[1]}, but there are {len(rows)} target words (rows) "
            f"and {len(columns)} source words (columns)"
        )
    outside = np.argwhere((array < -_SLOP) | (array > 1 + _SLOP))
    if len(outside):
        row, column = outside[0]
        raise SaccadeError(
            f"weights[{row}, {column}]={array[row, column]:g} ({rows[row]!r}, {columns[column]!r}) is not between "
            "0 and 1; draw the weights after the softmax"
        )
    if width is not None and width < _NARROWEST:
        raise SaccadeError(f"width={width} is too narrow for a drawing; use {_NARROWEST} or more")
    return _Drawing(array, tuple(rows), tuple(columns), width, title)


def crosses(weights: npt.ArrayLike) -> int:
    """Count the pairs of target words whose strongest source words stand in the opposite order.

    0 for a translation word by word, n(n-1)/2 for one that reverses n words.
    """
    strongest = np.array([column for column in _strongest(_matrix(weights)) if column is not None], dtype=np.int64)
    return int(np.triu(strongest[:, None] > strongest[None, :], k=1).sum())


def merge_to_words(weights: npt.ArrayLike, target_words: Sequence[int], source_words: Sequence[int]) -> Weights:
    """Weights over pieces (T, S) as weights over words; `…_words[i]` is the number of the word that piece i is part of.

    A word is looked at as much as its pieces together (sum), and looks where its pieces look on average (mean): rows
    that summed to 1 still do.
    """
    array = _matrix(weights)
    if array.shape != (len(target_words), len(source_words)):
        raise SaccadeError(
            f"weights are {array.shape[0]} × {array.shape[1]}, but target_words names {len(target_words)} pieces "
            f"and source_words {len(source_words)}"
        )
    target, source = _word_numbers("target_words", target_words), _word_numbers("source_words", source_words)
    merged = _add_up(_add_up(array.T, source).T, target)
    return merged / np.bincount(target, minlength=len(merged))[:, None]


@dataclass(frozen=True)
class _Drawing:
    """The heat map, laid out when the width and the character set of the terminal are known."""

    weights: Weights
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    width: int | None
    title: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(min(self.width or options.max_width, options.max_width), _NARROWEST)
        glyphs = _ASCII if options.ascii_only else _UNICODE
        # One very long word must not push the map off the screen.
        longest = min(max(width // 4, 12), width // 3)
        rows = [_fit(_printable(word, options.encoding, glyphs), longest, glyphs) for word in self.rows]
        columns = [_fit(_printable(word, options.encoding, glyphs), longest, glyphs) for word in self.columns]
        margin = max(cell_len(word) for word in rows) + 1
        strongest = _strongest(self.weights)
        if self.title is not None:
            yield from Text(_printable(self.title, options.encoding, glyphs), style="bold").wrap(console, width)
        blocks = list(_blocks(columns, width - margin))
        for block in blocks:
            if len(blocks) > 1:
                caption = f"source words {block.start + 1} to {block.stop} of {len(columns)}"
                yield from Text(caption, style="dim italic").wrap(console, width)
            yield from _heading([columns[column] for column in block], margin, glyphs)
            for word, weights, best in zip(rows, self.weights, strongest, strict=True):
                line = _line(" " * (margin - 1 - cell_len(word)) + word + " ")
                for column in block:
                    line.append_text(_cell(float(weights[column]), column == best, glyphs))
                yield _left_to_right(line)
            if len(blocks) > 1:
                yield Text()
        yield from _legend(glyphs, with_nan=bool(np.isnan(self.weights).any())).wrap(console, width)


def _blocks(columns: Sequence[str], room: int) -> Iterator[range]:
    """Cut the columns where the next one, or the word that stands above it, would pass the right edge."""
    start = 0
    for column, word in enumerate(columns):
        needed = _CELL * (column - start) + len(" ┌ ") + cell_len(word)
        if needed > room and column > start:
            yield range(start, column)
            start = column
    yield range(start, len(columns))


def _heading(words: Sequence[str], margin: int, glyphs: _Glyphs) -> Iterator[Text]:
    for column, word in enumerate(words):
        line = _line(" " * (margin + 1))
        line.append((glyphs.bar + " " * (_CELL - 1)) * column + glyphs.corner + " ", style="dim")
        line.append(word)
        yield _left_to_right(line)


def _cell(weight: float, marked: bool, glyphs: _Glyphs) -> Text:
    if np.isnan(weight):
        return Text(" ? ", style=Style(color="white", bgcolor=_GROUND))
    shade = glyphs.shades[int(np.searchsorted(SHADE_BOUNDS, weight, side="right"))]
    colour = Color.from_triplet(blend_rgb(_WEAK, _STRONG, min(max(weight, 0.0), 1.0)))
    cell = Text(
        f"[{shade}]" if marked else f" {shade} ", style=Style(color="bright_white", bgcolor=_GROUND, bold=marked)
    )
    cell.stylize(Style(color=colour), 1, 2)
    return cell


def _legend(glyphs: _Glyphs, with_nan: bool) -> Text:
    bounds = [*(f"{bound:g}".lstrip("0") for bound in SHADE_BOUNDS), "1"]
    scale = "0" + "".join(f" {shade} {bound}" for shade, bound in zip(glyphs.shades, bounds, strict=True))
    return Text("   ".join([scale, "[]=strongest", *(["?=NaN"] if with_nan else [])]), style="dim")


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ignore")


def _left_to_right(line: Text) -> Text:
    """A terminal that reorders right-to-left text must turn the word, and leave the columns where they are."""
    if any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in line.plain):
        return _line("\N{LEFT-TO-RIGHT MARK}").append_text(line)
    return line


def _printable(word: str, encoding: str, glyphs: _Glyphs) -> str:
    """The word without anything that moves the cursor or that the terminal's encoding cannot write."""
    visible = "".join(
        character.encode("unicode_escape").decode("ascii") if _moves_text(character) else character
        for character in word
    )
    if not visible.strip():
        visible = glyphs.blank
    return visible.encode(encoding, "backslashreplace").decode(encoding)


def _moves_text(character: str) -> bool:
    """True for what ends a line, steers the terminal or turns the direction of all that follows."""
    return unicodedata.category(character) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(character) in _TURNS


def _fit(word: str, longest: int, glyphs: _Glyphs) -> str:
    if cell_len(word) <= longest:
        return word
    return set_cell_size(word, longest - 1).rstrip() + glyphs.cut


def _strongest(weights: Weights) -> list[int | None]:
    """The column each row is highest in; none for a row that looks nowhere."""
    known = np.nan_to_num(weights, nan=0.0)
    return [int(row.argmax()) if row.size and row.max() > 0 else None for row in known]


def _matrix(weights: npt.ArrayLike) -> Weights:
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 2:
        raise SaccadeError(f"weights have shape {array.shape}; expected two axes, (target words, source words)")
    return array


def _word_numbers(name: str, numbers: Sequence[int]) -> npt.NDArray[np.int64]:
    array = np.asarray(numbers, dtype=np.int64)
    present = set(array.tolist())
    if present != set(range(len(present))):
        raise SaccadeError(f"{name}={list(numbers)!r}: words are numbered from 0, and each needs a piece")
    return array


def _add_up(pieces: Weights, words: npt.NDArray[np.int64]) -> Weights:
    """Sum the rows of each word. Not a product with a 0/1 matrix: that would spread one NaN over every word."""
    summed = np.zeros((words.max(initial=-1) + 1, pieces.shape[1]))
    np.add.at(summed, words, pieces)
    return summed
