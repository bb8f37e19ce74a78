"""A server as a process: it says where it is, and ends well when it is told to."""

import asyncio
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.folder import CONFIG, RECORD, WEIGHTS
from saccade.serving.app import create_app
from saccade.serving.connections import Connection
from saccade.serving.logs import log_to_stderr
from saccade.serving.loops import quickest_loop, settled
from saccade.serving.security import check_exposure
from saccade.serving.server import Server
from saccade.serving.settings import ServingSettings


def demo_folder(folder: Path) -> Path:
    """The demo's folder, trained now if there is none; one whose training was broken off knows next to nothing."""
    if not all((folder / name).exists() for name in (CONFIG, WEIGHTS, RECORD)):
        from saccade.demo import train_demo

        Display().say(f"{folder}: no finished model yet; training the demo, about a minute")
        try:
            train_demo(folder, restart=False)
        except SaccadeError:  # what is there is no demo that could be gone on with
            train_demo(folder)
    return folder


def serve_folders(folders: Sequence[Path], settings: ServingSettings, open_page: bool | None = None) -> None:
    """Serve until a signal comes."""
    check_exposure(settings)
    server = Server(folders, settings)
    app = create_app(server)  # which reads the keys
    listener = _listener(settings)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    served = [f"serving {', '.join(server.pool.entries)}"] if server.pool.entries else []
    watched = [f"watching {settings.watch}"] if settings.watch is not None else []
    if settings.watch is not None and not settings.watch.exists():
        watched = [f"watching {settings.watch}, where there is nothing yet,"]
    Display().say(f"{', '.join(served + watched)} at {address}")
    if open_page or (open_page is None and _has_screen()):
        webbrowser.open(address)
    config = uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    log_to_stderr()
    loop = quickest_loop()
    settled()
    try:
        loop.run_until_complete(_serve(server, _Uvicorn(config), listener))
    finally:
        loop.close()


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signals: it would refuse before all is drained, and end with the status of the signal."""

    @contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


async def _serve(server: Server, web: uvicorn.Server, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if stopping:
            web.should_exit = web.force_exit = True  # told twice: at once
        else:
            stopping.append(loop.create_task(_drain(server, web)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await web.serve([listener])
    if web.force_exit:  # uvicorn waits for nobody then, and threads at work would be cut off from under Python
        for connection in list(web.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(*web.server_state.tasks, *stopping)
        await web.lifespan.shutdown()


async def _drain(server: Server, web: uvicorn.Server) -> None:
    await server.drain()
    web.should_exit = True


def _listener(settings: ServingSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SaccadeError(
            f"--host {settings.host} --port {settings.port}: cannot listen there ({error.strerror}); "
            "choose another port, or 0 for any that is free"
        ) from None
    listener.listen(1024)
    return listener


def _has_screen() -> bool:
    if not sys.stderr.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
