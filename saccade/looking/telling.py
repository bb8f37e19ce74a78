"""A look in the terminal: what was written, where the model looked, how sure it was, what else it considered."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from saccade.looking.look import HeadWeights, Look, Path
from saccade.looking.maps import alignment_map, head_map
from saccade.looking.terminal import draw_alignment

NO_ATTENTION = "The model has no attention over the source: there is no alignment to draw."
NOTHING_WRITTEN = "Nothing was written: there is no alignment to draw."


def draw_look(look: Look, heads: Sequence[HeadWeights] = (), path: int = 0) -> RenderableType:
    """The look for `rich` to print: maps of the given heads or, where there are none, the alignment."""
    return Group(*_parts(look, heads, path))


def _parts(look: Look, heads: Sequence[HeadWeights], path: int) -> Iterator[RenderableType]:
    shown = look.paths[path]
    yield Text(look.source.text)
    yield Text(shown.target.text, style="bold")
    for head in heads:
        drawn = head_map(look, head, path)
        yield Text()
        yield draw_alignment(drawn.weights.clip(0, 1), drawn.rows, drawn.columns, title=drawn.title)
    if not heads:
        alignment = alignment_map(look, path)
        yield Text()
        if alignment is None:
            yield Text(NOTHING_WRITTEN if shown.heads else NO_ATTENTION, style="dim")
        else:
            yield draw_alignment(alignment.weights.clip(0, 1), alignment.rows, alignment.columns)
    yield Text()
    yield steps_table(shown)
    if len(look.paths) > 1:
        yield Text()
        yield paths_table(look.paths)


def steps_table(path: Path) -> Table:
    """A row for each piece: how likely it was, and the likeliest others."""
    table = _table("piece", "probability", "likeliest others")
    for piece, step in zip(path.target.pieces, path.steps, strict=True):
        others = [(other, p) for other, p in step.alternatives if other != piece]
        said = Text("  ").join(Text.assemble(other, (f" {p:.3f}", "dim")) for other, p in others)
        table.add_row(Text(piece), Text.assemble(f"{step.probability:.3f} ", (_bar(step.probability), "cyan")), said)
    return table


def paths_table(paths: Sequence[Path]) -> Table:
    """The n-best list."""
    table = _table("path", "log-probability", "translation")
    for number, path in enumerate(paths, start=1):
        table.add_row(str(number), f"{path.score:.3f}", Text(path.target.text))
    return table


def _bar(share: float) -> str:
    """Ten characters at most; the number beside it says the same."""
    return "#" * round(10 * share)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
