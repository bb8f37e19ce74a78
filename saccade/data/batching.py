"""Batches by token budget: pairs of like lengths together, few shapes, little padding, the same order on resuming.

Pairs are put into buckets once, by their lengths. An epoch shuffles the pairs within each bucket, cuts each bucket into
batches, and shuffles the batches: nothing but numpy over the lengths until a batch is asked for.

A *shape* is `(S, T)`: S source columns (the tokens and EOS), T target columns as the decoder sees them (BOS and the
tokens going in, the tokens and EOS coming out).
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saccade.data.mixture import Part, drawn
from saccade.data.store import Store
from saccade.data.tokenizers import BOS, EOS, PAD
from saccade.errors import SaccadeError

Sentence = Sequence[int] | npt.NDArray[Any]
Encode = Callable[[int, int], tuple[Sentence, Sentence]]
Integers = npt.NDArray[np.int64]
Item = TypeVar("Item")

_GROWTH_SAMPLE = 512


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pairs as tensors, padded at the right with PAD."""

    source: Tensor  # (B, S) each row ends with EOS
    target: Tensor  # (B, T + 1) each row is BOS … EOS
    indices: Tensor  # (B,) which pair of the store each row is

    @property
    def source_mask(self) -> Tensor:
        """(B, S), True where the decoder may attend."""
        return self.source != PAD

    @property
    def inputs(self) -> Tensor:
        """(B, T), what the decoder is given."""
        return self.target[:, :-1]

    @property
    def gold(self) -> Tensor:
        """(B, T), what it should answer."""
        return self.target[:, 1:]

    @cached_property
    def target_tokens(self) -> int:
        """How many gold tokens are not PAD."""
        return int((self.gold != PAD).sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in memory that a GPU can copy from while it computes."""
        return self._each(lambda tensor: tensor.pin_memory())

    def pieces(self, number: int, exactly: bool = False) -> list["Batch"]:
        """The rows in `number` parts, as even as can be: fewer if rows are few or, `exactly`, filled up with parts that
        hold nothing."""
        if number == 1:
            return [self]
        cuts = np.linspace(0, len(self.indices), min(number, len(self.indices)) + 1).astype(int).tolist()
        parts = [self.rows(start, end) for start, end in pairwise(cuts)]
        return parts + [self.nothing()] * (number - len(parts) if exactly else 0)

    def rows(self, start: int, end: int) -> "Batch":
        """Some of the rows, in the same columns."""
        part = self._each(lambda tensor: tensor[start:end])
        del part.__dict__["target_tokens"]
        return part

    def nothing(self) -> "Batch":
        """The first row without its target: what a rank without rows computes with, to weigh nothing."""
        first = self.rows(0, 1)
        return replace(first, target=first.target.where(torch.arange(first.target.size(1)) < 1, PAD))

    def _each(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        moved = Batch(move(self.source), move(self.target), move(self.indices))
        # Counted before the move: reading a count off a GPU would make every step wait for it.
        moved.__dict__["target_tokens"] = self.target_tokens
        return moved


@dataclass(frozen=True, order=True)
class Position:
    """A place in the endless stream of batches: what a checkpoint keeps in order to go on from there."""

    epoch: int = 0
    batch: int = 0
    place: Any = None  # of a stream (JSON): where its window begins; `batch` is then a place in the window


START = Position()


def collate(
    pairs: Sequence[tuple[Sentence, Sentence]], indices: Sequence[int] | Integers, shape: tuple[int, int] | None = None
) -> Batch:
    """Pad pairs of ids (without BOS and EOS) to `shape`; without one, to the longest of each side."""
    if not pairs:
        raise ValueError("no pairs to collate")
    columns, target_columns = shape if shape is not None else (None, None)
    source = _padded([source for source, _ in pairs], [], columns)
    target = _padded([target for _, target in pairs], [BOS], None if target_columns is None else target_columns + 1)
    return Batch(source, target, torch.from_numpy(np.array(indices, np.int64)))


class Batcher:
    """The batches of a store, epoch after epoch.

    `batch_tokens` is the most tokens either side of a batch has, padding counted: `B·S` and `B·T` stay within it. A
    pair longer than that makes a batch of its own and is never dropped; `oversized` counts them.

    `encode(index, epoch)` encodes a pair anew each epoch (subword dropout). Its lengths are known only when it is
    called, so buckets come from the store's lengths, grown by what a sample of pairs grew: a few batches in a hundred
    then go a little over the budget, and shapes come from the actual lengths.

    With `world` ranks, rank r has rows r, r + world, … of each batch, so that all are at the same batch, of the same
    shape, and its pairs do not depend on `world`: a run can go on with more ranks or fewer. Of a batch with fewer rows
    than ranks, the last ranks have nothing.

    `mixture`: the corpora that the store holds one after the other, and how much of each an epoch takes; an epoch then
    has other pairs than the last. Empty: an epoch has every pair once.
    """

    def __init__(
        self,
        store: Store,
        *,
        batch_tokens: int,
        seed: int,
        encode: Encode | None = None,
        max_shapes: int = 64,
        rank: int = 0,
        world: int = 1,
        mixture: Sequence[Part] = (),
    ) -> None:
        if not len(store):
            raise SaccadeError(f"{store.folder}: has no pairs to make batches of; check the corpus and its cleaning")
        if batch_tokens < 1:
            raise SaccadeError(f"batch_tokens={batch_tokens}: a batch has at least one token; try 4096")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of a world of {world}")
        self.store = store
        self.batch_tokens = batch_tokens
        self.seed = seed
        self._encode = encode
        self._rank, self._world = rank, world
        self.oversized = int((np.maximum(store.source_lengths, store.target_lengths) >= batch_tokens).sum())
        growth = (1.0, 1.0) if encode is None else _growth(store, encode)
        source, target = (
            np.ceil((lengths + 1) * grown).astype(np.int32)
            for lengths, grown in zip((store.source_lengths, store.target_lengths), growth, strict=True)
        )
        self._buckets = _bucketed(source, target, batch_tokens, max_shapes)
        self._mixture = mixture
        self._last: tuple[int, _Plan] | None = None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Every `(S, T)` that batches have, shortest first; with `encode`, those planned."""
        return sorted({(int(s), int(t)) for s, t in self._buckets.shapes})

    def batches_in(self, number: int) -> int:
        """How many batches epoch `number` has."""
        return len(self._plan(number).bucket)

    def _plan(self, epoch: int) -> "_Plan":
        """The plan of an epoch: always the same one, unless the epoch draws its pairs."""
        epoch = epoch if self._mixture else 0
        if self._last is None or self._last[0] != epoch:
            everyone = np.arange(len(self.store), dtype=np.uint32)
            members = (
                drawn(self._mixture, self.seed, epoch).astype(np.uint32, copy=False) if self._mixture else everyone
            )
            self._last = epoch, self._buckets.cut(members, self.batch_tokens)
        return self._last[1]

    def epoch(self, number: int, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of epoch `number`, always in the same order; the first `start` are skipped at no cost."""
        if not 0 <= start <= self.batches_in(number):
            raise SaccadeError(
                f"batch {start} of epoch {number}: this epoch has {self.batches_in(number)} batches; "
                "resume with the corpus, batch_tokens and number of processes the run began with"
            )
        plan = self._plan(number)
        members, order = plan.shuffled(self.seed, number)
        return self._collated(number, plan, members, order[start:])

    def longest(self) -> Batch:
        """Of the first epoch, the batch that takes most memory: the most tokens, long sentences before many."""
        plan = self._plan(0)
        members, _ = plan.shuffled(self.seed, 0)
        columns = plan.shapes.sum(axis=1)[plan.bucket]
        longest = np.argmax(np.diff(plan.cuts) * columns * columns)
        return next(self._collated(0, plan, members, np.array([longest])))

    def stream(self, start: Position = START) -> Generator[tuple[Position, Batch], None, None]:
        """Batches without end, each with the position *after* it: `stream(that)` yields what would have followed."""
        epoch, done = start.epoch, start.batch
        while True:
            for batch in self.epoch(epoch, done):
                done += 1
                after = Position(epoch, done) if done < self.batches_in(epoch) else Position(epoch + 1)
                yield after, batch
            epoch, done = epoch + 1, 0

    def waste(self, number: int = 0) -> float:
        """The share of an epoch's tokens that is padding, both sides together; with `encode`, it encodes them all."""
        plan = self._plan(number)
        if self._encode is None:
            sizes = np.bincount(plan.bucket, np.diff(plan.cuts), len(plan.shapes))
            padded = float(sizes @ (plan.shapes.sum(axis=1) + 1))
            sides = (self.store.source_lengths, self.store.target_lengths)
            tokens = sum(int(lengths[plan.members].sum(dtype=np.int64)) for lengths in sides)
            return 1 - (tokens + 3 * len(plan.members)) / padded  # BOS and two EOS a pair
        padding = cells = 0
        for batch in self._collated(number, plan, *plan.shuffled(self.seed, number)):
            for tensor in (batch.source, batch.target):
                padding += int((tensor == PAD).sum())
                cells += tensor.numel()
        return padding / cells

    def _collated(
        self, epoch: int, plan: "_Plan", members: npt.NDArray[np.uint32], batches: Integers
    ) -> Generator[Batch, None, None]:
        for batch in batches.tolist():
            everyone = members[plan.cuts[batch] : plan.cuts[batch + 1]].tolist()
            mine = everyone[self._rank :: self._world]
            indices = mine or everyone[:1]
            if self._encode is None:
                source_columns, target_columns = plan.shapes[plan.bucket[batch]].tolist()
                pairs: list[tuple[Sentence, Sentence]] = [self.store.pair(index) for index in indices]
            else:
                pairs = [self._encode(index, epoch) for index in indices]
                longest = np.array([[len(source), len(target)] for source, target in pairs]).max(axis=0)
                source_columns, target_columns = rounded_up(longest + 1, self.batch_tokens).tolist()
            collated = collate(pairs, indices, (source_columns, target_columns))
            yield collated if mine else collated.nothing()


@dataclass(frozen=True)
class _End:
    error: BaseException | None


def prefetch(iterator: Iterable[Item], depth: int = 4) -> Generator[Item, None, None]:
    """Run `iterator` in a thread, up to `depth` items ahead; its errors are raised here.

    The thread ends with the iterator, with an error, or when this generator is closed or dropped.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(max(1, depth))
    stop = threading.Event()

    def work() -> None:
        end = _End(None)
        try:
            for item in iterator:
                if stop.is_set():
                    break
                ready.put(item)
        except BaseException as error:  # whatever it is, the consumer must hear of it rather than wait for ever
            end = _End(error)
        if isinstance(iterator, Generator):
            iterator.close()
        if not stop.is_set():
            ready.put(end)

    worker = threading.Thread(target=work, name="saccade-prefetch", daemon=True)
    worker.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        # Once `stop` is set the thread puts at most one thing more, so emptying the queue once lets it finish.
        while not ready.empty():
            ready.get_nowait()
        worker.join()


def _padded(sentences: Sequence[Sentence], head: list[int], columns: int | None) -> Tensor:
    """(B, columns): `head`, the sentence, EOS, PAD …"""
    ends = np.fromiter(map(len, sentences), np.int64, len(sentences)) + len(head)
    if columns is None:
        columns = int(ends.max()) + 1
    if ends.max() >= columns:
        raise ValueError(f"a sentence needs {ends.max() + 1} columns with EOS, but the shape has {columns}")
    rows = np.full((len(sentences), columns), PAD, np.int64)
    rows[:, : len(head)] = head
    column = np.arange(columns)
    inside = (column >= len(head)) & (column < ends[:, None])
    rows[inside] = np.concatenate(sentences, dtype=np.int64, casting="unsafe")  # an empty list counts as floats
    rows[np.arange(len(sentences)), ends] = EOS
    return torch.from_numpy(rows)


@dataclass(frozen=True)
class _Plan:
    """The pairs of an epoch, or of all: which are in which bucket, and where the buckets are cut."""

    members: npt.NDArray[np.uint32]  # all pairs, bucket after bucket
    cuts: Integers  # batch b is members[cuts[b] : cuts[b + 1]], once they are shuffled
    bucket: Integers  # of each batch
    shapes: Integers  # (buckets, 2)

    def shuffled(self, seed: int, epoch: int) -> tuple[npt.NDArray[np.uint32], Integers]:
        """The pairs, shuffled within buckets, and the order of the batches."""
        random = np.random.default_rng([seed % 2**64, epoch])
        members = self.members.copy()
        first = np.flatnonzero(np.diff(self.bucket, prepend=-1))
        for bucket in np.split(members, self.cuts[first[1:]]):
            random.shuffle(bucket)
        return members, random.permutation(len(self.bucket))


@dataclass(frozen=True)
class _Bucketed:
    """Which bucket each pair of a store is in."""

    bucket: npt.NDArray[np.uint16]
    shapes: Integers  # (buckets, 2)

    def cut(self, members: npt.NDArray[np.uint32], budget: int) -> _Plan:
        """A plan for some of the pairs."""
        bucket = self.bucket[members]
        sizes = np.bincount(bucket, minlength=len(self.shapes))
        batches = _batches(sizes, self.shapes, budget)
        return _Plan(
            members=members[np.argsort(bucket, kind="stable")],
            cuts=_even_cuts(sizes, batches),
            bucket=np.repeat(np.arange(len(self.shapes)), batches),
            shapes=self.shapes,
        )


def _bucketed(source: npt.NDArray[Any], target: npt.NDArray[Any], budget: int, max_shapes: int) -> _Bucketed:
    # Pairs that round up to the same shape are one cell; from here on the corpus is a few thousand cells with counts.
    source_rungs, source_rung = _rungs(source, budget)
    target_rungs, target_rung = _rungs(target, budget)
    cell = source_rung * len(target_rungs) + target_rung
    counts = np.bincount(cell)
    filled = np.flatnonzero(counts)
    shapes = np.stack([source_rungs[filled // len(target_rungs)], target_rungs[filled % len(target_rungs)]], axis=1)
    buckets = _buckets(shapes, counts[filled], budget, max_shapes)

    bucket_of_cell = np.zeros(len(counts), np.uint16)
    for number, cells in enumerate(buckets):
        bucket_of_cell[filled[cells]] = number
    return _Bucketed(bucket_of_cell[cell], np.array([shapes[cells].max(axis=0) for cells in buckets]))


def _even_cuts(sizes: Integers, batches: Integers) -> Integers:
    """Where to cut buckets of `sizes` into `batches` each, so that a bucket's batches differ by one pair at most."""
    bucket = np.repeat(np.arange(len(sizes)), batches)
    nth = np.arange(len(bucket)) - np.repeat(np.cumsum(batches) - batches, batches)
    rows = sizes[bucket] // batches[bucket] + (nth < sizes[bucket] % batches[bucket])
    return np.concatenate([[0], np.cumsum(rows)])


@dataclass(frozen=True, eq=False)
class _Bucket:
    """Some cells, and the best way to split them in two."""

    cells: Integers
    saved: int  # padded tokens that the split saves; 0: no split is worth it
    first: Integers
    second: Integers


def _buckets(shapes: Integers, counts: Integers, budget: int, max_shapes: int) -> list[Integers]:
    """Share the cells out: again and again, make the one split that saves most padding.

    Oversized cells are apart from the start: one of them would turn all its bucket into batches of one pair.
    """
    oversized = shapes.max(axis=1) > budget
    groups = (np.flatnonzero(~oversized), np.flatnonzero(oversized))
    buckets = [_best_split(cells, shapes, counts, budget) for cells in groups if len(cells)]
    while len(buckets) < max_shapes:
        best = max(buckets, key=lambda bucket: bucket.saved)
        if not best.saved:
            break
        buckets.remove(best)
        buckets += [_best_split(part, shapes, counts, budget) for part in (best.first, best.second)]
    return [bucket.cells for bucket in buckets]


def _best_split(cells: Integers, shapes: Integers, counts: Integers, budget: int) -> _Bucket:
    """Try every cut, by source length and by target length.

    A cut must leave two full batches on either side, or else make fewer batches in all: little padding is no use in
    tiny batches, and a bucket of one batch would put the same pairs together in every epoch.
    """
    best = _Bucket(cells, 0, cells, cells[:0])
    total = counts[cells].sum()
    whole = shapes[cells].max(axis=0)
    for side in (0, 1):
        ordered = cells[np.argsort(shapes[cells, side], kind="stable")]
        low = np.maximum.accumulate(shapes[ordered])[:-1]  # shape of the cells before each cut
        high = np.maximum.accumulate(shapes[ordered[::-1]])[::-1][1:]  # … and after it
        below = np.cumsum(counts[ordered])[:-1]
        above = total - below
        saved = total * whole.sum() - below * low.sum(axis=1) - above * high.sum(axis=1)
        full = (below >= 2 * capacity(low, budget)) & (above >= 2 * capacity(high, budget))
        batches = _batches(below, low, budget) + _batches(above, high, budget)
        saved[~full & (batches >= _batches(total, whole, budget))] = 0
        if len(saved) and saved.max() > best.saved:
            cut = int(saved.argmax())
            best = _Bucket(cells, int(saved[cut]), ordered[: cut + 1], ordered[cut + 1 :])
    return best


def capacity(shapes: Integers, budget: int) -> Integers:
    """How many pairs of each shape make a batch."""
    pairs: Integers = np.maximum(budget // shapes.max(axis=-1), 1)
    return pairs


def _batches(sizes: Integers, shapes: Integers, budget: int) -> Integers:
    """How many batches so many pairs of each shape make."""
    return -(-sizes // capacity(shapes, budget))


def rounded_up(lengths: npt.NDArray[Any], budget: int) -> Integers:
    """Up to the next rung of a ladder: every length to 32, then 16 rungs a doubling, and the budget itself."""
    step = 1 << np.maximum(np.frexp(lengths - 1)[1] - 5, 0).astype(np.int64)
    rounded: Integers = -(-lengths // step) * step
    # Without the budget as a rung, a pair that just fits would be padded beyond it.
    return np.where(lengths <= budget, np.minimum(rounded, budget), rounded)


def _rungs(lengths: npt.NDArray[Any], budget: int) -> tuple[Integers, Integers]:
    """The rungs in use, and each length's own as a number; none is longer than the longest, which may be all that a
    model's positions hold."""
    longest = int(lengths.max())
    rungs, rung = np.unique(rounded_up(np.arange(1, longest + 1), budget).clip(max=longest), return_inverse=True)
    return rungs, rung.ravel()[lengths - 1]


def _growth(store: Store, encode: Encode) -> tuple[float, float]:
    """How many times longer all but a few sources, and targets, become when they are encoded anew."""
    sample = np.linspace(0, len(store) - 1, min(len(store), _GROWTH_SAMPLE)).astype(np.int64)
    now = np.array([[len(source), len(target)] for source, target in (encode(int(i), 0) for i in sample)]) + 1
    before = np.stack([store.source_lengths[sample], store.target_lengths[sample]], axis=1) + 1
    source_growth, target_growth = np.quantile(now / before, 0.99, axis=0)
    return float(source_growth), float(target_growth)
