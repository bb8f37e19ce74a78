"""Batches without padding: the sentences of each side lie one behind the other, in rows whose number never changes.

A padded batch has as many columns as its longest sentence. Here a batch is a fixed number of rows for either side,
filled with whole sentences in random order until the next one does not fit; what is left (a part of a sentence, on
average) is PAD that attends to nothing. So all batches have one shape, whatever their sentences: a step over it can be
compiled and captured once.

What a model must know of a row, beside its token, is where its sentence begins and ends, and that of the other side.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saccade.attention.spans import Spans
from saccade.data.batching import START, Integers, Position
from saccade.data.mixture import Numbers, Part, drawn, numbers
from saccade.data.store import Store
from saccade.data.tokenizers import BOS, EOS, PAD
from saccade.errors import SaccadeError

MULTIPLE = 64  # numbers of rows that suit matrix products and kernels
STRETCH = 1 << 20  # pairs whose lengths are looked at together
SHARED = {"end": "shared"}  # what the place of a run says whose epochs end with two batches alike
SLACK = 1.02  # how much more of the shorter side a batch has room for than its share


@dataclass(frozen=True, eq=False)
class UnpaddedBatch:
    """Two blocks of numbers, one row a token; those of no sentence are PAD, with empty spans."""

    source: Tensor  # (6, S) int32: token, place, its sentence's first and end, its translation's first and end
    target: Tensor  # (7, T) int32: input, gold, place, its sentence's first and end, its source's first and end
    indices: Tensor  # which pairs of the store are there
    longest: tuple[int, int]  # tokens of the longest source and target there may be

    @property
    def tokens(self) -> Tensor:
        """(1, S), what the encoder reads."""
        return self.source[:1]

    @property
    def inputs(self) -> Tensor:
        """(1, T), what the decoder is given."""
        return self.target[:1]

    @property
    def gold(self) -> Tensor:
        """(T,), what it should answer; PAD counts nothing."""
        return self.target[1]

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """Where each token stands in its sentence: (1, S), (1, T)."""
        return self.source[1:2], self.target[2:3]

    @property
    def within_source(self) -> Spans:
        """Every word of a source attends to every word of it."""
        return Spans(self.source[2:4], self.source[2:4], self.longest[0])

    @property
    def within_target(self) -> Spans:
        """Every word of a target attends to itself and those before it."""
        first, end = self.target[3:5]
        here = torch.arange(first.numel(), dtype=first.dtype, device=first.device)
        there = end > first
        return Spans(
            torch.stack([first, torch.where(there, here + 1, 0)]),
            torch.stack([torch.where(there, here, 0), end]),
            self.longest[1],
        )

    @property
    def across(self) -> Spans:
        """Every word of a target attends to every word of its source."""
        return Spans(self.target[5:7], self.source[4:6], self.longest[0])

    @cached_property
    def target_tokens(self) -> int:
        """How many gold tokens there are."""
        return int((self.gold != PAD).sum())

    def repeated(self, times: int) -> "UnpaddedBatch":
        """The same sentences so many times, each time further on."""
        S, T = self.source.size(1), self.target.size(1)
        source, target = self.source.repeat(1, times), self.target.repeat(1, times)
        further = torch.arange(times, device=source.device, dtype=source.dtype)
        by_source, by_target = (further * S).repeat_interleave(S), (further * T).repeat_interleave(T)
        source = torch.cat([source[:2], _moved(source[2:4], by_source), _moved(source[4:6], by_source // S * T)])
        target = torch.cat([target[:3], _moved(target[3:5], by_target), _moved(target[5:7], by_target // T * S)])
        return replace(self, source=source, target=target)

    def pieces(self, number: int) -> list["UnpaddedBatch"]:
        """The same sentences in about so many batches of one smaller shape, which holds for all batches of a run.

        Dropout by place falls otherwise in them; without dropout, losses and gradients add up to those of the whole.
        """
        if number == 1:
            return [self]
        room = self.room(number)
        heads = torch.nonzero((self.target[2] == 0) & (self.target[4] > 0)).flatten()
        ends = torch.stack([self.target[6, heads], self.target[4, heads]]).numpy()  # of each sentence, on either side
        lengths = np.diff(ends, prepend=np.zeros((2, 1), ends.dtype))
        return [self._piece(ends, start, end, room) for start, end in pairwise(cut(lengths, room).tolist())]

    def room(self, number: int) -> tuple[int, int]:
        """Rows of either side of one of so many pieces: its share, a little more, since it ends where a sentence does,
        and never less than the longest sentence takes."""
        sides = zip((self.source.size(1), self.target.size(1)), self.longest, strict=True)
        source, target = (min(rows, _room(-(-rows // number), longest)) for rows, longest in sides)
        return source, target

    @property
    def most_pieces(self) -> int:
        """In how many pieces a batch goes at most: more would have no less room."""
        number = 1
        while self.room(2 * number) != self.room(number):
            number *= 2
        return number

    def _piece(self, ends: npt.NDArray[np.int32], start: int, end: int, room: tuple[int, int]) -> "UnpaddedBatch":
        """Sentences `start` … `end`, from the first row on."""
        (s, t), (s_end, t_end) = (ends[:, start - 1] if start else (0, 0)), ends[:, end - 1]
        source, target = self.source[:, s:s_end], self.target[:, t:t_end]
        source = torch.cat([source[:2], source[2:4] - int(s), source[4:6] - int(t)])
        target = torch.cat([target[:3], target[3:5] - int(t), target[5:7] - int(s)])
        source, target = _filled(source, 1, room[0]), _filled(target, 2, room[1])
        piece = replace(self, source=source, target=target, indices=self.indices[start:end])
        return piece.pin_memory() if self.source.is_pinned() else piece

    def with_tokens(self, tokens: Tensor, inputs: Tensor) -> "UnpaddedBatch":
        """Other words in the same places."""
        source, target = torch.cat([tokens, self.source[1:]]), torch.cat([inputs, self.target[1:]])
        return replace(self, source=source, target=target)

    def to(self, device: torch.device | str, copy: bool = False) -> "UnpaddedBatch":
        """The same batch on a device."""
        source, target = (part.to(device, copy=copy) for part in (self.source, self.target))
        return self._counted(replace(self, source=source, target=target))

    def pin_memory(self) -> "UnpaddedBatch":
        """The same batch in memory that a GPU can copy from while it computes."""
        return self._counted(replace(self, source=self.source.pin_memory(), target=self.target.pin_memory()))

    def _counted(self, moved: "UnpaddedBatch") -> "UnpaddedBatch":
        # Counted before the move: reading a count off a GPU would make every step wait for it.
        moved.__dict__["target_tokens"] = self.target_tokens
        return moved


def _moved(spans: Tensor, by: Tensor) -> Tensor:
    """Spans that begin so much further on; empty ones stay empty."""
    return torch.where(spans[1:] > spans[:1], spans + by, spans)


def _filled(block: Tensor, words: int, rows: int) -> Tensor:
    """A block, whose first numbers are `words`, and behind it rows of no sentence."""
    empty = block.new_zeros(block.size(0), rows - block.size(1))
    empty[:words] = PAD
    return torch.cat([block, empty], dim=1)


def _room(share: int, longest: int) -> int:
    return -(-max(share, longest) // MULTIPLE) * MULTIPLE + share // 16 // MULTIPLE * MULTIPLE


def longest_of(store: Store) -> tuple[int, int]:
    """The most rows that a source and a target take."""
    return int(store.source_lengths.max()) + 1, int(store.target_lengths.max()) + 1


def rows_for(store: Store, batch_tokens: int) -> tuple[int, int]:
    """Rows of either side of a batch, as the corpus has them."""
    totals = np.array(store.tokens) + len(store)
    shares = np.minimum(totals / totals.max() * SLACK, 1.0)
    source, target = (int(-(-batch_tokens * share // MULTIPLE) * MULTIPLE) for share in shares)
    return source, target


def fits(store: Store, batch_tokens: int) -> bool:
    """Whether every pair has room in a batch."""
    sides = zip(longest_of(store), rows_for(store, batch_tokens), strict=True)
    return all(longest <= rows for longest, rows in sides)


class UnpaddedBatcher:
    """The batches of a store, epoch after epoch, each in an order of its own.

    `batch_tokens` is the number of rows of the longer side; the other has its share. An epoch is a permutation of the
    pairs, cut wherever the next pair does not fit, so it does not depend on when the run was stopped. Its last batch
    would be whatever is left, perhaps one sentence, for which a step is as long as for any: the last two share theirs.
    (A run that was begun before they did goes on as it was, which its place in the stream tells.)
    """

    def __init__(self, store: Store, *, batch_tokens: int, seed: int, mixture: Sequence[Part] = ()) -> None:
        self.store = store
        self.seed = seed
        self._mixture = mixture
        self.rows = rows_for(store, batch_tokens)
        self.longest = longest_of(store)
        self._last: tuple[int, Numbers, Integers] | None = None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The one shape, as rows of each side."""
        return [(self.rows[0], self.rows[1])]

    oversized = 0

    def batches_in(self, number: int) -> int:
        """How many batches epoch `number` has."""
        return len(self._plan(number)[1]) - 1

    def waste(self, number: int = 0) -> float:
        """The share of an epoch's rows that hold no word."""
        members, cuts = self._plan(number)
        sides = self.store.source_lengths, self.store.target_lengths
        words = sum(int(lengths[members].sum(dtype=np.int64)) + len(members) for lengths in sides)
        return 1 - words / ((len(cuts) - 1) * sum(self.rows))

    def stream(self, start: Position = START) -> Generator[tuple[Position, UnpaddedBatch], None, None]:
        """Batches without end, each with the position *after* it: `stream(that)` yields what would have followed."""
        epoch, done = start.epoch, start.batch
        place = SHARED if start == START else start.place
        while True:
            members, cuts = self._plan(epoch)
            cuts = cuts if place is None else self._shared(members, cuts)
            count = len(cuts) - 1
            if not 0 <= done <= count:
                raise SaccadeError(
                    f"batch {done} of epoch {epoch}: this epoch has {count} batches; "
                    "resume with the corpus and batch_tokens the run began with"
                )
            for number in range(done, count):
                after = Position(epoch, number + 1, place) if number + 1 < count else Position(epoch + 1, 0, place)
                yield after, self._collated(members[cuts[number] : cuts[number + 1]])
            del members, cuts  # before the next are made: of many pairs they are large
            epoch, done = epoch + 1, 0

    def _plan(self, epoch: int) -> tuple[Numbers, Integers]:
        """The pairs of an epoch in their order, and where that is cut."""
        if self._last is None or self._last[0] != epoch:
            self._last = None
            members = drawn(self._mixture, self.seed, epoch) if self._mixture else numbers(len(self.store))
            np.random.default_rng([self.seed % 2**64, epoch]).shuffle(members)
            self._last = epoch, members, self._cut(members)
        return self._last[1:]

    def _cut(self, members: Numbers) -> Integers:
        """Where an epoch is cut, a stretch of it after the other: the lengths of all would take more than the pairs."""
        cuts = [np.zeros(1, np.int64)]
        while (done := int(cuts[-1][-1])) < len(members):
            stretch = members[done : done + max(STRETCH, 2 * min(self.rows))]
            found = cut(self._lengths(stretch), self.rows)
            ends_here = done + len(stretch) == len(members)
            cuts.append(done + (found[1:] if ends_here else found[1:-1]))  # the last of a stretch may have room
        return np.concatenate(cuts)

    def _shared(self, members: Numbers, cuts: Integers) -> Integers:
        """The same, but the last two batches have half each of what is theirs, if it fits so."""
        if len(cuts) < 3:
            return cuts
        begin, middle, end = cuts[-3:].tolist()
        ends = self._lengths(members[begin:end]).cumsum(axis=1, dtype=np.int64)
        words = ends.sum(axis=0)
        first = min(int(np.searchsorted(words, words[-1] / 2)) + 1, middle - begin)
        fits_so = (ends[:, -1] - ends[:, first - 1] <= self.rows).all()
        return np.concatenate([cuts[:-2], [begin + first, end]]) if fits_so else cuts

    def _lengths(self, members: Numbers) -> npt.NDArray[np.int32]:
        """Rows that the sources and the targets of some pairs take, (2, N)."""
        return np.stack([self.store.source_lengths[members], self.store.target_lengths[members]]) + 1

    def _collated(self, members: Numbers) -> UnpaddedBatch:
        indices = members.astype(np.int64)
        return arranged(self.store.sides(indices), self._lengths(members), indices, self.rows, self.longest)


def cut(lengths: npt.NDArray[np.integer[Any]], rows: Sequence[int]) -> Integers:
    """Where to cut pairs of `lengths` (2, N) so that both sides of each part fit: 0, …, N."""
    ends = lengths.cumsum(axis=1, dtype=np.int64)
    cuts = [0]
    while cuts[-1] < ends.shape[1]:
        done = ends[:, cuts[-1] - 1] if cuts[-1] else np.zeros(2, np.int64)
        sides = zip(ends, done, rows, strict=True)
        cuts.append(int(min(np.searchsorted(side, before + room, "right") for side, before, room in sides)))
        if cuts[-1] == cuts[-2]:
            source, target = lengths[:, cuts[-1]].tolist()
            raise ValueError(f"a pair of {source} + {target} tokens does not fit in {rows[0]} + {rows[1]} rows")
    return np.array(cuts)


def collate_unpadded(
    pairs: Sequence[tuple[Any, Any]], indices: Integers, rows: Sequence[int], longest: tuple[int, int]
) -> UnpaddedBatch:
    """Pairs of ids (without BOS and EOS), one behind the other."""
    lengths = np.array([[len(source) + 1, len(target) + 1] for source, target in pairs], np.int64).reshape(-1, 2).T
    source, target = (np.concatenate([np.asarray(pair[side]) for pair in pairs]) for side in (0, 1))
    return arranged((source, target), lengths, indices, rows, longest)


def arranged(
    sides: tuple[Any, Any],
    lengths: npt.NDArray[np.integer[Any]],
    indices: Integers,
    rows: Sequence[int],
    longest: tuple[int, int],
) -> UnpaddedBatch:
    """A batch of all sources' ids and all targets', and of how many rows each takes (2, N), its end counted."""
    lengths = lengths.astype(np.int32)
    ends = lengths.cumsum(axis=1, dtype=np.int32)
    firsts = ends - lengths
    source, target = np.zeros((6, rows[0]), np.int32), np.zeros((7, rows[1]), np.int32)
    source[0], target[:2] = PAD, PAD
    used = tuple(int(side[-1]) if len(side) else 0 for side in ends)
    if any(needed > room for needed, room in zip(used, rows, strict=True)):
        raise ValueError(f"{used[0]} + {used[1]} tokens do not fit in {rows[0]} + {rows[1]} rows")
    for block, side in ((source, 0), (target, 1)):
        words = np.ones(used[side], bool)
        words[ends[side] - 1] = False
        tokens = np.full(used[side], EOS, np.int32)
        tokens[words] = sides[side]
        block[side, : used[side]] = tokens  # a source's tokens are row 0, a target's gold row 1
        first = np.repeat(firsts[side], lengths[side])
        place = np.arange(used[side], dtype=np.int32) - first
        if side:
            target[0, 0] = BOS
            target[0, 1 : used[side]] = np.where(place[1:] == 0, BOS, tokens[:-1])
        own = 3 if side else 2
        block[own - 1, : used[side]] = place
        block[own : own + 2, : used[side]] = first, np.repeat(ends[side], lengths[side])
        block[own + 2 : own + 4, : used[side]] = [np.repeat(part[1 - side], lengths[side]) for part in (firsts, ends)]
    return UnpaddedBatch(
        torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(np.array(indices)), longest
    )
