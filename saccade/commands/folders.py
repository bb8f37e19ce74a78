"""What can be done with a folder: `saccade info`, `average` and `export`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from saccade.commands.app import Folder, app


@app.command()
def info(folder: Folder, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what is in a folder: model, parameters, data, scores."""
    from saccade.summary import summarise

    facts = summarise(folder)
    if as_json:
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        shown = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(f"[bold]{name}[/]", escape(shown))
    Console().print(table)


@app.command()
def average(
    inputs: Annotated[
        list[Path], typer.Argument(help="A folder in training (its last checkpoints), or files of weights.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make: a copy with the mean weights.")],
    last: Annotated[int, typer.Option(help="How many checkpoints of a folder to take.")] = 5,
) -> None:
    """Average checkpoints into a new folder."""
    from saccade.summary import average_into

    for line in average_into(inputs, out, last):
        typer.echo(line)


@app.command()
def export(
    folder: Folder,
    to: Annotated[str, typer.Option(help="ctranslate2, huggingface or onnx.")],
    quantization: Annotated[
        str | None,
        typer.Option(help="For ctranslate2: float32, int8, int16, bfloat16, float16, … Default: float32."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to make. Default: in FOLDER, named after --to.")] = None,
    verify: Annotated[
        str | None, typer.Option(help="Source sentences to verify it with. Default: FOLDER's validation set.")
    ] = None,
) -> None:
    """Hand a model over to another program, verified token for token before it is called good."""
    from saccade.export.run import export as run_export

    run_export(folder, to, out, quantization, verify)
