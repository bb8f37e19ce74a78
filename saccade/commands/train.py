"""`saccade train`: pairs in, a folder out."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from saccade.commands.app import OnRay, app


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
    devices: Annotated[
        int, typer.Option(help="Processes on this machine, one a GPU, which share every batch.", min=1)
    ] = 1,
    restarts: Annotated[
        int, typer.Option(help="With --devices: how often to go on from the last checkpoint when one dies.", min=0)
    ] = 3,
    ray: OnRay = None,
) -> None:
    """Train a translator, or go on with one that was stopped."""
    from saccade import api

    started = "WORLD_SIZE" in os.environ  # torchrun has started the processes already
    if started or devices > 1:
        from saccade.distributed.launch import launch, one_voice

        with one_voice():
            api.settings_from(arguments or [], config, valid or (), clean)  # what is refused is said here, and once
        if not started:
            launch(sys.argv[1:], devices, restarts)
            return
    api.train(
        *(arguments or []),
        out=out,
        config=config,
        valid=valid or (),
        start_from=start_from,
        clean=clean,
        restart=restart,
        quiet=quiet,
        ray=ray,
    )


@app.command()
def prepare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Files and settings, as for `train`.", metavar="[FILES] [SECTION.KEY=VALUE]..."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("runs/model"),
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file of settings.")] = None,
    valid: Annotated[
        tuple[str, str] | None, typer.Option(help="Validation files, source and target. Default: held out.")
    ] = None,
    start_from: Annotated[Path | None, typer.Option("--from", help="Fine-tune this folder.")] = None,
    clean: Annotated[bool, typer.Option("--clean/--no-clean", help="Drop bad pairs, and say which.")] = True,
    restart: Annotated[bool, typer.Option(help="Throw away what is in the folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    ray: OnRay = None,
) -> None:
    """Clean and encode a corpus, and do not train: `saccade train` with the same arguments then begins at once."""
    from saccade import api

    api.prepare(
        *(arguments or []),
        out=out,
        config=config,
        valid=valid or (),
        start_from=start_from,
        clean=clean,
        restart=restart,
        quiet=quiet,
        ray=ray,
    )
