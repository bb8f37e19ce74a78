"""Which source words an output came from, asked in other ways than attention, which is not an explanation by itself.

For a pair and each of its target words y, with F = log p(y | what came before, x) and x the source's embeddings:

    gradient × input         x_s · ∂F/∂x_s                                   (Denil et al. 2014)
    integrated gradients     x_s · ∫₀¹ ∂F/∂x_s (αx) dα, from zero to x       (Sundararajan et al. 2017, eq. 1)
    erasure                  F(x) - F(x without the word)                    (Li et al. 2016)

Each is an array (target words, source words); a word's share is the sum of its pieces'.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from saccade.alignment.words import WordNumbers
from saccade.data.batching import Batch, collate
from saccade.errors import SaccadeError
from saccade.models.protocol import EncoderDecoder
from saccade.translator import Translator, alignment_of

Array = npt.NDArray[np.float64]

STEPS = 64  # of the integral
AT_ONCE = 16  # of them in a batch


class Attributions(NamedTuple):
    """Four answers for one pair, (target words, source words) each."""

    source: list[str]
    target: list[str]
    attention: Array
    gradient_input: Array
    integrated_gradients: Array
    erasure: Array


METHODS = ("attention", "gradient_input", "integrated_gradients", "erasure")


def attribute(translator: Translator, source: str, target: str, steps: int = STEPS) -> Attributions:
    """All four for a pair of sentences with words."""
    pair = Pair(translator, source, target)
    return Attributions(
        source.split(),
        target.split(),
        pair.attention(),
        pair.to_words(pair.gradient_input()),
        pair.to_words(pair.integrated_gradients(steps)),
        pair.erasure(),
    )


class Pair:
    """A pair of sentences in a model, and the questions that can be asked of it."""

    def __init__(self, translator: Translator, source: str, target: str) -> None:
        if not source.strip() or not target.strip():
            raise SaccadeError("a pair without words on both sides has nothing to attribute; give two sentences")
        self.translator = translator
        self.model = translator.model.eval()
        tokenizers = translator.tokenizers
        self.ids = tokenizers.source.encode(source), tokenizers.target.encode(target)
        self.words = (
            WordNumbers(tokenizers.source)(source, self.ids[0]),
            WordNumbers(tokenizers.target)(target, self.ids[1]),
        )
        translator.check_pairs([self.ids])
        self.batch = collate([self.ids], [0]).to(translator.device)

    def gradient_input(self) -> Array:
        """Over pieces, (T, S), the ends not counted on either side."""
        x = embeddings(self.model, self.batch)
        return self.products(x, x)

    def integrated_gradients(self, steps: int = STEPS) -> Array:
        """Over pieces; the midpoints of `steps` equal parts of the way from zero."""
        x = embeddings(self.model, self.batch)
        total = np.zeros((len(self.ids[1]), len(self.ids[0])))
        for start in range(0, steps, AT_ONCE):
            parts = torch.arange(start, min(start + AT_ONCE, steps), device=x.device, dtype=x.dtype)
            total += self.products(x, x * ((parts + 0.5) / steps).view(-1, 1, 1))
        return total / steps

    def erasure(self) -> Array:
        """Over words."""
        source, target = self.ids
        count = int(self.words[0][-1]) + 1
        without = [[i for i, w in zip(source, self.words[0], strict=True) if w != gone] for gone in range(count)]
        batch = collate([(ids, target) for ids in [source, *without]], range(count + 1)).to(self.translator.device)
        with torch.inference_mode():
            scores = _log_probabilities(self.model, batch, None)[:, : len(target)].double().cpu().numpy()
        by_word = _add_up(scores, self.words[1])  # (1 + source words, target words)
        return np.asarray((by_word[0] - by_word[1:]).T)

    def attention(self) -> Array:
        """The mean that `Translation.word_attention` gives."""
        found = self.translator.attentions(self.translator.tokenizers.source.decode(self.ids[0]), self.ids[1])
        weights = alignment_of(found)[: len(self.ids[1]), : len(self.ids[0])]
        rows = _add_up(weights, self.words[0])
        return np.asarray(_add_up(rows.T, self.words[1]).T / np.bincount(self.words[1])[:, None])

    def to_words(self, pieces: Array) -> Array:
        """(T, S) summed over the pieces of words on both sides."""
        return np.asarray(_add_up(_add_up(pieces, self.words[0]).T, self.words[1]).T)

    def log_probabilities(self, embedded: Tensor | None = None) -> Array:
        """F of each target piece, with other embeddings of the source where they are given."""
        with torch.no_grad():
            found = _log_probabilities(self.model, self.batch, embedded)
        return found[0, : len(self.ids[1])].double().cpu().numpy()

    def products(self, x: Tensor, at: Tensor, with_end: bool = False) -> Array:
        """Σ over rows of x · ∂F_t/∂x at each row of `at` (N, S, E): (T, S); with the source's end, (T, S + 1)."""
        with torch.enable_grad():
            at = at.detach().clone().requires_grad_()
            rows = at.size(0)
            many = collate([self.ids] * rows, range(rows)).to(at.device)
            scores = _log_probabilities(self.model, many, at).sum(0)  # (T + 1,)
            found = []
            for t in range(len(self.ids[1])):
                (gradient,) = torch.autograd.grad(scores[t], at, retain_graph=True)
                found.append((gradient * x).sum((0, 2)))
        pieces = len(self.ids[0]) + with_end
        return torch.stack(found)[:, :pieces].double().cpu().numpy()


def embeddings(model: EncoderDecoder, batch: Batch) -> Tensor:
    """What the encoder looks up for the source, (B, S, E)."""
    with torch.no_grad(), _looking_up(batch.source, model, None) as seen:
        model.encode(batch.source, batch.source_mask)
    if not seen:
        raise SaccadeError("the encoder looks no source pieces up in a table, so there is nothing to attribute to")
    return seen[0]


def _log_probabilities(model: EncoderDecoder, batch: Batch, embedded: Tensor | None) -> Tensor:
    """(B, T + 1): of each target piece, and of the end."""
    with _looking_up(batch.source, model, embedded):
        memory = model.encode(batch.source, batch.source_mask)
    hidden = model.decode(batch.inputs, model.init_state(memory)).hidden
    scores = model.logits(hidden).log_softmax(-1)
    return scores.gather(-1, batch.gold.unsqueeze(-1)).squeeze(-1)


@contextmanager
def _looking_up(source: Tensor, model: EncoderDecoder, instead: Tensor | None) -> Iterator[list[Tensor]]:
    """Tell what is looked up for `source`, or give something else instead."""
    seen: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if seen or inputs[0].shape != source.shape or not torch.equal(inputs[0], source):
            return None
        seen.append(output.detach())
        return instead

    handles = [module.register_forward_hook(hook) for module in model.modules() if isinstance(module, nn.Embedding)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _add_up(values: Array, words: npt.NDArray[np.int64]) -> Array:
    """(N, pieces) → (N, words)."""
    found = np.zeros((len(values), int(words[-1]) + 1))
    np.add.at(found.T, words, values.T)
    return found
