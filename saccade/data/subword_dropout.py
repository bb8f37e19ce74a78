"""BPE dropout (Provilkov et al. 2020), seeded: the same word is cut differently each time it is met in training.

The library's own dropout draws from a generator that cannot be seeded, so a resumed run would not be the run that was
not stopped. Here a draw depends on the seed of the call and on nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple, TypeAlias

Seed: TypeAlias = int | tuple[int, ...]

VARIANTS = 64
REMEMBERED_WORDS = 25_000
LONGEST_REMEMBERED = 32
_64_BITS = (1 << 64) - 1


class _Word(NamedTuple):
    runs: list[list[int]]
    variants: list[list[int] | None]


class BPEDropout:
    """Cuts text as byte-pair encoding does, but skips each possible merge with probability `rate`.

    Sampling a word takes tens of microseconds, too long to do for every word of every epoch. So a word has 64
    variants, each sampled once, by a generator seeded with the word and the variant's number, and remembered; the
    seed of the call only picks among them.

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
        self._rate = rate
        # Two generations: when the recent one is full it becomes the old one. Nearly as good as forgetting what was
        # used least recently, and a word that is known costs one look-up.
        self._recent: dict[str, _Word] = {}
        self._old: dict[str, _Word] = {}

    def sample(self, text: str, seed: Seed) -> list[int]:
        """The ids of `text` under the draw that `seed` stands for, e.g. `(run seed, epoch, example)`."""
        ids: list[int] = []
        state = _scramble(seed)
        # A space always begins a new run, so what lies between two spaces can be cut on its own.
        for text_of_word in text.split(" ") if text else ():
            state = (state * 6364136223846793005 + 1442695040888963407) & _64_BITS
            number = state >> 58  # the high bits of this generator are its good ones; six of them count to 64
            word = self._recent.get(text_of_word) or self._recall(text_of_word)
            ids += word.variants[number] or self._vary(text_of_word, word, number)
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
        generator = Random(f"{number} {self._rate} {text}")
        sampled = [piece for run in word.runs for piece in self._merge(run, generator)]
        # Most variants of a short word are alike: keeping one copy of each saves most of the memory.
        variant = next((known for known in word.variants if known == sampled), sampled)
        word.variants[number] = variant
        return variant

    def _merge(self, run: Sequence[int], generator: Random) -> list[int]:
        """Algorithm 1 of the paper: at each step the possible merges are thinned out, then the best is done."""
        ids, merges, rate, draw = list(run), self._merges, self._rate, generator.random
        while True:
            best: tuple[int, int] | None = None
            place = 0
            for left, pair in enumerate(pairwise(ids)):
                merge = merges.get(pair)
                if merge is not None and draw() >= rate and (best is None or merge < best):
                    best, place = merge, left
            if best is None:
                return ids
            ids[place : place + 2] = [best[1]]


def _scramble(seed: Seed) -> int:
    """64 bits in which seeds that are neighbours have nothing in common (the finaliser of SplitMix64)."""
    state = 0
    for part in (seed,) if isinstance(seed, int) else seed:
        state = (state + part + 0x9E3779B97F4A7C15) & _64_BITS
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _64_BITS
        state ^= state >> 31
    return state
