"""Pairs that are read, cleaned and encoded while a model trains, window by window; nothing but a window is held.

    files → blocks, in turns (shards.py) → cleaned and encoded, by threads → so many of each corpus → a window

The sequence of windows depends on the files, the settings and the seed alone: threads take blocks ahead, and hand them
on in the order in which they were read. Where a window begins is a small record (`Where`), from which the same windows
follow again.

What is dropped is what `cleaning` drops, with two differences. A *duplicate* is a pair that came before in the same
window. And two things more are left out: pairs that were held out for validation (*held out*), and pairs of more pieces
than the model's positions hold (*too many pieces*).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saccade.config import CleaningConfig
from saccade.data.cleaning import CleaningReport, clean, digest_of
from saccade.data.pairs import Pair
from saccade.data.shards import Block, Place, ShardedCorpus
from saccade.data.tokenizers import Tokenizers
from saccade.errors import SaccadeError

Ids = npt.NDArray[np.int32]
Encoded = tuple[Ids, Ids]


class Known(NamedTuple):
    """A block after cleaning and encoding."""

    pairs: list[Encoded]
    digests: list[int]
    read: int
    dropped: Counter[str]


@dataclass(frozen=True)
class Encoder:
    """From a block of text to ids: a function of the block alone, for any thread."""

    tokenizers: Tokenizers
    cleaning: CleaningConfig
    monolingual: bool = False
    held_out: frozenset[int] = frozenset()
    longest: int | None = None  # pieces that the model's positions hold, ends counted
    together: bool = False  # … of both sides in one sequence
    dropout: float = 0.0  # of subwords
    seed: int = 1

    def __call__(self, block: Block, prefix: str, corpus: int) -> Known:
        """`prefix`: what stands before each source; `corpus`: its number in the mixture."""
        report = CleaningReport()
        settings = self.cleaning.model_copy(update={"drop_duplicates": False})  # which the window sees to
        kept = list(clean(_Named(block.name, block.pairs), settings, report, self.monolingual))
        texts = [(prefix + source, target) for source, target, _ in kept]
        digests = [digest_of(*pair) for pair in texts]
        dropped = Counter({str(reason): found.count for reason, found in report.reasons.items()})
        pairs = self._encoded(texts, [pair.line for pair in kept], (corpus, block.place.number, block.shard))
        flaws = [self._flaw(pair, digest) for pair, digest in zip(pairs, digests, strict=True)]
        dropped.update(flaw for flaw in flaws if flaw is not None)
        fine = [i for i, flaw in enumerate(flaws) if flaw is None]
        return Known([pairs[i] for i in fine], [digests[i] for i in fine], len(block.pairs), dropped)

    def _encoded(self, texts: Sequence[tuple[str, str]], lines: Sequence[int], where: tuple[int, ...]) -> list[Encoded]:
        sides: list[list[Ids]] = []
        for number, tokenizer in enumerate(self.tokenizers):
            side = [pair[number] for pair in texts]
            if self.dropout:
                seeds = [(self.seed, *where, line, number) for line in lines]
                ids = [tokenizer.sample(text, self.dropout, seed) for text, seed in zip(side, seeds, strict=True)]
            else:
                ids = tokenizer.encode_batch(side)
            sides.append([np.array(sentence, np.int32) for sentence in ids])
        return list(zip(*sides, strict=True))

    def _flaw(self, pair: Encoded, digest: int) -> str | None:
        if digest in self.held_out:
            return "held out"
        if self.longest is not None:
            source, target = len(pair[0]) + 1, len(pair[1]) + 1
            if (source + target if self.together else max(source, target)) > self.longest:
                return "too many pieces"
        return None


@dataclass(frozen=True)
class Where:
    """Where a window begins, and what was read and dropped before it."""

    window: int = 0
    drawn: int = 0  # pairs in the windows before
    places: tuple[Place, ...] = ()
    tally: Mapping[str, int] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        places = [place.plain() for place in self.places]
        return {"window": self.window, "drawn": self.drawn, "places": places, "tally": dict(self.tally)}

    @classmethod
    def of(cls, plain: Mapping[str, Any] | None) -> "Where":
        """From JSON; None: the beginning."""
        if plain is None:
            return cls()
        places = tuple(Place.of(place) for place in plain["places"])
        return cls(plain["window"], plain["drawn"], places, plain["tally"])


class Window(NamedTuple):
    """Pairs that are shuffled and made into batches together."""

    begin: Where
    end: Where
    pairs: list[Encoded]


@dataclass(frozen=True)
class Source:
    """A corpus of a stream: its files, what stands before its sources, how many of its pairs are in a window."""

    corpus: ShardedCorpus
    prefix: str
    taken: int


@dataclass(frozen=True)
class Stream:
    """The windows of one corpus, or of a mixture of several.

    A pass of one corpus ends with a window, so that an epoch is a pass and has every pair once. In a mixture each
    corpus begins anew by itself, and an epoch is as many windows as hold `pairs` pairs.
    """

    sources: Sequence[Source]
    encode: Encoder
    pairs: int  # of all corpora, if only about
    workers: int = 0

    def epoch_of(self, where: Where) -> int:
        """The epoch that a window is in."""
        if len(self.sources) == 1:
            return where.places[0].number if where.places else 0
        return where.window * sum(source.taken for source in self.sources) // max(1, self.pairs)

    def windows(self, start: Where | None = None) -> Iterator[Window]:
        """The windows from `start` on, without end."""
        where = start or Where()
        places = where.places or tuple(Place() for _ in self.sources)
        with ExitStack() as stack:
            pool = stack.enter_context(_Pool(self.workers))
            taps = [
                _Tap(source, number, place, self.encode, pool, wraps=len(self.sources) > 1)
                for number, (source, place) in enumerate(zip(self.sources, places, strict=True))
            ]
            for tap in taps:
                stack.callback(tap.close)
            while True:
                tally = Counter(where.tally)
                pairs = [pair for tap in taps for pair in tap.take(tally)]
                tally["kept"] += len(pairs)
                begin = replace(where, places=places)
                places = tuple(tap.place for tap in taps)
                where = Where(where.window + 1, where.drawn + len(pairs), places, dict(tally))
                yield Window(begin, where, pairs)


def tally_of(place: Mapping[str, Any] | None) -> dict[str, int]:
    """What a run has read, kept and dropped, the window that it is in counted; without a stream, nothing."""
    return {} if place is None else dict(place.get("reached", place.get("tally", {})))


def streamed_lines(tally: Mapping[str, int]) -> list[str]:
    """The same, for a reader."""
    if not tally:
        return []
    dropped = {reason: count for reason, count in tally.items() if reason not in ("read", "kept")}
    # Files are read block by block: what no window has taken yet is neither trained on nor dropped.
    if ahead := tally.get("read", 0) - tally.get("kept", 0) - sum(dropped.values()):
        dropped["read ahead"] = ahead
    why = ": " + ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items())) if dropped else ""
    return [f"stream: read {tally.get('read', 0):,} pairs, trained on {tally.get('kept', 0):,}{why}"]


@dataclass(frozen=True)
class _Named:
    name: str
    pairs: Sequence[Pair]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)


class _Tap:
    """The pairs of one corpus, pass after pass, taken as many at a time as a window wants."""

    def __init__(self, source: Source, number: int, place: Place, encode: Encoder, pool: "_Pool", wraps: bool) -> None:
        self.source, self.place, self.wraps = source, place, wraps
        self._known = lambda block: encode(block, source.prefix, number)
        self._pool = pool
        self._blocks: Iterator[tuple[Block, Known]] | None = None
        self._block: Known | None = None
        self._drops_duplicates = encode.cleaning.enabled and encode.cleaning.drop_duplicates

    def take(self, tally: Counter[str]) -> list[Encoded]:
        """The next pairs: as many as a window has of this corpus; where passes are epochs, fewer at the end of one."""
        taken: list[Encoded] = []
        seen: set[int] = set()
        fruitless = self.place.slots == ()
        while len(taken) < self.source.taken:
            block = self._next_block(tally)
            if block is None:
                if fruitless and not taken:
                    raise SaccadeError(
                        f"{self.source.corpus.name}: no pair is left after cleaning in all of its files; see what the "
                        "sample lost, or keep every pair with --no-clean"
                    )
                self.place = Place(self.place.number + 1)
                seen, fruitless = set(), True
                if not self.wraps:
                    break
                continue
            for pair, digest in zip(block.pairs[self.place.taken :], block.digests[self.place.taken :], strict=True):
                if len(taken) == self.source.taken:
                    break
                self.place = self.place._replace(taken=self.place.taken + 1)
                if self._drops_duplicates and digest in seen:
                    tally["duplicate"] += 1
                    continue
                seen.add(digest)
                taken.append(pair)
        return taken

    def close(self) -> None:
        """Let the files go."""
        self._blocks = None

    def _next_block(self, tally: Counter[str]) -> Known | None:
        """The block with pairs left in it; None at the end of a pass."""
        while True:
            if self._block is not None and self.place.taken < len(self._block.pairs):
                return self._block
            if self._blocks is None:
                self._blocks = self._pool.ordered(self._known, self.source.corpus.blocks(self.place))
                resumed = self.place.taken
            else:
                resumed = -1
            found = next(self._blocks, None)
            if found is None:
                self._blocks = self._block = None
                return None
            block, self._block = found
            self.place = block.place._replace(taken=max(resumed, 0))
            if resumed < 0:  # otherwise it was counted before the run was stopped
                tally["read"] += self._block.read
                tally.update(self._block.dropped)


class _Pool:
    """Threads that work ahead; none: the work is done where it is asked for."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, "saccade-encode") if workers else None

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def ordered(self, work: Callable[[Block], Known], blocks: Iterator[Block]) -> Iterator[tuple[Block, Known]]:
        """Each block with what became of it, in their order; two for each thread are in work at once."""
        if self._threads is None:
            for block in blocks:
                yield block, work(block)
            return
        ahead: deque[tuple[Block, Future[Known]]] = deque()
        for block in blocks:
            ahead.append((block, self._threads.submit(work, block)))
            if len(ahead) > 2 * self.workers:
                first, known = ahead.popleft()
                yield first, known.result()
        for first, known in ahead:
            yield first, known.result()
