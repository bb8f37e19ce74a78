"""Learning a unigram vocabulary (Kudo 2018): begin with too many pieces, take away what is missed least.

The library has a trainer for this, which is not used: its result changes from run to run with the order of a hash
table, and it seeds pieces by the distinct words they occur in, not by how often, so that it never finds `▁.`.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

SEEDS_PER_PIECE = 3
SHRINK = 0.75
ROUNDS_PER_SIZE = 2
MOST_WORDS = 500_000
UNSEEN = 0.1

Cut: TypeAlias = Callable[[Sequence[str]], list[list[int]]]


def occurrences(
    words: Counter[str], pieces: Sequence[str], merges: Sequence[Sequence[str]], cut: Cut
) -> dict[str, float]:
    """How often each piece of a byte-pair encoding arises while `words` are merged, as a part of larger ones too."""
    counts = dict(zip(pieces, _totals(words.most_common(MOST_WORDS), cut, len(pieces)), strict=True))
    for left, right in reversed(merges):
        counts[left] += counts[left + right]
        counts[right] += counts[left + right]
    return counts


def learn_unigram(
    words: Counter[str],
    seeds: Mapping[str, float],
    letters: Sequence[str],
    size: int,
    cut_by: Callable[[Mapping[str, float]], Cut],
) -> dict[str, float]:
    """Pieces and their log-probabilities, at most `size`, all `letters` among them.

    Each round cuts every word the likeliest way and sets a piece's probability to its share in the cut (EM with the
    best cut in place of all cuts). Between rounds, pieces go whose absence would lower the likelihood least.

    Args:
        words: how often each word occurs.
        seeds: the pieces to begin with, and how often each occurs.
        letters: pieces that always stay, whatever they are worth.
        size: pieces to end with.
        cut_by: log-probabilities of pieces to the function that cuts words the likeliest way; an id is a place in them.
    """
    frequent = words.most_common(MOST_WORDS)
    # A longer piece explains more of the text each time it occurs.
    scores = _log_probabilities(
        {piece: seeds.get(piece, 0.0) * len(piece) for piece in dict.fromkeys((*letters, *seeds))}
    )
    while True:
        for _ in range(ROUNDS_PER_SIZE):
            counts = dict(zip(scores, _totals(frequent, cut_by(scores), len(scores)), strict=True))
            scores = _log_probabilities(counts)
        if len(scores) <= size:
            return scores
        room = max(size, int(len(scores) * SHRINK)) - len(letters)
        losses = {
            piece: counts[piece] * (scores[piece] - _without(piece, scores)) for piece in scores if len(piece) > 1
        }
        missed_most = sorted(losses, key=lambda piece: (-losses[piece], piece))[:room]
        scores = {piece: scores[piece] for piece in chain(letters, missed_most)}


def _totals(words: Sequence[tuple[str, int]], cut: Cut, size: int) -> list[float]:
    totals: npt.NDArray[np.float64] = np.zeros(size)
    remaining = iter(words)
    while batch := list(islice(remaining, 20_000)):  # not all at once: the library's records are large
        cuts = cut([word for word, _ in batch])
        times = np.repeat([count for _, count in batch], [len(pieces) for pieces in cuts])
        totals += np.bincount(np.fromiter(chain.from_iterable(cuts), np.int64), times, size)
    return [float(total) for total in totals]


def _log_probabilities(counts: Mapping[str, float]) -> dict[str, float]:
    total = math.log(math.fsum(max(count, UNSEEN) for count in counts.values()))
    return {piece: math.log(max(count, UNSEEN)) - total for piece, count in counts.items()}


def _without(piece: str, scores: Mapping[str, float]) -> float:
    """The score of the likeliest cut of `piece` into two parts or more."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        starts = range(1 if end == len(piece) else 0, end)
        best.append(max(best[start] + scores.get(piece[start:end], -math.inf) for start in starts))
    return best[-1]
