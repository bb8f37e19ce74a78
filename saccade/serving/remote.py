"""A model in a process of its own, so that who reads requests and writes answers never waits for it, nor it for them.

Python runs one thread at a time: beside a small model, whose steps are short, HTTP took a quarter of its speed. A model
that fails takes nobody with it: what it had at work is refused with a time to come back, and the next request starts it
anew.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from saccade.serving.listening import Stop, Tell
from saccade.serving.model import Asked, State
from saccade.serving.problems import Busy
from saccade.serving.schemas import Alternatives, LookRequest, Part, Result
from saccade.serving.settings import ServingSettings
from saccade.serving.wire import Frame, Wire, error_of, problem_of

log = logging.getLogger("saccade.serving")

ENDS_WITHIN = 10.0  # seconds, when it is told to: nobody waits for its answers any more
STUCK = 10.0  # seconds beyond the time limit: it keeps that itself, unless it hears nothing at all
SHORTLY = 2.0  # seconds that the metrics wait for it
LOADING = 0  # the number of the first question, which takes as long as it takes


class RemoteModel:
    """The side that asks. `saccade.serving.child` is the other."""

    def __init__(self, process: "subprocess.Popen[bytes]", limit: float) -> None:
        """`limit`: seconds that a request may take."""
        self.process = process
        self.wire = Wire(self._heard)
        self.wire.ended.add_done_callback(self._lost)
        self.engine = ""
        self.gone = False
        self._numbers = count(LOADING)
        self._listeners: dict[int, Callable[[Frame], None]] = {}  # to what is said to each question
        self._alarms: dict[int, asyncio.TimerHandle] = {}
        self._wondering = False
        self._limit = limit
        self._last = State(0, 0, 0)

    @classmethod
    async def start(
        cls, folder: Path, settings: ServingSettings, threads: int, environment: Mapping[str, str]
    ) -> "RemoteModel":
        """Start the process, and wait until it has the model; what keeps it from that is raised here.

        `environment`: what it is told there, unless we were told something else.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            line = [sys.executable, "-m", "saccade.serving.child", str(theirs.fileno())]
            # A group of its own: what a terminal tells the server, it tells the model.
            process = subprocess.Popen(
                line,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                env={**environment, **os.environ},
            )
        model = cls(process, settings.time_limit)
        await asyncio.get_running_loop().create_unix_connection(lambda: model.wire, sock=ours)
        told = {"folder": str(folder), "settings": settings.model_dump(mode="json"), "threads": threads}
        try:
            model.engine = await model._answer("load", told)
        except Exception as error:
            await model.close()
            if isinstance(error, Busy):
                raise Busy(f"{folder}: its process ended while it was loading", 5) from None
            raise
        return model

    def _heard(self, frame: Frame) -> None:
        if (listener := self._listeners.get(frame.number)) is not None:
            listener(frame)

    def _lost(self, _: object) -> None:
        self.gone = True
        self._last = self._last._replace(rows=0, waiting=0)
        lost = Frame.of(0, "problem", problem_of(Busy("the model's process has ended; ask again", 1)))
        for listener in list(self._listeners.values()):
            listener(lost)

    def _ask(
        self, what: str, how: dict[str, Any], listener: Callable[[Frame], None], seconds: float | None = None
    ) -> int:
        """Ask, and have the listener called with what is said to it; returns the number of the question.

        `seconds`: that the answer may take, if not as long as a request.
        """
        if self.gone:
            raise Busy("the model's process has ended; ask again", 1)
        number = next(self._numbers)
        self._listeners[number] = listener
        if number != LOADING:
            self._alarms[number] = asyncio.get_running_loop().call_later((seconds or self._limit) + STUCK, self._stuck)
        self.wire.say(Frame.of(number, what, how))
        return number

    def _stuck(self) -> None:
        """A question whose time is long over has no answer: end the process, and all who wait for it are told."""
        log.error("model process does not answer, and is ended", extra={"fields": {"pid": self.process.pid}})
        self.process.kill()

    def _forget(self, number: int, over: bool) -> None:
        """Listen no longer; if not all is said, the other side is told to stop."""
        if (alarm := self._alarms.pop(number, None)) is not None:
            alarm.cancel()
        if self._listeners.pop(number, None) is not None and not over and not self.gone:
            self.wire.say(Frame(number, "stop"))
            self._wonder()

    def _wonder(self) -> None:
        """Whether it still answers: who gave up may have waited for a process that hears nothing."""
        if self._wondering:
            return
        self._wondering = True

        def listener(_: Frame) -> None:
            self._wondering = False
            self._forget(number, over=True)

        number = self._ask("state", {}, listener)

    async def _answer(self, what: str, how: dict[str, Any]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def listener(frame: Frame) -> None:
            if answer.done():
                return
            if frame.what == "problem":
                answer.set_exception(error_of(frame.how))
            else:
                answer.set_result(frame.how)

        number = self._ask(what, how, listener)
        try:
            return await answer
        finally:
            self._forget(number, over=not answer.cancelled())

    def translate(self, asked: Asked, tell: Tell) -> Stop:
        left = len(asked.texts)

        def listener(frame: Frame) -> None:
            nonlocal left
            if frame.what == "problem":
                left = 0
                tell(error_of(frame.how))
            elif frame.what == "part":
                tell(Part.model_validate_json(frame.body))
            else:
                left -= 1
                tell(Result.model_validate_json(frame.body))

        number = self._ask("translate", vars(asked) | {"told": vars(asked.told)}, listener, asked.seconds)
        return lambda: self._forget(number, over=not left)

    async def alternatives(self, text: str, prefix: str, count: int, client: str) -> Alternatives:
        how = {"text": text, "prefix": prefix, "count": count, "client": client}
        return Alternatives.model_validate(await self._answer("alternatives", how))

    async def look(self, name: str, request: LookRequest) -> str:
        how = {"name": name, "request": request.model_dump()}
        return str(await self._answer("look", how))

    async def state(self) -> State:
        with suppress(Busy, asyncio.TimeoutError):  # it has just ended, or is long at something: as it was
            self._last = State(*await asyncio.wait_for(self._answer("state", {}), SHORTLY))
        return self._last

    async def close(self) -> None:
        self.wire.close()  # the other side hears that, ends what it is at, and goes
        try:
            await asyncio.to_thread(self.process.wait, ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)


def possible() -> bool:
    """Whether this system can hand a socket to another process."""
    return os.name == "posix"
