"""The decoder-only Transformer: one stack reads the source and goes on with the target.

Translation as language modelling: p(y | x) = Π_t p(y_t | x y_<t), with x and y one sequence   (Liu et al. 2018, 4.2.3).

    causal   every position sees itself and what came before
    prefix   … and the source is also seen both ways: a prefix language model   (Raffel et al. 2020, 3.2.1)

The target's first token (BOS) marks the change. The protocol is the encoder–decoder's: the encoder embeds the source,
the decoder's stack reads it, together with the target in training and once before the first step in generation.

In a batch, padding is moved to the left of the sources. Source and target are then next to each other in every row, so
that columns are as far apart as the words they hold; absolute positions are counted from each row's first word.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from saccade.attention.masks import causal, over_keys, prefix
from saccade.attention.multihead import KeyValue, SelfAttention, initialise
from saccade.attention.positions import Places
from saccade.attention.relative import Relative
from saccade.data.tokenizers import PAD
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.recompute import Recomputable
from saccade.models.transformer import Embedding, FeedForward, Residual, Shape, final_norm


class SourceEmbedding(nn.Module):
    """Source ids → a memory that nothing has read yet."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        positions = (mask.cumsum(1) - 1).clamp(min=0)  # padding has none of its own
        return Memory(self.embedding(source, places=Places(positions, source.size(1))), mask)


class Layer(Recomputable):
    """Self-attention, then feed-forward; with a cache, over what came before too."""

    def __init__(self, shape: Shape, relative: Relative) -> None:
        super().__init__()
        self.attention = SelfAttention(shape.split, shape.attention_dropout, relative)
        self.around_attention = Residual(shape)
        self.feed_forward = FeedForward(shape)
        self.around_feed_forward = Residual(shape)

    def forward(
        self, x: Tensor, mask: Tensor, cache: KeyValue | None, position: int, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        found = self.attention(self.around_attention.enter(x), mask, cache, position, need_weights)
        x = self.around_attention.leave(x, found.context)
        return self.around_feed_forward.leave(x, self.feed_forward(self.around_feed_forward.enter(x))), found.weights


@dataclass(frozen=True)
class OneSequenceState:
    """The source, padding first, and the keys and values of all that was read (storage filled from the left)."""

    real: Tensor  # (B, S): which columns hold a word of the source
    columns: Tensor  # (B, S): the column in which each place of the source now stands
    source: Tensor | None  # (B, S, E), embedded; None: it has been read
    caches: tuple[KeyValue, ...] | None  # one a layer; None: the whole target comes in one call
    position: int = 0  # of the next token in the target

    @property
    def filled(self) -> int:
        """Columns before the next token."""
        return self.real.size(1) + self.position

    def select(self, indices: Tensor) -> "OneSequenceState":
        return OneSequenceState(
            self.real.index_select(0, indices),
            self.columns.index_select(0, indices),
            None if self.source is None else self.source.index_select(0, indices),
            None if self.caches is None else tuple(cache.select_filled(indices, self.filled) for cache in self.caches),
            self.position,
        )


class DecoderOnly(nn.Module):
    """A source and target ids → what comes next. `prefix`: the source is seen both ways."""

    attends = True
    one_sequence = True  # source and target are rows and columns of one attention

    def __init__(
        self, embedding: Embedding, output: nn.Linear, shape: Shape, relatives: Sequence[Relative], *, prefix: bool
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(Layer(shape, relative) for relative in relatives)
        self.norm = final_norm(shape)
        self.output = output
        self.prefix = prefix
        initialise(self.layers)

    def init_state(self, memory: Memory, capacity: int | None = None) -> OneSequenceState:
        order = memory.mask.to(torch.uint8).argsort(dim=1, stable=True)  # padding before words, words in their order
        source = memory.states.gather(1, order.unsqueeze(-1).expand_as(memory.states))
        state = OneSequenceState(memory.mask.gather(1, order), order.argsort(dim=1), source, None)
        if capacity is None:
            return state
        B, S = memory.mask.shape
        caches = tuple(layer.attention.empty_cache(B, S + capacity) for layer in self.layers)  # type: ignore[union-attr, operator]
        self._read(source, self._whole(state.real, 0), caches, 0, False)
        return replace(state, source=None, caches=caches)

    def forward(self, tokens: Tensor, state: OneSequenceState, need_weights: bool = False) -> DecoderOutput:
        T, S = tokens.size(1), state.real.size(1)
        y = self.embedding(tokens, places=self._places(tokens, state))
        if state.caches is not None:
            mask = _seen(state.real, state.position + T) & causal(T, state.filled + T, tokens.device)
            y, weights = self._read(y, mask, state.caches, state.filled, need_weights)
        else:
            assert state.source is not None
            x = torch.cat([state.source, y], dim=1)
            x, weights = self._read(x, self._whole(state.real, T), None, 0, need_weights)
            y = x[:, S:]
        attentions = tuple(self._over_source(w[:, :, -T:, :S], state) for w in weights) if need_weights else None
        return DecoderOutput(self.norm(y), replace(state, position=state.position + T), attentions)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)

    def _read(
        self, x: Tensor, mask: Tensor, caches: tuple[KeyValue, ...] | None, position: int, need_weights: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Through all layers, from column `position` on; also where each layer looked."""
        looked: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x, weights = layer(x, mask, caches[i] if caches else None, position, need_weights)
            if weights is not None:
                looked.append(weights)
        return x, looked

    def _whole(self, real: Tensor, T: int) -> Tensor:
        """Who sees whom when the source and T words of the target are read at once, (B, 1, S + T, S + T)."""
        B, S = real.shape
        if self.prefix:
            order = prefix(torch.full((B,), S, device=real.device), S + T, S + T)
        else:
            order = causal(S + T, S + T, real.device)
        # Nobody looks at padding but padding itself: what it sees is of no account, but a row must see something.
        return (_seen(real, T) & order) | torch.eye(S + T, dtype=torch.bool, device=real.device)

    @staticmethod
    def _places(tokens: Tensor, state: OneSequenceState) -> Places:
        """A target word stands behind its row's own source; padding has no place."""
        T = tokens.size(1)
        after = state.real.sum(1, keepdim=True) + state.position + torch.arange(T, device=tokens.device)
        return Places(after.masked_fill(tokens == PAD, 0), state.filled + T)

    @staticmethod
    def _over_source(weights: Tensor, state: OneSequenceState) -> Tensor:
        """Weights (B, H, T, S) with each place of the source in the column where it came."""
        return weights.gather(-1, over_keys(state.columns).expand_as(weights))


def _seen(real: Tensor, T: int) -> Tensor:
    """The words of the source and T columns of target, as keys: (B, 1, 1, S + T)."""
    return over_keys(torch.cat([real, real.new_ones(real.size(0), T)], dim=1))
