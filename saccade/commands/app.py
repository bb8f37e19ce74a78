"""What all commands have in common: the application, and arguments that many of them take."""

from pathlib import Path
from typing import Annotated

import typer

import saccade

app = typer.Typer(
    name="saccade",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(saccade.__version__)
        raise typer.Exit


@app.callback()
def common(
    asked: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Sequence-to-sequence learning with attention: pairs in, a translator out."""


WINDOW = 4096  # lines held at once: enough to sort by length, few enough to hold

Folder = Annotated[Path, typer.Argument(help="A folder that `saccade train` made.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. Default: a GPU if there is one.")]
Engine = Annotated[
    str,
    typer.Option(help="torch, ctranslate2 (see `saccade export`), or auto: the latter on a CPU, if it was exported."),
]
Source = Annotated[
    str | None,
    typer.Option(
        help="Source sentences, one a line (.gz is read as it is, - is standard input). Left out for a language model "
        "of one text."
    ),
]
OnRay = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Do it on a Ray cluster: HOST:PORT, ray://HOST:PORT or auto; without an address, on this machine.",
        metavar="[ADDRESS]",
    ),
]
