"""Multi-head attention (Vaswani et al. 2017, 3.2.2), for a sequence over itself and over a memory.

    head_h = attend(x W_h^Q, m W_h^K, m W_h^V),   MultiHead = [head_1; …; head_H] W^O

The projections of all heads are one matrix product; keys and values that do not change are projected once and handed
back to the caller, who keeps them in the decoder's state.
"""

from typing import NamedTuple

from torch import Tensor, nn

from saccade.attention.core import Attention, attend
from saccade.attention.scores import ScaledDot


class KeyValue(NamedTuple):
    """Projected keys and values of all heads, (B, H, K, D) each."""

    keys: Tensor
    values: Tensor

    def select(self, indices: Tensor) -> "KeyValue":
        return KeyValue(self.keys.index_select(0, indices), self.values.index_select(0, indices))


class _Heads(nn.Module):
    """What self- and cross-attention share: the split into heads, the score, the way out."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.score = ScaledDot()
        self.output = nn.Linear(width, width)

    def split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, L, parts·E) → `parts` tensors (B, H, L, D)."""
        B, L, width = projected.shape
        heads = projected.view(B, L, parts, self.heads, width // parts // self.heads)
        return heads.permute(2, 0, 3, 1, 4).unbind(0)

    def mix(self, q_BHQD: Tensor, memory: KeyValue, mask: Tensor | None, need_weights: bool) -> Attention:
        found = attend(
            q_BHQD,
            memory.keys,
            memory.values,
            score=self.score,
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        return Attention(self.output(found.context.transpose(1, 2).flatten(2)), found.weights)


class SelfAttention(_Heads):
    """A sequence attends to itself. With a cache, to what came before too."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.query_key_value = nn.Linear(width, 3 * width)

    def forward(
        self,
        x: Tensor,  # (B, L, E)
        mask: Tensor | None,
        cache: KeyValue | None = None,
        position: int = 0,
        need_weights: bool = False,
    ) -> Attention:
        """A cache is preallocated storage; this call fills it from `position` and attends to all that is filled."""
        q, k, v = self.split(self.query_key_value(x), 3)
        if cache is not None:
            end = position + x.size(1)
            cache.keys[:, :, position:end] = k
            cache.values[:, :, position:end] = v
            k, v = cache.keys[:, :, :end], cache.values[:, :, :end]
        return self.mix(q, KeyValue(k, v), mask, need_weights)

    def empty_cache(self, batch: int, capacity: int) -> KeyValue:
        """Room for the keys and values of `capacity` positions."""
        weight = self.query_key_value.weight
        shape = (batch, self.heads, capacity, weight.size(1) // self.heads)
        return KeyValue(weight.new_empty(shape), weight.new_empty(shape))


class CrossAttention(_Heads):
    """A target attends to a memory whose keys and values were projected once."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys and values of a memory (B, S, E)."""
        return KeyValue(*self.split(self.key_value(memory), 2))

    def forward(self, x: Tensor, memory: KeyValue, mask: Tensor | None, need_weights: bool = False) -> Attention:
        (q,) = self.split(self.query(x), 1)
        return self.mix(q, memory, mask, need_weights)


def initialise(module: nn.Module) -> None:
    """Xavier-uniform matrices and zero biases, each fused projection as if its parts were apart."""
    for name, child in module.named_modules():
        if isinstance(child, nn.Linear):
            parts = {"query_key_value": 3, "key_value": 2}.get(name.rpartition(".")[2], 1)
            for part in child.weight.chunk(parts, dim=0):
                nn.init.xavier_uniform_(part)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
