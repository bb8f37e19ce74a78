"""How often a client may ask: token buckets, and words for them (`60/min`)."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from saccade.errors import SaccadeError

_UNITS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}


class Rate(NamedTuple):
    """So many requests in so many seconds; as many may come at once."""

    requests: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> "Rate":
        match = re.fullmatch(r"(\d{1,9})/([a-z]+)", text.strip())
        if match is None or match[2] not in _UNITS or int(match[1]) < 1:
            raise SaccadeError(f"rate={text!r} is no rate; write one like 60/min, 5/s, 1000/hour or 20000/day")
        return cls(int(match[1]), _UNITS[match[2]])


class Buckets:
    """One bucket a client. Those of clients that have not asked for longest are forgotten where there are too many."""

    def __init__(self, most: int = 100_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, when

    def take(self, client: str, rate: Rate) -> float | None:
        """Take a token; None: there was one. Else the seconds after which there will be."""
        now = self._clock()
        tokens, then = self._held.pop(client, (float(rate.requests), now))
        speed = rate.requests / rate.seconds
        tokens = min(float(rate.requests), tokens + (now - then) * speed)
        wait = None if tokens >= 1 else (1 - tokens) / speed
        self._held[client] = (tokens if wait is not None else tokens - 1, now)
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return wait
