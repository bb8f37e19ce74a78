"""A model in a process of its own, so that who reads requests and writes answers never waits for it, nor it for them.

Python runs one thread at a time: beside a small model, whose steps are short, HTTP took a quarter of its speed. A model
that fails takes nobody with it: what it had at work is refused with a time to come back, and the next request starts it
anew.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from saccade.serving.model import Asked, State
from saccade.serving.problems import Busy
from saccade.serving.schemas import Alternatives, LookRequest, Part, Result
from saccade.serving.settings import ServingSettings
from saccade.serving.wire import Frame, error_of, problem_of, read_frame

ENDS_WITHIN = 60.0  # seconds, when it is told to


class RemoteModel:
    """The side that asks. `saccade.serving.child` is the other."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process, self._reader, self._writer = process, reader, writer
        self.engine = ""
        self.gone = False
        self._numbers = count(1)
        self._inboxes: dict[int, asyncio.Queue[Frame]] = {}
        self._last = State(0, 0, 0)
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, folder: Path, settings: ServingSettings, threads: int) -> "RemoteModel":
        """Start the process, and wait until it has the model; what keeps it from that is raised here."""
        ours, theirs = socket.socketpair()
        with theirs:
            line = [sys.executable, "-m", "saccade.serving.child", str(theirs.fileno())]
            # A group of its own: what a terminal tells the server, it tells the model.
            process = subprocess.Popen(
                line, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
            )
        model = cls(process, *await asyncio.open_unix_connection(sock=ours))
        told = {"folder": str(folder), "settings": settings.model_dump(mode="json"), "threads": threads}
        model._writer.write(Frame(0, "load", told).packed())
        frame = await read_frame(model._reader)
        if frame is None or frame.what != "ready":
            await model.close()
            raise Busy(f"{folder}: its process ended while it was loading", 5) if frame is None else error_of(frame.how)
        model.engine = frame.how
        model._listener = asyncio.create_task(model._listen())
        return model

    async def _listen(self) -> None:
        while (frame := await read_frame(self._reader)) is not None:
            if (inbox := self._inboxes.get(frame.number)) is not None:
                inbox.put_nowait(frame)
        self.gone = True
        self._last = self._last._replace(rows=0, waiting=0)
        lost = Frame(0, "problem", problem_of(Busy("the model's process has ended; ask again", 1)))
        for inbox in self._inboxes.values():
            inbox.put_nowait(lost)

    async def _asked(self, what: str, how: dict[str, Any]) -> AsyncGenerator[Frame, None]:
        """What is said to a question, until all is said. Close it, and the other side is told to stop."""
        if self.gone:
            raise Busy("the model's process has ended; ask again", 1)
        number = next(self._numbers)
        inbox = self._inboxes[number] = asyncio.Queue()
        self._writer.write(Frame(number, what, how).packed())
        over = False
        try:
            while True:
                frame = await inbox.get()
                over = frame.what in ("done", "problem")
                if frame.what == "problem":
                    raise error_of(frame.how)
                if over:
                    return
                yield frame
        finally:
            del self._inboxes[number]
            if not over and not self.gone:
                self._writer.write(Frame(number, "stop").packed())

    async def _answer(self, what: str, how: dict[str, Any]) -> Any:
        async with aclosing(self._asked(what, how)) as frames:
            async for frame in frames:
                return frame.how
        raise AssertionError(f"{what}: nothing was said")

    async def translate(self, asked: Asked) -> AsyncGenerator[Part | Result, None]:
        how = vars(asked) | {"told": vars(asked.told)}
        async with aclosing(self._asked("translate", how)) as frames:
            async for frame in frames:
                yield (Part if frame.what == "part" else Result).model_validate(frame.how)

    async def alternatives(self, text: str, prefix: str, count: int, client: str) -> Alternatives:
        how = {"text": text, "prefix": prefix, "count": count, "client": client}
        return Alternatives.model_validate(await self._answer("alternatives", how))

    async def look(self, name: str, request: LookRequest) -> str:
        how = {"name": name, "request": request.model_dump()}
        return str(await self._answer("look", how))

    async def state(self) -> State:
        with suppress(Busy):  # it has just ended: what is known is what was
            self._last = State(*await self._answer("state", {}))
        return self._last

    async def close(self) -> None:
        self._writer.close()  # the other side hears that, ends what it is at, and goes
        try:
            await asyncio.to_thread(self.process.wait, ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)


def possible() -> bool:
    """Whether this system can hand a socket to another process."""
    return os.name == "posix"
