"""A real server on a real port, for tests: uvicorn in a thread of this process, so that its insides can be seen."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from saccade.serving.app import create_app
from saccade.serving.connections import Connection
from saccade.serving.server import Server
from saccade.serving.settings import ServingSettings


class Served:
    """A server at `url`; `server` is the object itself."""

    def __init__(self, server: Server, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.port, self.loop = server, port, loop
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, **options)

    def translate(self, text: str | list[str], **told: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/translate", json={"text": text} | told, timeout=30)

    def texts(self, text: str | list[str], **told: Any) -> list[str]:
        answer = self.translate(text, **told)
        assert answer.status_code == 200, answer.text
        return [result["translations"][0]["text"] for result in answer.json()["results"]]

    @property
    def worker(self):
        return next(iter(self.server.pool.entries.values())).loaded.model.worker

    @property
    def rows(self) -> int:
        """At work now."""
        return asyncio.run_coroutine_threadsafe(self._observed(), self.loop).result().rows

    @property
    def waiting(self) -> int:
        """Sentences that wait now."""
        return asyncio.run_coroutine_threadsafe(self._observed(), self.loop).result().waiting

    async def _observed(self) -> Server:
        await self.server.observe()
        return self.server

    def warm(self) -> None:
        """Have the first model loaded, however long that takes: a request waits no longer than its limit."""
        asyncio.run_coroutine_threadsafe(self.server.pool.warm_up(), self.loop).result()

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split(" ")[0].split("{")[0] == name)


@contextmanager
def serving(*folders: Path, **settings: Any) -> Iterator[Served]:
    """Serve folders for as long as the block lasts."""
    started: list[Served] = []
    stop: list[Callable[[], None]] = []

    async def main() -> None:
        server = Server(folders, ServingSettings(port=0, **({"engine": "torch"} | settings)))
        app = create_app(server)
        config = uvicorn.Config(app, port=0, http=Connection, log_level="error", timeout_graceful_shutdown=1)
        web = uvicorn.Server(config)
        web.capture_signals = _no_signals  # type: ignore[method-assign]
        stop.append(lambda: setattr(web, "should_exit", True))
        task = asyncio.create_task(web.serve())
        while not web.started and not task.done():
            await asyncio.sleep(0.01)
        port = web.servers[0].sockets[0].getsockname()[1]
        started.append(Served(server, port, asyncio.get_running_loop()))
        await task

    thread = threading.Thread(target=asyncio.run, args=[main()], daemon=True)
    thread.start()
    wait_until(lambda: bool(started) or not thread.is_alive())
    try:
        yield started[0]
    finally:
        stop[0]()
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


def wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something that must come about."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
