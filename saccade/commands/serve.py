"""`saccade serve`: folders over HTTP, and a page to look at them."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.commands.app import Device, Engine, app
from saccade.errors import SaccadeError

DEMO = Path("runs/demo")


@app.command()
def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders that `saccade train` made. None: the demo's, trained first if there is none."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but 127.0.0.1 is open to others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")] = 8000,
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in a browser. Default: if there is a screen.")
    ] = None,
    watch: Annotated[Path | None, typer.Option(help="Show this run live while it is training.")] = None,
    engine: Engine = "auto",
    device: Device = None,
    memory: Annotated[float, typer.Option(help="GB that loaded models may take; those long unused leave.")] = 4.0,
    processes: Annotated[
        int | None,
        typer.Option(help="Processes of each model. Default: one a core for small models, at most 4; else one."),
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="A file of API keys; requests without one are refused.")] = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Let anyone in who can reach a host that is not loopback.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name that requests may ask for, as behind a proxy; may be given again.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Requests that an address without a key may make: 60/min, 5/s, 1000/hour.")
    ] = None,
    cors: Annotated[list[str] | None, typer.Option(help="An origin whose pages may call; may be given again.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that a request may take.")] = 60.0,
    patience: Annotated[
        float, typer.Option(help="Seconds that a newcomer waits for a batch to be done before it joins it midway.")
    ] = 2.0,
    max_waiting: Annotated[int, typer.Option(help="Sentences that may wait; beyond it requests are refused.")] = 4096,
    cache: Annotated[float, typer.Option(help="MB of recent answers to keep; 0: none.")] = 32.0,
    log: Annotated[bool, typer.Option("--log/--no-log", help="Write a line of JSON for each request.")] = True,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write users' texts into the log.")] = False,
) -> None:
    """Serve folders over HTTP: LibreTranslate's protocol, one of its own, and a page."""
    try:
        from saccade.serving.remote import possible
        from saccade.serving.run import demo_folder, serve_folders
        from saccade.serving.settings import settings_of
    except ModuleNotFoundError as missing:
        raise SaccadeError(f"saccade serve needs {missing.name}: pip install 'saccade[serve]'") from missing

    settings = settings_of(
        host=host,
        port=port,
        engine=engine,
        device=device,
        processes=processes if possible() else 0,
        memory=memory,
        watch=watch,
        keys=keys,
        without_keys=without_keys,
        hosts=allowed_host or [],
        rate=rate,
        cors=cors or [],
        time_limit=time_limit,
        patience=patience,
        max_waiting=max_waiting,
        cache=cache,
        log_requests=log,
        log_texts=log_texts,
    )
    # A run that is watched is served too, as soon as it translates.
    chosen = folders or ([demo_folder(DEMO)] if watch is None else [])
    serve_folders(chosen, settings, open_page)
