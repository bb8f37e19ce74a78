"""Pieces to words, for many sentences at once. A word is what whitespace separates, as in the Pharaoh format."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saccade.data.tokenizers import Tokenizer

Integers = npt.NDArray[np.int64]


class WordNumbers:
    """The number of the word that each piece of a sentence belongs to: what `Tokenizer.words` says, faster.

    Where all whitespace is single spaces between words, a word begins with the piece that begins with a space.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._begins = np.array([piece.startswith(b" ") for piece in tokenizer.piece_bytes], np.int64)

    def __call__(self, text: str, ids: Sequence[int]) -> Integers:
        """As many different numbers as `text.split()` has words; none for a blank text."""
        words = text.split()
        if not words or not len(ids):
            return np.zeros(0, np.int64)
        if words == text.split(" "):
            begun = self._begins[np.asarray(ids)].cumsum()
            return np.asarray(begun - begun[0], np.int64)
        return np.array(self.tokenizer.words(ids), np.int64)


def membership(numbers: Sequence[Integers], pieces: int, device: torch.device) -> Tensor:
    """(B, pieces, words): 1 where a piece is part of a word; pieces beyond the sentence are part of none."""
    B, words = len(numbers), max((int(each[-1]) + 1 for each in numbers if len(each)), default=1)
    member = np.zeros((B, pieces, words), np.float32)
    row = np.repeat(np.arange(B), [len(each) for each in numbers])
    place = np.concatenate([np.arange(len(each)) for each in numbers])
    member[row, place, np.concatenate(numbers)] = 1.0
    return torch.from_numpy(member).to(device)


def to_words(weights: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """Weights over pieces (B, …, T, S) as weights over words (B, …, target words, source words).

    A word is looked at as much as its pieces together, and looks where its pieces look on average; `target` and
    `source` are the memberships of the two sides.
    """
    pieces = target.sum(1).clamp(min=1.0)  # (B, target words)
    mean = (target / pieces.unsqueeze(1)).mT  # (B, target words, T)
    while mean.dim() < weights.dim():
        mean, source = mean.unsqueeze(1), source.unsqueeze(1)
    return mean @ weights @ source
