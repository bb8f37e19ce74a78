"""When to try again what has failed: soon, then later and later, and at once where something has changed."""

import time
from collections.abc import Callable

MOST = 60.0  # seconds between two tries


class Tries:
    """Tries at one thing, which is known by how it looks now: what looks otherwise has not been tried yet."""

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`first`: seconds from a failure to the next try; each time twice as many, up to `MOST`."""
        self._first, self._clock = first, clock
        self._failed: str | None = None
        self._wait = self._next = 0.0

    def due(self, look: str) -> bool:
        """Whether to try what looks like this."""
        return look != self._failed or self._clock() >= self._next

    def failed(self, look: str) -> float:
        """It was tried in vain; returns the seconds until it is due again."""
        self._wait = min(2 * self._wait if look == self._failed else self._first, MOST)
        self._failed, self._next = look, self._clock() + self._wait
        return self._wait
