"""Where a model looks when it is made to write given targets, for many pairs at once.

`forced` is the one place here that asks a model for its weights.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saccade.alignment.words import Integers, WordNumbers, membership, to_words
from saccade.data.batching import Batch, collate
from saccade.errors import SaccadeError
from saccade.models.protocol import EncoderDecoder
from saccade.translator import Translator

CELLS = 2**19  # most weights of one head in a batch, padding counted: 100 MB for 48 heads

Floats = npt.NDArray[np.float32]
Head = tuple[int, int]  # layer and head, from 0


class Forced(NamedTuple):
    """Cross-attention under teacher forcing: row t is the step that is given token t - 1 and writes token t."""

    weights: Tensor  # (B, N, T, S): all heads, layer after layer
    heads: list[Head]  # whose they are


class Pairs(NamedTuple):
    """A batch of pairs in pieces, with the words they make."""

    indices: list[int]  # of the pairs, in the order in which they were given
    batch: Batch
    target: Tensor  # (B, T - 1, words): which pieces make which words
    source: Tensor  # (B, S, words)
    sizes: list[tuple[int, int]]  # target words and source words of each pair


def forced(model: EncoderDecoder, batch: Batch) -> Forced:
    """The weights of every head for a batch of pairs."""
    found = model(batch.source, batch.source_mask, batch.inputs, need_weights=True).attentions
    if not found:
        raise SaccadeError("the model has no attention over the source, so it aligns nothing; train one that attends")
    heads = [(layer, head) for layer, weights in enumerate(found) for head in range(weights.size(1))]
    return Forced(torch.cat([weights.float() for weights in found], dim=1), heads)


def read_at(weights: Tensor, shifted: bool) -> Tensor:
    """Of steps (…, T, S), those that speak of each target piece (…, T - 1, S).

    Its own step writes the piece; the step after it has the piece as its input, and looks at what it translates
    (`shifted`: Chen et al. 2020, 3.1).
    """
    return weights[..., 1:, :] if shifted else weights[..., :-1, :]


class Corpus:
    """Pairs in pieces, ready to be batched; those without words on either side are left out."""

    def __init__(self, translator: Translator, sources: Sequence[str], targets: Sequence[str], first: int = 1) -> None:
        """`first`: the number by which the first pair is named, should it be refused."""
        if len(sources) != len(targets):
            raise SaccadeError(f"{len(sources):,} sources but {len(targets):,} targets; give as many of each")
        tokenizers = translator.tokenizers
        self._texts = sources, targets
        self._pairs = list(
            zip(
                tokenizers.source.encode_batch(list(sources)),
                tokenizers.target.encode_batch(list(targets)),
                strict=True,
            )
        )
        translator.check_pairs(self._pairs, first)
        self._numbers = WordNumbers(tokenizers.source), WordNumbers(tokenizers.target)
        self._device = translator.device
        self.usable = [i for i in range(len(sources)) if sources[i].strip() and targets[i].strip()]

    def longest_first(self, among: Sequence[int] | None = None) -> list[int]:
        """The pairs (or some of them) in an order that pads little."""
        return sorted(self.usable if among is None else among, key=lambda i: (-self.length(i), i))

    def length(self, i: int) -> int:
        """Of the longer side, its end counted."""
        return max(map(len, self._pairs[i])) + 1

    def batch(self, chosen: Sequence[int]) -> Pairs:
        """Some pairs, on the model's device."""
        batch = collate([self._pairs[i] for i in chosen], list(chosen)).to(self._device)
        source, target = (
            [numbers(texts[i], self._pairs[i][side]) for i in chosen]
            for side, (numbers, texts) in enumerate(zip(self._numbers, self._texts, strict=True))
        )
        return Pairs(
            list(chosen),
            batch,
            membership(target, batch.inputs.size(1) - 1, self._device),
            membership(source, batch.source.size(1), self._device),
            [(_count(t), _count(s)) for t, s in zip(target, source, strict=True)],
        )


def in_batches(
    translator: Translator, sources: Sequence[str], targets: Sequence[str], first: int = 1
) -> Iterator[Pairs]:
    """All pairs that have words on both sides, longest first, in batches of at most `CELLS` cells."""
    corpus = Corpus(translator, sources, targets, first)
    order = corpus.longest_first()
    start = 0
    while start < len(order):
        chosen = order[start : start + max(1, CELLS // corpus.length(order[start]) ** 2)]
        start += len(chosen)
        yield corpus.batch(chosen)


def word_weights(pairs: Pairs, weights: Tensor, shifted: bool) -> Tensor:
    """Of what `forced` says (B, …, T, S): (B, …, target words, source words)."""
    return to_words(read_at(weights, shifted), pairs.target, pairs.source)


def nothing(sources: Sequence[str], targets: Sequence[str]) -> list[Floats]:
    """Word matrices of zeros, (target words, source words) each: what is said of a pair without words."""
    return [
        np.zeros((len(target.split()), len(source.split())), np.float32)
        for source, target in zip(sources, targets, strict=True)
    ]


def _count(numbers: Integers) -> int:
    return int(np.max(numbers, initial=-1)) + 1
