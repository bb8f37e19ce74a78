"""See where a model looks: `saccade inspect`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from saccade.commands.app import Device, Engine, Folder, app
from saccade.errors import SaccadeError


@app.command()
def inspect(
    folder: Folder,
    text: Annotated[str, typer.Argument(help="A sentence, one that the model can hold whole.")],
    target: Annotated[
        str | None, typer.Option(help="Look at this translation instead of the one that search finds.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="all, or numbers of layers: 2 or 1,3.")] = None,
    head: Annotated[str | None, typer.Option(help="all, or numbers of heads: 2 or 1,3.")] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            help="encoder, decoder (self-attention), cross, or all. Default: cross in the terminal, all in files."
        ),
    ] = None,
    n_best: Annotated[int, typer.Option(help="Look at so many translations, the best first.", min=1)] = 1,
    path: Annotated[int, typer.Option(help="Of these, the one to draw; a page and JSON hold all.", min=1)] = 1,
    alternatives: Annotated[int, typer.Option(help="Pieces named at each step.", min=0)] = 5,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept alive; 1 is greedy.", min=1)] = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML page that needs no network.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all the numbers as JSON.")] = False,
    device: Device = None,
    engine: Engine = "auto",
) -> None:
    """See where a model looks: its alignment, any head, how sure it was of each piece, and what else it considered."""
    from rich.console import Console

    from saccade.analysis.look import look_at
    from saccade.files import write_text, writing
    from saccade.folder import load
    from saccade.looking.figures import check_figure
    from saccade.looking.json import to_json
    from saccade.looking.maps import heads_of
    from saccade.looking.page import look_page
    from saccade.looking.pictures import save_look
    from saccade.looking.telling import draw_look

    in_terminal = html is None and png is None and not as_json
    layers, heads = _numbers("--layer", layer), _numbers("--head", head)
    stacks = _stacks(stack, in_terminal)
    if png is not None:
        check_figure(png)
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise SaccadeError(f"--html {html}: the page is an HTML file; give it a name that ends in .html")
    if path > (1 if target is not None else n_best):
        raise SaccadeError(f"--path {path}: there is only --n-best {n_best} to choose from; ask for more")
    search: dict[str, Any] = {} if beam is None else {"beam": beam}
    translator = load(folder, device, engine=engine)
    look = look_at(translator, text, target, layers, heads, n_best, alternatives, stacks=stacks, **search)
    if path > len(look.paths):
        raise SaccadeError(f"--path {path}: the search has found {len(look.paths)}; widen it with --beam")
    if as_json:
        typer.echo(to_json(look))
    if png is not None:
        save_look(look, png, path - 1)
        typer.echo(f"{png}", err=as_json)
    if html is not None:
        with writing(html, "choose another --html"):
            write_text(html, look_page(look))
        typer.echo(f"{html}", err=as_json)
    if in_terminal:
        chosen = heads_of(look, path - 1) if (layer, head, stack) != (None, None, None) else ()
        Console().print(draw_look(look, chosen, path - 1))


def _numbers(option: str, given: str | None) -> list[int] | None:
    """What `all`, `2` or `1,3` says; None: all."""
    if given is None or given == "all":
        return None
    try:
        return [int(number) for number in given.split(",")]
    except ValueError:
        raise SaccadeError(f"{option} {given}: give all, a number, or numbers with commas between them") from None


def _stacks(given: str | None, in_terminal: bool) -> list[str] | None:
    """What `--stack` says; None: all."""
    if given is None:
        return ["cross"] if in_terminal else None
    return None if given == "all" else given.split(",")
