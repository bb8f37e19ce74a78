"""Multi-head attention (Vaswani et al. 2017, 3.2.2), for a sequence over itself and over a memory.

    head_h = attend(x W_h^Q, m W_h^K, m W_h^V),   MultiHead = [head_1; …; head_H] W^O

The projections of all heads are one matrix product; keys and values that do not change are projected once and handed
back to the caller, who keeps them in the decoder's state. Several query heads may share one head of keys and values
(`key_heads` < `heads`: grouped-query, Ainslie et al. 2023; 1: multi-query, Shazeer 2019).
"""

from typing import NamedTuple

from torch import Tensor, nn

from saccade.attention.core import Attention, attend
from saccade.attention.relative import Relative, Unaware
from saccade.attention.scores import ScaledDot


class KeyValue(NamedTuple):
    """Projected keys and values of all heads, (B, H, K, D) each."""

    keys: Tensor
    values: Tensor

    def select(self, indices: Tensor) -> "KeyValue":
        return KeyValue(self.keys.index_select(0, indices), self.values.index_select(0, indices))

    def select_filled(self, indices: Tensor, filled: int) -> "KeyValue":
        """Of preallocated storage, copies only what is filled: the rest has no content yet."""
        chosen = KeyValue(*(part.new_empty(indices.numel(), *part.shape[1:]) for part in self))
        for new, old in zip(chosen, self, strict=True):
            new[:, :, :filled] = old[:, :, :filled].index_select(0, indices)
        return chosen


class Heads(NamedTuple):
    """How a width is shared out among heads."""

    width: int
    heads: int
    key_heads: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head_width


class _MultiHead(nn.Module):
    """What self- and cross-attention share: the split into heads, the score, the way out."""

    def __init__(self, heads: Heads, dropout: float) -> None:
        super().__init__()
        self.shape = heads
        self.dropout = dropout
        self.score = ScaledDot()
        self.output = nn.Linear(heads.width, heads.width)

    def split(self, projected: Tensor, *heads: int) -> tuple[Tensor, ...]:
        """(B, L, Σ heads · D) → a tensor (B, heads, L, D) for each number of heads."""
        by_head = projected.unflatten(-1, (-1, self.shape.head_width)).transpose(1, 2)
        return by_head.split(heads, dim=1)

    def spread(self, x_BHLD: Tensor) -> Tensor:
        """A head of keys or values for each head of queries."""
        shared = self.shape.heads // self.shape.key_heads
        return x_BHLD if shared == 1 else x_BHLD.repeat_interleave(shared, dim=1)

    def merge(self, context_BHQD: Tensor) -> Tensor:
        return self.output(context_BHQD.transpose(1, 2).flatten(2))

    @property
    def dropped(self) -> float:
        return self.dropout if self.training else 0.0


class SelfAttention(_MultiHead):
    """A sequence attends to itself. With a cache, to what came before too."""

    def __init__(self, heads: Heads, dropout: float, relative: Relative | None = None) -> None:
        super().__init__(heads, dropout)
        self.query_key_value = nn.Linear(heads.width, heads.width + 2 * heads.key_width)
        self.relative = relative or Unaware()

    def forward(
        self,
        x: Tensor,  # (B, L, E)
        mask: Tensor | None,
        cache: KeyValue | None = None,
        position: int = 0,
        need_weights: bool = False,
    ) -> Attention:
        """A cache is preallocated storage; this call fills it from `position` and attends to all that is filled."""
        H, K = self.shape.heads, self.shape.key_heads
        q, k, v = self.split(self.query_key_value(x), H, K, K)
        q, k = self.relative.rotate(q, position), self.relative.rotate(k, position)
        if cache is not None:
            end = position + x.size(1)
            cache.keys[:, :, position:end] = k
            cache.values[:, :, position:end] = v
            k, v = cache.keys[:, :, :end], cache.values[:, :, :end]
        found = attend(
            q,
            self.spread(k),
            self.spread(v),
            score=self.score,
            mask=mask,
            bias=self.relative.bias(q, position, k.size(2)),
            dropout=self.dropped,
            need_weights=need_weights or self.relative.needs_weights,
        )
        context = found.context
        if found.weights is not None:
            added = self.relative.values(found.weights, position)
            context = context if added is None else context + added
        return Attention(self.merge(context), found.weights if need_weights else None)

    def empty_cache(self, batch: int, capacity: int) -> KeyValue:
        """Room for the keys and values of `capacity` positions."""
        weight = self.query_key_value.weight
        shape = (batch, self.shape.key_heads, capacity, self.shape.head_width)
        return KeyValue(weight.new_empty(shape), weight.new_empty(shape))


class CrossAttention(_MultiHead):
    """A target attends to a memory whose keys and values were projected once."""

    def __init__(self, heads: Heads, dropout: float) -> None:
        super().__init__(heads, dropout)
        self.query = nn.Linear(heads.width, heads.width)
        self.key_value = nn.Linear(heads.width, 2 * heads.key_width)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys and values of a memory (B, S, E)."""
        return KeyValue(*self.split(self.key_value(memory), self.shape.key_heads, self.shape.key_heads))

    def forward(self, x: Tensor, memory: KeyValue, mask: Tensor | None, need_weights: bool = False) -> Attention:
        (q,) = self.split(self.query(x), self.shape.heads)
        found = attend(
            q,
            self.spread(memory.keys),
            self.spread(memory.values),
            score=self.score,
            mask=mask,
            dropout=self.dropped,
            need_weights=need_weights,
        )
        return Attention(self.merge(found.context), found.weights)


def initialise(module: nn.Module) -> None:
    """Xavier-uniform matrices and zero biases, each fused projection as if its parts were apart."""
    for owner in module.modules():
        for name, child in owner.named_children():
            if not isinstance(child, nn.Linear):
                continue
            for part in _parts(owner, name, child):
                nn.init.xavier_uniform_(part)
            if child.bias is not None:
                nn.init.zeros_(child.bias)


def _parts(owner: nn.Module, name: str, linear: nn.Linear) -> tuple[Tensor, ...]:
    if isinstance(owner, _MultiHead):
        E, K = owner.shape.width, owner.shape.key_width
        if name == "query_key_value":
            return linear.weight.split([E, K, K])
        if name == "key_value":
            return linear.weight.split([K, K])
    return (linear.weight,)
