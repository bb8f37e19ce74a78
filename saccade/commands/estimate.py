"""`saccade estimate`: what a run would need, before it is started."""

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.commands.app import app


@app.command()
def estimate(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="A recipe (YAML), corpus files and settings, as for `saccade train`. No files: the recipe's, or the "
            "built-in corpus.",
            metavar="[RECIPE.yaml] [FILES] [SECTION.KEY=VALUE]...",
        ),
    ] = None,
    devices: Annotated[int, typer.Option(help="As if so many devices like this one shared every batch.", min=1)] = 1,
    clean: Annotated[bool, typer.Option("--clean/--no-clean", help="Drop bad pairs, as in training.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how much memory and time a run takes, and in what batches, by trying real ones; nothing is kept."""
    from saccade.api import settings_from
    from saccade.display import Display
    from saccade.preflight import preflight

    given = list(arguments or [])
    recipe = Path(given.pop(0)) if given and given[0].endswith((".yaml", ".yml")) else None
    found = preflight(settings_from(given, recipe, clean=clean), devices, Display(quiet=as_json))
    typer.echo(json.dumps(found.facts(), indent=1) if as_json else "\n".join(found.lines()))
