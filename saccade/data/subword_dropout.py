"""BPE dropout (Provilkov et al. 2020), seeded: the same word is cut differently each time it is met in training.

The library's own dropout draws from a generator that cannot be seeded, so a resumed run would not be the run that was
not stopped. Here a draw depends on the seed of the call and on nothing else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import shake_128
from itertools import chain, cycle, pairwise
from random import Random
from typing import NamedTuple, TypeAlias
from zlib import crc32

Seed: TypeAlias = int | tuple[int, ...]

VARIANTS = 64
DRAWS = 1 << 14
REMEMBERED_WORDS = 50_000
LONGEST_REMEMBERED = 32


class _Word(NamedTuple):
    runs: list[list[int]]
    variants: list[list[int] | None]


class BPEDropout:
    """Cuts text as byte-pair encoding does, but skips each possible merge with probability `rate`.

    Sampling a word takes tens of microseconds, too long to do for every word of every epoch. So a word has 64
    variants, each drawn from nothing but the word and the variant's number, once, and remembered; the seed of the
    call only picks among them.

    Args:
        symbols: cuts a text into runs that no merge crosses, each as the ids of its bytes.
        merges: `(left, right) -> (rank, merged)`, all ids; the lowest rank merges first.
        rate: probability of skipping a merge; 0 gives what byte-pair encoding gives, 1 gives bytes.
    """

    def __init__(
        self,
        symbols: Callable[[str], list[list[int]]],
        merges: Mapping[tuple[int, int], tuple[int, int]],
        rate: float,
    ) -> None:
        self._symbols = symbols
        self._merges = merges
        # Seeding a generator takes as long as merging a word, so the draws are made beforehand, and a variant begins to
        # read them at a place of its own.
        generator = Random(0)
        self._kept = bytes(generator.random() >= rate for _ in range(DRAWS))
        # Two generations: when the recent one is full it becomes the old one. Nearly as good as forgetting what was
        # used least recently, and a word that is known costs one look-up.
        self._recent: dict[str, _Word] = {}
        self._old: dict[str, _Word] = {}

    def sample(self, text: str, seed: Seed) -> list[int]:
        """The ids of `text` under the draw that `seed` stands for, e.g. `(run seed, epoch, example)`."""
        ids: list[int] = []
        # A space always begins a new run, so what lies between two spaces can be cut on its own.
        words = text.split(" ") if text else []
        for word, byte in zip(words, _scramble(seed, len(words)), strict=True):
            known = self._recent.get(word) or self._recall(word)
            number = byte % VARIANTS
            ids += known.variants[number] or self._vary(word, known, number)
        return ids

    def _recall(self, text: str) -> _Word:
        word = self._old.get(text) or _Word(self._symbols(" " + text), [None] * VARIANTS)
        # A long "word" is a sentence written without spaces: it will hardly come again.
        if len(text) <= LONGEST_REMEMBERED:
            if len(self._recent) >= REMEMBERED_WORDS:
                self._old, self._recent = self._recent, {}
            self._recent[text] = word
        return word

    def _vary(self, text: str, word: _Word, number: int) -> list[int]:
        place = crc32(f"{number} {text}".encode()) % DRAWS
        kept = chain(self._kept[place:], cycle(self._kept))
        sampled = [piece for run in word.runs for piece in self._merge(run, kept)]
        # Most variants of a short word are alike: keeping one copy of each saves most of the memory.
        variant = next((known for known in word.variants if known == sampled), sampled)
        word.variants[number] = variant
        return variant

    def _merge(self, run: Sequence[int], kept: Iterator[int]) -> list[int]:
        """Algorithm 1 of the paper: at each step the possible merges are thinned out, then the best is done."""
        ids, merges = list(run), self._merges
        while True:
            best: tuple[int, int] | None = None
            place = 0
            for left, pair in enumerate(pairwise(ids)):
                merge = merges.get(pair)
                if merge is not None and next(kept) and (best is None or merge < best):
                    best, place = merge, left
            if best is None:
                return ids
            ids[place : place + 2] = [best[1]]


def _scramble(seed: Seed, length: int) -> bytes:
    """Bytes in which seeds that are neighbours have nothing in common, the same on every machine."""
    parts = seed if isinstance(seed, tuple) else (seed,)
    return shake_128(" ".join(map(str, parts)).encode()).digest(length)
