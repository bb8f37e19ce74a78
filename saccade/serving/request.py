"""The texts of one request at work: until each has its result, something goes wrong, or nobody wants them any more."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import takewhile

from saccade.serving.batcher import Worker
from saccade.serving.listening import Event, Tell
from saccade.serving.problems import TooSlow
from saccade.serving.schemas import Result
from saccade.serving.tickets import Ticket


class Request:
    """Between a worker, which knows tickets, and who asked."""

    def __init__(self, worker: Worker, seconds: float, too_slow: str, tell: Tell) -> None:
        """`seconds`: what is not done by then is stopped, and `too_slow` is why."""
        self._worker, self._seconds, self._too_slow, self._tell = worker, seconds, too_slow, tell
        self._left: dict[int, Ticket] = {}
        self._making: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._over = False

    def begin(self, tickets: Sequence[Ticket]) -> None:
        """The texts wait for their turn; raises `Refused` where there is no room for them."""
        done = [ticket for ticket in tickets if ticket.complete]  # nothing to translate in them
        left = [ticket for ticket in tickets if not ticket.complete]
        self._worker.submit(left, self)
        self._left = {ticket.index: ticket for ticket in left}
        for ticket in done:
            ticket.over = True
            self._tell(ticket.kind.finish([ticket])[0])
        if self._alarm is None:
            self._set_alarm()

    def begin_later(self, tickets: Iterator[Ticket]) -> None:
        """The same for texts that take a while to be made ready, in a thread: what is refused is told."""
        self._set_alarm()
        self._making = asyncio.create_task(self._make(tickets))

    async def _make(self, tickets: Iterator[Ticket]) -> None:
        try:
            self.begin(await asyncio.to_thread(list, takewhile(lambda _: not self._over, tickets)))
        except Exception as error:
            self._tell(error)

    def heard(self, event: Event | Exception) -> None:
        """What becomes of a ticket."""
        if self._over:
            return
        if isinstance(event, Result):
            del self._left[event.index]
        self._tell(event)

    def _set_alarm(self) -> None:
        self._alarm = asyncio.get_running_loop().call_later(self._seconds, self._too_late)

    def _too_late(self) -> None:
        self._tell(TooSlow(self._too_slow))

    def stop(self) -> None:
        """What is not done is no longer wanted."""
        self._over = True
        if self._making is not None:
            self._making.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._left:
            self._worker.cancel(list(self._left.values()), self)
