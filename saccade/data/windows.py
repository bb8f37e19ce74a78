"""Batches of a stream: those of a window at a time, in the shapes that a sample was planned in.

The pairs of a window go to the smallest planned shape that holds them, are shuffled, and fill batches up to the budget.
What does not fill one goes on to the next larger shape that holds it, so that few batches of a window are not full.
Where a shape is none of those planned, it is a rung of the same ladder.
"""

from collections.abc import Generator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from saccade.data.batching import START, Batch, Batcher, Integers, Position, capacity, collate, rounded_up
from saccade.data.streams import Encoded, Stream, Where, Window

Shape = tuple[int, int]


class Batches(Protocol):
    """What a training run wants of its batches: a stream of them, and the largest beforehand."""

    @property
    def shapes(self) -> list[Shape]: ...

    @property
    def oversized(self) -> int: ...

    def longest(self) -> Batch: ...

    def waste(self, number: int = 0) -> float: ...

    def stream(self, start: Position = START) -> Generator[tuple[Position, Batch], None, None]: ...


class StreamBatcher:
    """The batches of a stream. `sample` has the shapes, and what is to be known before the first pair is read.

    With `world` ranks, each has its rows of each batch, as in `Batcher`; every rank reads and encodes all of the
    stream. `both_ways`: each pair is there in both directions, as in `BothWays`.
    """

    def __init__(
        self, stream: Stream, sample: Batcher, *, seed: int, rank: int = 0, world: int = 1, both_ways: bool = False
    ) -> None:
        self.source = stream
        self.sample = sample
        self.seed = seed
        self._rank, self._world = rank, world
        self._both_ways = both_ways

    @property
    def shapes(self) -> list[Shape]:
        """The planned shapes, shortest first."""
        return self.sample.shapes

    @property
    def oversized(self) -> int:
        """Pairs of the sample that are longer than the budget."""
        return self.sample.oversized

    def longest(self) -> Batch:
        """The batch of the sample that takes most memory."""
        return self.sample.longest()

    def waste(self, number: int = 0) -> float:
        """The share of padding in the sample."""
        return self.sample.waste()

    def stream(self, start: Position = START) -> Generator[tuple[Position, Batch], None, None]:
        """Batches without end, each with the position *after* it: `stream(that)` yields what would have followed."""
        done = start.batch
        for window in self.source.windows(Where.of(start.place)):
            pairs = window.pairs + [(target, source) for source, target in window.pairs] * self._both_ways
            batches = self._arranged(window, pairs)
            after = Position(self.source.epoch_of(window.end), 0, window.end.plain())
            epoch, begin = self.source.epoch_of(window.begin), window.begin.plain() | {"reached": window.end.tally}
            for number in range(done, len(batches)):
                rows, shape = batches[number]
                position = Position(epoch, number + 1, begin) if number + 1 < len(batches) else after
                yield position, self._collated(pairs, rows, shape, window.begin.drawn)
            done = 0

    def _collated(self, pairs: list[Encoded], rows: Integers, shape: Shape, before: int) -> Batch:
        mine = rows[self._rank :: self._world]
        indices = mine if len(mine) else rows[:1]
        batch = collate([pairs[i] for i in indices.tolist()], indices + before * (2 if self._both_ways else 1), shape)
        return batch if len(mine) else batch.nothing()

    def _arranged(self, window: Window, pairs: list[Encoded]) -> list[tuple[Integers, Shape]]:
        if not pairs:
            return []
        random = np.random.default_rng([self.seed % 2**64, window.begin.window])
        lengths = np.array([[len(source), len(target)] for source, target in pairs]) + 1
        batches = arrange(lengths, np.array(self.shapes), self.sample.batch_tokens, random, self.source.encode.longest)
        return [batches[i] for i in random.permutation(len(batches)).tolist()]


def arrange(
    lengths: npt.NDArray[np.int64],
    shapes: npt.NDArray[np.int64],
    budget: int,
    random: np.random.Generator,
    longest: int | None = None,
) -> list[tuple[Integers, Shape]]:
    """Share pairs of `lengths` (N, 2) out into batches: the rows of each, and its shape; in no order."""
    shapes = shapes[np.argsort(shapes.sum(axis=1), kind="stable")]
    held = np.array([(lengths <= shape).all(axis=1) for shape in shapes])  # (shapes, N)
    order = random.permutation(len(lengths))
    batches: list[tuple[Integers, Shape]] = []
    waiting = np.zeros(len(lengths), bool)
    reached = np.asarray(held.any(axis=0))
    first, last = held.argmax(axis=0), len(shapes) - 1 - held[::-1].argmax(axis=0)
    for number, shape in enumerate(shapes):
        here = (waiting & held[number]) | (reached & (first == number))
        rows = order[here[order]]
        full = int(capacity(shape, budget))
        # Those that fit in no later one come first, so that a batch that is not full is made only for them.
        rows = np.concatenate([rows[last[rows] == number], rows[last[rows] > number]])
        end = max(len(rows) // full * full, int((last[rows] == number).sum()))
        for start in range(0, end, full):
            batches.append((rows[start : min(start + full, end)], (int(shape[0]), int(shape[1]))))
        waiting[rows[:end]] = False
        waiting[rows[end:]] = True
    rest = order[~reached[order]]
    rungs: Integers = rounded_up(lengths[rest], budget)
    if longest is not None:
        rungs = np.minimum(rungs, np.maximum(longest, lengths[rest]))
    for rung in np.unique(rungs, axis=0):
        rows = rest[np.equal(rungs, rung).all(axis=1)]
        full = int(capacity(rung, budget))
        batches += [(rows[i : i + full], (int(rung[0]), int(rung[1]))) for i in range(0, len(rows), full)]
    return batches
