"""A corpus of many files that is read in blocks, a few files at a time, from any place in it.

A pass goes through the files in an order of its own, and through the row groups of a Parquet file as well. So many
files are open at once, and give a block in turns. Where a pass is takes a few numbers (`Place`); from there it goes on
as if it had not stopped, at the cost of reading to that place in the files that were open. In Parquet that is at most a
row group, in text the lines before it.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from saccade.data.arrow import HubCorpus, ParquetCorpus
from saccade.data.lines import is_pipe
from saccade.data.pairs import Corpus, Pair
from saccade.errors import SaccadeError

BLOCK = 4096  # rows read, cleaned and encoded at once
FOOTERS = 16  # of Parquet files, read at once

Slot = tuple[int, int]  # which file of the pass, and how many of its rows are read; -1: all, and no file is left


class Place(NamedTuple):
    """The next block of a corpus, and how much of it was taken."""

    number: int = 0  # of the pass
    turn: int = 0
    slots: tuple[Slot, ...] = ()  # none: the pass begins
    taken: int = -1  # pairs that were left of the block by cleaning; -1: it was not looked at

    def plain(self) -> list[object]:
        """For JSON."""
        return [self.number, self.turn, [list(slot) for slot in self.slots], self.taken]

    @classmethod
    def of(cls, plain: Sequence[object]) -> "Place":
        """From JSON."""
        number, turn, slots, taken = plain
        return cls(number, turn, tuple((a, b) for a, b in slots), taken)  # type: ignore[arg-type, attr-defined]


class Block(NamedTuple):
    """Rows that stand together in a file."""

    place: Place
    shard: int
    first: int  # how many rows of the file, in the pass's order, come before
    name: str
    pairs: list[Pair]


@dataclass(frozen=True)
class Shard:
    """One file, or two text files that belong together."""

    corpus: Corpus

    @cached_property
    def groups(self) -> list[int] | None:
        """The rows of each row group of a Parquet file; None for what can only be read from its start."""
        if not isinstance(self.corpus, ParquetCorpus) or self.corpus.path.lower().endswith(".gz"):
            return None
        return self.corpus.groups()

    @property
    def bytes(self) -> int:
        """The size of its files."""
        named = (getattr(self.corpus, name, "") for name in ("path", "source", "target"))
        return sum(os.path.getsize(path) for path in named if path)

    def pairs(self, random: np.random.Generator, skip: int = 0) -> Iterator[Pair]:
        """Its rows without the first `skip`, row groups in a random order."""
        if self.groups is None or not isinstance(self.corpus, ParquetCorpus):
            return islice(iter(self.corpus), skip, None)
        return self.corpus.of_groups(random.permutation(len(self.groups)).tolist(), skip)


@dataclass(frozen=True)
class ShardedCorpus:
    """The files of one corpus."""

    name: str
    shards: list[Shard]
    seed: tuple[int, ...]
    interleave: int

    @classmethod
    def of(cls, name: str, corpora: Sequence[Corpus], seed: tuple[int, ...], interleave: int) -> "ShardedCorpus":
        for corpus in corpora:
            if isinstance(corpus, HubCorpus):
                raise SaccadeError(
                    f"data.stream=true reads files, and {corpus.name} is fetched as a whole; train without data.stream"
                )
            for path in (getattr(corpus, field, "") for field in ("path", "source", "target")):
                if path and is_pipe(path):
                    raise SaccadeError(
                        f"data.stream=true goes through the files again and again, and {corpus.name} can be read only "
                        "once; write it to a file, or train without data.stream"
                    )
        return cls(name, [Shard(corpus) for corpus in corpora], seed, interleave)

    def blocks(self, place: Place) -> Iterator[Block]:
        """The blocks of a pass from `place` to its end."""
        order = np.random.default_rng([*self.seed, place.number]).permutation(len(self.shards)).tolist()
        slots = list(place.slots) or [(i, 0) for i in range(min(self.interleave, len(order)))]
        waiting = 1 + max(shard for shard, _ in slots)
        turn = place.turn
        readers: dict[int, Iterator[Pair]] = {}
        while any(rows >= 0 for _, rows in slots):
            number, rows = slots[turn]
            if rows < 0:
                turn = (turn + 1) % len(slots)
                continue
            if number not in readers:
                random = np.random.default_rng([*self.seed, place.number, order[number]])
                readers[number] = self.shards[order[number]].pairs(random, rows)
            pairs = list(islice(readers[number], BLOCK))
            if not pairs:
                del readers[number]
                slots[turn] = (waiting, 0) if waiting < len(order) else (number, -1)
                waiting += 1
                continue
            shard = order[number]
            yield Block(Place(place.number, turn, tuple(slots)), shard, rows, self.shards[shard].corpus.name, pairs)
            slots[turn] = (number, rows + len(pairs))
            turn = (turn + 1) % len(slots)

    def sample(self, count: int) -> Iterator[tuple[str, list[Pair]]]:
        """About `count` rows, as many of each file: from a row group of Parquet drawn at random, of text the first."""
        random = np.random.default_rng([*self.seed, 2**32])
        order = random.permutation(len(self.shards)).tolist()
        left = count
        for done, number in enumerate(order):
            shard = self.shards[number]
            pairs = list(islice(shard.pairs(random), -(-left // (len(order) - done))))
            left -= len(pairs)
            if pairs:
                yield shard.corpus.name, pairs
            if left <= 0:
                return

    def size(self, sample: Sequence[tuple[str, str]]) -> tuple[int, bool]:
        """How many rows there are, and whether that is exact; of text, judged by a sample and the files' bytes."""
        with ThreadPoolExecutor(FOOTERS) as threads:  # each is a short wait for a disk or a network
            groups = list(threads.map(lambda shard: shard.groups, self.shards))
        known = sum(sum(rows) for rows in groups if rows is not None)
        rest = [shard for shard, rows in zip(self.shards, groups, strict=True) if rows is None]
        if not rest:
            return known, True
        text = "".join(f"{source}\n{target}\n" for source, target in sample).encode("utf-8", "surrogatepass")
        plain, packed = len(text) / max(1, len(sample)), len(zlib.compress(text, 6)) / max(1, len(sample))
        rows = sum(shard.bytes / (packed if _is_packed(shard) else plain) for shard in rest)
        return known + max(1, round(rows)), False


def _is_packed(shard: Shard) -> bool:
    named = (getattr(shard.corpus, field, "") for field in ("path", "source"))
    path = next(path for path in named if path)
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b" or path.lower().endswith(".parquet")
