"""The time of one request, whatever it consists of: loading a model, reading a file, translations one after another."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from saccade.serving.problems import TooSlow

T = TypeVar("T")


class Deadline:
    """It runs from the moment at which it is made."""

    def __init__(self, seconds: float, remedy: str = "send less at a time") -> None:
        self.seconds = seconds
        self.problem = f"not done in {seconds:g} seconds, and stopped; {remedy}"
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds; raises `TooSlow` where there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TooSlow(self.problem)
        return left

    async def hold(self, work: Awaitable[T]) -> T:
        """Wait for it, as long as there is time; then it is cancelled."""
        try:
            return await asyncio.wait_for(work, self._at - time.monotonic())
        except asyncio.TimeoutError:
            raise TooSlow(self.problem) from None
