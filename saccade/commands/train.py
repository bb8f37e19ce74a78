"""`saccade train`: pairs in, a folder out."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.commands.app import app


@app.command(epilog="All settings, a sentence each: `saccade settings`; of one section: `saccade settings training`.")
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Corpus files (source target, one text file for a language model, or TSV, JSONL, Parquet; `.gz` too; "
            "`-` is TSV on standard input; `hub:NAME` a public dataset) and settings (`section.key=value`). No files: "
            "the built-in corpus.",
            metavar="[FILES] [SECTION.KEY=VALUE]...",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to make.")] = Path("runs/model"),
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file of settings.")] = None,
    valid: Annotated[
        tuple[str, str] | None, typer.Option(help="Validation files, source and target. Default: held out.")
    ] = None,
    start_from: Annotated[Path | None, typer.Option("--from", help="Fine-tune this folder.")] = None,
    clean: Annotated[bool, typer.Option("--clean/--no-clean", help="Drop bad pairs, and say which.")] = True,
    restart: Annotated[bool, typer.Option(help="Throw away what is in the folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Train a translator, or go on with one that was stopped."""
    from saccade import api

    api.train(
        *(arguments or []),
        out=out,
        config=config,
        valid=valid or (),
        start_from=start_from,
        clean=clean,
        restart=restart,
        quiet=quiet,
    )
