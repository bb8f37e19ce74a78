"""The process of one model: `python -m saccade.serving.child SOCKET`, started by `saccade.serving.remote`.

It answers what it is asked through the socket, and ends when that is closed, by whatever end of the other side.
"""

import asyncio
import logging
import signal
import socket
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import torch

from saccade.errors import SaccadeError
from saccade.serving.logs import log_to_stderr
from saccade.serving.loops import quickest_loop, settled
from saccade.serving.model import Asked, LocalModel
from saccade.serving.problems import as_refused
from saccade.serving.schemas import LookRequest, Part
from saccade.serving.settings import ServingSettings
from saccade.serving.told import Told
from saccade.serving.wire import Frame, problem_of, read_frame

log = logging.getLogger("saccade.serving")


class Child:
    """The side that answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._at_work: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Load, then answer until nobody listens any more."""
        frame = await read_frame(self._reader)
        if frame is None:
            return
        try:
            folder, settings = Path(frame.how["folder"]), ServingSettings.model_validate(frame.how["settings"])
            torch.set_num_threads(frame.how["threads"])
            self._model = LocalModel.load(folder, settings, asyncio.get_running_loop())
        except Exception as error:
            if not isinstance(error, SaccadeError):
                log.exception("model not loaded")
            self._say(0, "problem", problem_of(error))
            await self._writer.drain()
            return
        settled()
        self._say(0, "ready", self._model.engine)
        while (frame := await read_frame(self._reader)) is not None:
            if frame.what == "stop":
                if (task := self._at_work.get(frame.number)) is not None:
                    task.cancel()
            else:
                task = self._at_work[frame.number] = asyncio.create_task(self._answer(frame))
                task.add_done_callback(lambda _, number=frame.number: self._at_work.pop(number))  # type: ignore[misc]
        for task in list(self._at_work.values()):
            task.cancel()
        await self._model.close()

    async def _answer(self, frame: Frame) -> None:
        number, what, how = frame
        try:
            if what == "translate":
                asked = Asked(**how | {"told": Told(**how["told"])})
                async with aclosing(self._model.translate(asked)) as events:
                    async for event in events:
                        self._say(number, "part" if isinstance(event, Part) else "result", event)
            elif what == "state":
                self._say(number, "answer", list(await self._model.state()))
            elif what == "look":
                self._say(number, "answer", await self._model.look(how["name"], LookRequest(**how["request"])))
            else:
                self._say(number, "answer", await self._model.alternatives(**how))
            self._say(number, "done")
        except Exception as error:
            if as_refused(error) is None:
                log.error("request failed", exc_info=error)
            self._say(number, "problem", problem_of(error))

    def _say(self, number: int, what: str, how: Any = None) -> None:
        if not self._writer.is_closing():
            self._writer.write(Frame(number, what, how).packed())


async def main(fileno: int) -> None:
    """Talk through the socket of that number."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=fileno))
    await Child(reader, writer).run()


if __name__ == "__main__":
    # It is the server that is told to stop, and lets this process finish what is at work.
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, signal.SIG_IGN)
    log_to_stderr()
    quickest_loop().run_until_complete(main(int(sys.argv[1])))
