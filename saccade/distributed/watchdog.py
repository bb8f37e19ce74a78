"""Notices when ranks wait for ever, and says for whom and where.

A thread of each rank tells the store, every few moments, that it lives and where its work is. It watches the next rank:
one that gives no sign is frozen or lost. And it watches its own work: if that stands still, and nobody is at work
alone, the ranks that are furthest behind hold the others up. Either is said, and the process ends, so that torchrun
can start all of them again from the last checkpoint.

Only changes count, as seen by this machine's clock: no two clocks are compared.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

HUNG = 75  # the exit status: try again


class Sign(NamedTuple):
    """What a rank last told of itself."""

    number: int  # of signs
    places: int  # that it has passed with all others
    place: str
    alone: bool  # at work that others wait for
    ended: bool


class Watchdog:
    """A rank's thread that gives signs and looks for those of others."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.place, self.places, self.is_alone = "start", 0, False
        self.moved = time.monotonic()
        self._found: dict[int, tuple[int, str]] | None = None  # where all were when this rank last looked around
        self._signs = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="saccade-watchdog", daemon=True)

    def start(self) -> None:
        self._tell()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(RuntimeError):  # whoever kept the store has gone first, and nobody looks any more
            self._tell(ended=True)

    def at(self, place: str) -> None:
        self.place, self.places, self.moved = place, self.places + 1, time.monotonic()
        self._found = None

    @contextmanager
    def alone(self, place: str) -> Iterator[None]:
        before, self.place, self.is_alone = self.place, place, True
        try:
            yield
        finally:
            self.moved = time.monotonic()
            self.place, self.is_alone = before, False

    def _tell(self, ended: bool = False) -> None:
        self._signs += 1
        self.store.set(_key(self.rank), json.dumps(Sign(self._signs, self.places, self.place, self.is_alone, ended)))

    def _watch(self) -> None:
        neighbour = (self.rank + 1) % self.size
        seen: Sign | None = None
        changed = time.monotonic()
        while not self._stop.wait(min(self.timeout / 5, 5.0)):
            try:
                self._tell()
                # `check` first: `get` would wait for a rank that has not come yet, and is not late.
                sign = self._sign(neighbour) if self.store.check([_key(neighbour)]) else None
            except RuntimeError:
                continue  # the store is gone: its keeper ended, and the next word to the others fails by itself
            now = time.monotonic()
            if sign is None or sign != seen or sign.ended:
                seen, changed = sign, now
            elif now - changed > self.timeout:
                self._end(
                    f"rank {neighbour} of {self.size} has given no sign of life for {now - changed:.0f} seconds: its "
                    f"process is frozen, or its machine is lost; it was last heard at: {sign.place}; rank "
                    f"{self.rank} is at: {self.place}"
                )
            if not self.is_alone and now - self.moved > self.timeout:
                self.moved = now
                self._look_around()

    def _look_around(self) -> None:
        """Nothing has moved here for a while: has anybody, since the last look? If not, who holds us up?"""
        signs = {rank: self._sign(rank) for rank in range(self.size)}
        before, self._found = self._found, {rank: (sign.places, sign.place) for rank, sign in signs.items()}
        # One at work for all is no hang: its neighbour sees whether it lives.
        if before != self._found or any(sign.alone for sign in signs.values()):
            return
        least = min(sign.places for sign in signs.values())
        behind = [f"rank {rank} at: {sign.place}" for rank, sign in signs.items() if sign.places == least]
        waiting = [f"rank {rank} at: {sign.place}" for rank, sign in signs.items() if sign.places > least]
        others = f"; waiting for them: {', '.join(waiting[:8])}" if waiting else " (all ranks are at the same place)"
        self._end(f"nothing has moved for {self.timeout:g} seconds; furthest behind: {', '.join(behind[:8])}{others}")

    def _sign(self, rank: int) -> Sign:
        return Sign(*json.loads(self.store.get(_key(rank))))

    def _end(self, why: str) -> None:
        print(
            f"error: {why} (training.hang_timeout={self.timeout:g}). This process ends, so that all can start again "
            "from the last checkpoint",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HUNG)  # the main thread is inside a collective, which no exception reaches


def _key(rank: int) -> str:
    return f"sign/{rank}"
