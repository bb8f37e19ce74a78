"""A model on one page: `saccade report`."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from saccade.commands.app import Device, app
from saccade.errors import SaccadeError


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="A folder, or two to set side by side.")],
    data: Annotated[tuple[str, str], typer.Option(help="Sentences and their references.")],
    out: Annotated[Path, typer.Option(help="The page to write; a .json file beside it holds the numbers.")] = Path(
        "report.html"
    ),
    pairs: Annotated[int, typer.Option(help="Of --data, so many pairs are translated.", min=1)] = 1000,
    counts: Annotated[
        str | None,
        typer.Option(help="Target text of the training, to count how often words came up. Default: the references."),
    ] = None,
    device: Device = None,
) -> None:
    """Diagnose a model on one page: learning curves, scores by length, frequency and position, its worst sentences."""
    from saccade.analysis.diagnosis import diagnose
    from saccade.analysis.page import page
    from saccade.commands.align import read_pairs
    from saccade.data.lines import read_lines
    from saccade.display import Display
    from saccade.evaluation.metrics import compare_systems, tokenizer_for
    from saccade.files import write_text, writing

    if len(folders) > 2:
        raise SaccadeError(f"{len(folders)} folders: a report is of one, or of two side by side; name fewer")
    if out.suffix != ".html":
        raise SaccadeError(f"{out}: the page is an HTML file; give it a name that ends in .html")
    text = list(islice(read_pairs(*data), pairs))
    if not text:
        raise SaccadeError(f"{data[0]}: empty; give sentences to translate")
    sources, references = ([pair[side] for pair in text] for side in (0, 1))
    counted = Counter(word for line in (read_lines(counts) if counts else references) for word in line.split())
    display = Display()
    found = [diagnose(folder, sources, references, counted, device, display) for folder in folders]
    said: list[str] = []
    if len(found) == 2:
        one, other = ([sentence.translation for sentence in each.sentences] for each in found)
        tokenize = tokenizer_for("", references)
        compared = compare_systems(one, other, references, metrics=("bleu", "chrf"), samples=300, tokenize=tokenize)
        said = [f"{found[0].name} → {found[1].name}: {line}" for line in compared]
    numbers = {"folders": [each.to_dict() for each in found], "comparison": said}
    with writing(out, "choose another --out"):
        write_text(out.with_suffix(".json"), json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
        write_text(out, page(found, said))
    typer.echo(f"{out}")
