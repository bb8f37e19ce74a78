"""When newcomers are let in, and when answers go out.

Newcomers: at once if nothing is at work, but for a moment in which others may come with them. Answers: at once if
nothing else is at work, otherwise some at a time: each time wakes the server and its clients, who then ask again.
"""

import time

STEPS = 12  # at least, between two times that some join those at work
GATHER, LONGEST = 0.2, 0.1  # of the time the last batch took, and seconds: so long the next one waits for its clients
KEPT = 0.02  # seconds that answers wait for others, while others are at work
SOON = 0.02  # seconds without a newcomer, after which nobody is waited for


class Pace:
    """Of one model's batches."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds that a newcomer waits for those at work to be done."""
        self.patience = patience
        self.gathering = False  # whether others are waited for
        self._waiting_since: float | None = None
        self._steps = 0  # since some were let in
        self._told = 0.0  # when answers last went out
        self._began, self._batch = time.monotonic(), 0  # of those at work: when they began, and how many they were
        self._took, self._ended, self._arrived = 0.0, 0.0, 0.0  # the last batch, and when the last sentence came

    def arrived(self) -> None:
        """Somebody has come."""
        self._arrived = time.monotonic()

    def let_in(self, count: int, fresh: bool) -> None:
        """Some have begun; `fresh`: there was nobody at work."""
        self._waiting_since, self._steps = None, 0
        if fresh:
            self._began, self._batch = time.monotonic(), 0
        self._batch += count

    def stepped(self, busy: bool) -> None:
        """A step was taken; `busy`: there are more to come."""
        self._steps += 1
        if not busy:
            self._ended = time.monotonic()
            self._took = self._ended - self._began

    def tells(self, busy: bool) -> bool:
        """Whether the answers that there are go out now; `busy`: others are at work."""
        now = time.monotonic()
        if busy and now - self._told < KEPT:
            return False
        self._told = now
        return True

    def due(self, waiting: int, at_work: int) -> bool:
        """Whether newcomers are let in now."""
        self.gathering = False
        if not waiting:
            self._waiting_since = None
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if at_work:
            return self._steps >= STEPS and now - self._waiting_since >= self.patience
        # Clients whose answers have just gone out ask again within milliseconds: a batch that starts without them is a
        # small one, and so is the next, which they are in.
        until = max(self._waiting_since, self._ended) + min(GATHER * self._took, LONGEST)
        last = max(self._arrived, self._ended)
        self.gathering = waiting < self._batch and now < until and now - last < SOON
        return not self.gathering
