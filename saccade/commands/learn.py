"""To look around and to learn: `saccade corpus`, `settings`, `explain` and `demo`."""

import json
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from saccade.commands.app import app


@app.command()
def corpus(
    source: Annotated[str, typer.Argument(help="Locale of the source side, e.g. en.")] = "en",
    target: Annotated[str, typer.Argument(help="Locale of the target side, e.g. de.")] = "de",
    out: Annotated[Path, typer.Option(help="Write OUT.SOURCE and OUT.TARGET, e.g. dates.en and dates.de.")] = Path(
        "dates"
    ),
    pairs: Annotated[int, typer.Option(help="How many pairs.", min=1)] = 12_000,
    split: Annotated[str, typer.Option(help="train, valid or test: no value is in two of them.")] = "train",
    seed: Annotated[int, typer.Option(help="Another seed, other pairs.")] = 1,
) -> None:
    """Write pairs of the built-in corpus (dates, times, money, numbers in words) to two files."""
    from saccade.data import builtin
    from saccade.files import write_text, writing

    made = list(islice(builtin.pairs(source, target, seed=seed, split=split), pairs))  # type: ignore[arg-type]
    for language, lines in zip((source, target), zip(*made, strict=True), strict=True):
        path = out.with_name(f"{out.name}.{language}")
        with writing(path, "choose another --out"):
            write_text(path, "".join(line + "\n" for line in lines))
        typer.echo(f"{path}: {pairs:,} lines")


@app.command()
def settings(
    section: Annotated[
        str | None,
        typer.Argument(help="data, tokenizer, model, training or search; or one setting, section.key. Default: all."),
    ] = None,
    schema: Annotated[bool, typer.Option(help="Print a JSON schema, for editors.")] = False,
) -> None:
    """Print every setting with its default and a sentence on what it does (Markdown)."""
    from saccade.config import Config
    from saccade.reference import reference_page

    typer.echo(json.dumps(Config.model_json_schema(), indent=1) if schema else reference_page(section), nl=schema)


@app.command()
def explain(
    topic: Annotated[
        str | None,
        typer.Argument(help="scaling, positions, masking, heads or bottleneck. Default: say what each is about."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the plot to this .png, .svg or .pdf file too.")] = None,
    to_json: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers to this file; -: print them and nothing else.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other random numbers.")] = 1,
    steps: Annotated[
        int | None, typer.Option(help="Train for so many steps. Default: what shows the point in half a minute.", min=1)
    ] = None,
) -> None:
    """Show how attention works by an experiment that is run now: sentences, numbers and a plot."""
    from saccade.explain.show import run_explain

    run_explain(topic, out=out, to_json=to_json, seed=seed, steps=steps)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to make.")] = Path("runs/demo"),
    minutes: Annotated[
        float | None, typer.Option(help="Train for at most so many minutes; left out: until it knows its subject.")
    ] = None,
) -> None:
    """Train a small translator on built-in data and show what it does."""
    from saccade.demo import run_demo

    run_demo(out, minutes)
