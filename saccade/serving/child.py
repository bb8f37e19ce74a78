"""The process of one model: `python -m saccade.serving.child SOCKET`, started by `saccade.serving.remote`.

It answers what it is asked through the socket, and ends when that is closed, by whatever end of the other side.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import torch

from saccade.errors import SaccadeError
from saccade.serving.keeping import take_what_will_be_kept
from saccade.serving.listening import Event, Stop
from saccade.serving.logs import log_to_stderr
from saccade.serving.loops import quickest_loop, settled
from saccade.serving.model import Asked, LocalModel
from saccade.serving.problems import as_refused
from saccade.serving.schemas import LookRequest, Part
from saccade.serving.settings import ServingSettings
from saccade.serving.told import Told
from saccade.serving.wire import Frame, Wire, problem_of

log = logging.getLogger("saccade.serving")
LOOKS = 1.0  # seconds between two looks whether the server is still there


class Child:
    """The side that answers."""

    def __init__(self) -> None:
        self.wire = Wire(self._heard)
        self._model: LocalModel | None = None
        self._stops: dict[int, Stop] = {}  # of what is at work

    async def run(self) -> None:
        """Answer until nobody listens any more."""
        await self.wire.ended
        for stop in self._stops.values():
            stop()
        if self._model is not None:
            await self._model.close()

    def _heard(self, frame: Frame) -> None:
        if frame.what == "stop":
            self._over(frame.number)
        elif self._model is None:
            self._load(frame)
        elif frame.what == "translate":
            try:
                self._translate(self._model, frame)
            except Exception as error:
                self._failed(frame.number, error)
        else:  # rare enough for a task
            task = asyncio.create_task(self._answer(self._model, frame))
            self._stops[frame.number] = task.cancel

    def _load(self, frame: Frame) -> None:
        try:
            how = frame.how
            folder, settings = Path(how["folder"]), ServingSettings.model_validate(how["settings"])
            torch.set_num_threads(how["threads"])
            self._model = LocalModel.load(folder, settings, asyncio.get_running_loop())
            take_what_will_be_kept()
        except Exception as error:
            if not isinstance(error, SaccadeError):
                log.exception("model not loaded")
            self.wire.say(Frame.of(0, "problem", problem_of(error)))
            self.wire.close()
            return
        settled()
        self.wire.say(Frame.of(0, "ready", self._model.engine))

    def _translate(self, model: LocalModel, frame: Frame) -> None:
        number, how = frame.number, frame.how
        asked = Asked(**how | {"told": Told(**how["told"])})
        left = len(asked.texts)

        def tell(event: Event | Exception) -> None:
            nonlocal left
            if isinstance(event, Exception):
                self._failed(number, event)
                self._over(number)
                return
            part = isinstance(event, Part)
            self.wire.say(Frame.of(number, "part" if part else "result", event))
            left -= not part
            if not left:
                self._over(number)

        stop = model.translate(asked, tell)
        if left:
            self._stops[number] = stop
        else:  # there was nothing to translate in it
            stop()

    async def _answer(self, model: LocalModel, frame: Frame) -> None:
        number, what, how = frame.number, frame.what, frame.how
        try:
            if what == "state":
                answer: object = list(await model.state())
            elif what == "look":
                answer = await model.look(how["name"], LookRequest(**how["request"]))
            else:
                answer = await model.alternatives(**how)
            self.wire.say(Frame.of(number, "answer", answer))
        except Exception as error:
            self._failed(number, error)
        finally:
            self._stops.pop(number, None)

    def _failed(self, number: int, error: Exception) -> None:
        if as_refused(error) is None:
            log.error("request failed", exc_info=error)
        self.wire.say(Frame.of(number, "problem", problem_of(error)))

    def _over(self, number: int) -> None:
        if (stop := self._stops.pop(number, None)) is not None:
            stop()


async def main(fileno: int) -> None:
    """Talk through the socket of that number."""
    child = Child()
    await asyncio.get_running_loop().create_unix_connection(lambda: child.wire, sock=socket.socket(fileno=fileno))
    await child.run()


def end_with_the_server() -> None:
    """Have this process end when its parent is no more, even while it is too busy to see the socket close."""
    server = os.getppid()

    def look() -> None:
        while os.getppid() == server:
            time.sleep(LOOKS)
        os._exit(1)  # nobody is left who could be told anything

    threading.Thread(target=look, daemon=True, name="looking for the server").start()


if __name__ == "__main__":
    end_with_the_server()
    # It is the server that is told to stop, and lets this process finish what is at work.
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, signal.SIG_IGN)
    log_to_stderr()
    quickest_loop().run_until_complete(main(int(sys.argv[1])))
