"""Corpora that a model writes: `saccade distill` and `backtranslate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.commands.app import Device, Engine, app
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.synthetic.job import Made

Out = Annotated[
    Path,
    typer.Option(
        help="Where to write: a .tsv or .jsonl file, or a name for two text files, NAME.SOURCE and NAME.TARGET."
    ),
]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(help="A folder with the same vocabulary, to write together; may be given more than once."),
]
Clean = Annotated[bool, typer.Option("--clean/--no-clean", help="Leave out bad pairs, and say which.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


@app.command()
def distill(
    teacher: Annotated[Path, typer.Argument(help="The folder that translates.")],
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="A corpus in the forms that `saccade train` takes (one text file: sources alone) and settings "
            "(`search.key=value`).",
            metavar="CORPUS... [SEARCH.KEY=VALUE]...",
        ),
    ],
    out: Out,
    ensemble: Ensemble = None,
    interpolate: Annotated[
        str | None,
        typer.Option(help="chrf or bleu: of all that the beam found, take what is most like the reference by it."),
    ] = None,
    least: Annotated[
        float, typer.Option(help="Leave out a pair whose translation is less like its reference: 0 to 100.", min=0)
    ] = 0.0,
    clean: Clean = True,
    device: Device = None,
    engine: Engine = "auto",
    quiet: Quiet = False,
) -> None:
    """Write a corpus whose targets a teacher wrote, for a student to learn from; goes on if it was stopped."""
    from saccade.display import Display
    from saccade.files import writing
    from saccade.synthetic.distillation import distill

    files, search = _told(arguments)
    with writing(out):
        made = distill(
            [teacher, *ensemble] if ensemble else teacher,
            files,
            out,
            interpolate=interpolate,  # type: ignore[arg-type]
            least=least,
            clean=clean,
            device=device,
            engine=engine,
            display=Display(quiet=quiet),
            **search,
        )
    _say(made, quiet, "saccade train {files} --out runs/student")


@app.command()
def backtranslate(
    reverse: Annotated[Path, typer.Argument(help="A folder that translates back, from the target language.")],
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="Text files of the target language, a sentence a line, and settings (`search.key=value`).",
            metavar="TEXT... [SEARCH.KEY=VALUE]...",
        ),
    ],
    out: Out,
    ensemble: Ensemble = None,
    tag: Annotated[str, typer.Option(help="One word before each source that was written.")] = "<BT>",
    tagged: Annotated[bool, typer.Option("--tagged/--untagged", help="Write the tag.")] = True,
    method: Annotated[str, typer.Option(help="beam, sample, or top-k: sample from the --top-k likeliest.")] = "beam",
    top_k: Annotated[int | None, typer.Option(help="For --method top-k, which draws from 10 otherwise.", min=1)] = None,
    clean: Clean = True,
    device: Device = None,
    engine: Engine = "auto",
    quiet: Quiet = False,
) -> None:
    """Write sources for text that has none, by translating it back; goes on if it was stopped."""
    from saccade.display import Display
    from saccade.files import writing
    from saccade.synthetic.back_translation import back_translate

    methods: dict[str, dict[str, Any]] = {
        "beam": {"method": "beam"},
        "sample": {"method": "sample"},
        "top-k": {"method": "sample", "top_k": top_k or 10},
    }
    if method not in methods:
        raise SaccadeError(f"--method {method}: is not known; use {', '.join(methods)}")
    if top_k is not None and method != "top-k":
        raise SaccadeError(f"--top-k {top_k}: is for --method top-k, not {method}; give that too, or leave it out")
    files, search = _told(arguments)
    with writing(out):
        made = back_translate(
            [reverse, *ensemble] if ensemble else reverse,
            files,
            out,
            tag=tag if tagged else "",
            clean=clean,
            device=device,
            engine=engine,
            display=Display(quiet=quiet),
            **(methods[method] | search),
        )
    term = f" 'tokenizer.terms=[{tag}]'" if tagged else ""
    _say(made, quiet, "saccade train REAL.SOURCE REAL.TARGET {files} --valid …" + term + " --out runs/both")


def _told(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Files, and settings of the search."""
    from saccade.config import SearchConfig, read_settings, split_arguments

    files, overrides = split_arguments(arguments)
    settings = read_settings(None, overrides)
    for section, values in settings.items():
        if section != "search":
            raise SaccadeError(f"{section}.{next(iter(values))}: only settings of the search are taken here")
    search: dict[str, Any] = settings.get("search", {})
    for name in search:
        if name not in SearchConfig.model_fields:
            raise SaccadeError(f"search.{name} is not known; see: saccade settings search")
    return files, search


def _say(made: "Made", quiet: bool, command: str) -> None:
    if quiet:
        return
    for line in made.report.lines():
        typer.echo(line, err=True)
    if made.unlike:
        typer.echo(f"left out {made.unlike:,} pairs whose translation is too unlike its reference (--least)", err=True)
    names = " ".join(map(str, made.paths))
    typer.echo(f"{names}: {made.written:,} pairs of {made.read:,} lines read", err=True)
    typer.echo(f"train on it: {command.format(files=names)}", err=True)
