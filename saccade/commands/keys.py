"""`saccade keys`: who may use a server."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from saccade.commands.app import app

keys = typer.Typer(help="API keys of `saccade serve --keys`: make, list and revoke them.", no_args_is_help=True)
app.add_typer(keys, name="keys")

File = Annotated[Path, typer.Option(help="The file of keys.")]
DEFAULT = Path("keys.json")


@keys.command()
def add(
    name: Annotated[str, typer.Option(help="Whose key it is; shown in logs and lists.")],
    file: File = DEFAULT,
    rate: Annotated[
        str | None, typer.Option(help="How often it may ask: 60/min, 5/s, 1000/hour. Default: no limit.")
    ] = None,
) -> None:
    """Make a key and print it, this once: the file keeps only its hash."""
    from saccade.serving.keys import add_key

    token = add_key(file, name, rate)
    Console(stderr=True, highlight=False).print(f"{file}: added {name}; this is the only time the key is shown")
    print(token)


@keys.command("list")
def list_(file: File = DEFAULT) -> None:
    """List names, rates and dates; the keys themselves are not kept."""
    from saccade.serving.keys import read_keys

    table = Table("name", "rate", "made", "hash begins with", box=None)
    for key in read_keys(file):
        table.add_row(key.name, key.rate or "no limit", key.created, key.hash[:8])
    Console(highlight=False).print(table)


@keys.command()
def revoke(name: Annotated[str, typer.Argument(help="As `list` shows it.")], file: File = DEFAULT) -> None:
    """Revoke a key: a server that is running refuses it from now on."""
    from saccade.serving.keys import revoke_key

    revoke_key(file, name)
    Console(stderr=True, highlight=False).print(f"{file}: revoked {name}")
