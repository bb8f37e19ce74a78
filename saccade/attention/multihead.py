"""Multi-head attention (Vaswani et al. 2017, 3.2.2), for a sequence over itself and over a memory.

    head_h = attend(x W_h^Q, m W_h^K, m W_h^V),   MultiHead = [head_1; …; head_H] W^O

The projections of all heads are one matrix product; keys and values that do not change are projected once and handed
back to the caller, who keeps them in the decoder's state. Several query heads may share one head of keys and values
(`key_heads` < `heads`: grouped-query, Ainslie et al. 2023; 1: multi-query, Shazeer 2019).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.attention.core import Attention, attend
from saccade.attention.relative import Relative, Unaware
from saccade.attention.scores import ScaledDot
from saccade.attention.spans import Spans, attend_own_spans
from saccade.attention.watching import ITSELF, MEMORY


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

    def up_to(self, cells: int) -> "KeyValue":
        """The same storage, of which the first cells are in use."""
        return KeyValue(*(part[:, :, :cells] for part in self))


class Joint(KeyValue):
    """Keys and values that are the halves of one tensor `both` (2, B, H, K, D), so that one call fills both."""

    both: Tensor

    @classmethod
    def of(cls, both: Tensor) -> "Joint":
        made = cls(*both.unbind())
        made.both = both
        return made

    def up_to(self, cells: int) -> "Joint":
        return Joint.of(self.both[:, :, :, :cells])


@dataclass(frozen=True)
class Step:
    """One position of N sentences with `size` rows each (a beam), whose caches are one storage a sentence.

    The storage holds *cells* (N, H, positions · size, D): cell p · size + k is what row k wrote at position p. When a
    beam is reordered nothing is copied: `path` tells for each row and each position which row's cell is its own, and a
    row attends to those alone. A sentence that joined later has its first cell at `first`.
    """

    position: int | Tensor  # a tensor where the step is captured: all the storage is read, as far as the mask says
    positions: int  # that are read, this one counted
    size: int = 1
    path: Tensor | None = None  # (N, size, positions): a number from 0 to size - 1; None: size is 1
    first: Tensor | None = None  # (N,); None: 0

    @cached_property
    def place(self) -> int | Tensor:
        """Where the rows stand in their own sentences, (R, 1, 1) where these differ."""
        if self.first is None:
            return self.position
        return (self.position - self.first).repeat_interleave(self.size).view(-1, 1, 1)

    @cached_property
    def filled(self) -> Tensor | None:
        """The positions that may be read, broadcast to (N, 1, positions); None: all."""
        if self.first is None and isinstance(self.position, int):
            return None
        like = self.first if self.first is not None else self.position
        assert isinstance(like, Tensor)
        p = torch.arange(self.positions, device=like.device)
        filled = p <= self.position if isinstance(self.position, Tensor) else None
        if self.first is not None:
            joined = p >= self.first.view(-1, 1, 1)
            filled = joined if filled is None else filled & joined
        assert filled is not None
        return filled.expand(1, 1, -1) if filled.dim() == 1 else filled

    @cached_property
    def over_cells(self) -> Tensor | None:
        """Which cells a row reads, broadcast to (N, H, size, positions · size)."""
        if self.path is None:
            return None if self.filled is None else self.filled.unsqueeze(1)
        k = torch.arange(self.size, device=self.path.device)
        own = self.path.unsqueeze(-1) == k  # (N, size, positions, size)
        if self.filled is not None:
            own = own & self.filled.unsqueeze(-1)
        return own.flatten(2).unsqueeze(1)

    @cached_property
    def over_positions(self) -> Tensor | None:
        """The same for rows that have only their own cells before them: broadcast to (R, H, 1, positions)."""
        if self.filled is None:
            return None
        rows = self.filled if self.filled.size(0) == 1 else self.filled.repeat_interleave(self.size, dim=0)
        return rows.unsqueeze(1)

    @cached_property
    def cells(self) -> Tensor:
        """Those of this position, where the step is captured."""
        assert isinstance(self.position, Tensor)
        if self.size == 1:
            return self.position.view(1)
        return self.position * self.size + torch.arange(self.size, device=self.position.device)

    def write(self, storage: KeyValue, k_NHRD: Tensor, v_NHRD: Tensor) -> KeyValue:
        """Fill the cells of this position; what can be read so far."""
        if isinstance(self.position, Tensor):
            storage.keys.index_copy_(2, self.cells, k_NHRD.to(storage.keys.dtype))
            storage.values.index_copy_(2, self.cells, v_NHRD.to(storage.values.dtype))
            return storage
        keys, values = storage
        start, end = self.position * self.size, self.positions * self.size
        keys.narrow(2, start, self.size).copy_(k_NHRD)
        values.narrow(2, start, self.size).copy_(v_NHRD)
        return KeyValue(keys.narrow(2, 0, end), values.narrow(2, 0, end))

    def take(self, storage: KeyValue, qkv_3NHRD: Tensor) -> tuple[Tensor, KeyValue]:
        """The queries of a fused projection, and what can be read once its keys and values are written."""
        if isinstance(storage, Joint) and isinstance(self.position, Tensor):
            storage.both.index_copy_(3, self.cells, qkv_3NHRD[1:].to(storage.both.dtype))
            return qkv_3NHRD[0], storage
        q, k, v = qkv_3NHRD.unbind()
        return q, self.write(storage, k, v)

    def own(self, cells: KeyValue) -> KeyValue:
        """The cells of each row alone, (R, H, positions, D): a copy."""
        if self.path is None:
            return cells
        return KeyValue(*(own_cells(part, self.path) for part in cells))

    def fold(self, x_RH1D: Tensor) -> Tensor:
        """The rows of a sentence side by side on the axis of the queries: (N, H, size, D)."""
        return x_RH1D if self.size == 1 else x_RH1D.unflatten(0, (-1, self.size)).squeeze(3).transpose(1, 2)


def own_cells(cells_NHCD: Tensor, path: Tensor) -> Tensor:
    """Of cells (N, H, positions · size, D), those on each row's path (N, size, positions): (R, H, positions, D)."""
    N, size, positions = path.shape
    H, D = cells_NHCD.size(1), cells_NHCD.size(3)
    places = torch.arange(positions, device=path.device) * size + path
    index = places.view(N, 1, -1, 1).expand(-1, H, -1, D)
    found = cells_NHCD.gather(2, index).view(N, H, size, positions, D)
    return found.transpose(1, 2).flatten(0, 1)


class Heads(NamedTuple):
    """How a width is shared out among heads."""

    width: int
    heads: int
    key_heads: int
    each: int | None = None  # width of a head, where some were pruned and it is not width / heads

    @property
    def head_width(self) -> int:
        return self.width // self.heads if self.each is None else self.each

    @property
    def inner(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head_width


class _MultiHead(nn.Module):
    """What self- and cross-attention share: the split into heads, the score, the way out."""

    def __init__(self, heads: Heads, dropout: float) -> None:
        super().__init__()
        self.shape = heads
        self.dropout = dropout
        self.heads = heads.heads
        self.score = ScaledDot()
        self.output = nn.Linear(heads.inner, heads.width)

    def split(self, projected: Tensor, *heads: int) -> tuple[Tensor, ...]:
        """(B, L, Σ heads · D) → a tensor (B, heads, L, D) for each number of heads."""
        B, L, _ = projected.shape
        by_head = projected.view(B, L, -1, self.shape.head_width).transpose(1, 2)
        return by_head.split(heads, dim=1) if len(heads) > 1 else (by_head,)

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

    looks = ITSELF

    def __init__(self, heads: Heads, dropout: float, relative: Relative | None = None) -> None:
        super().__init__(heads, dropout)
        self.query_key_value = nn.Linear(heads.width, heads.inner + 2 * heads.key_width)
        self.relative = relative or Unaware()

    @property
    def plain(self) -> bool:
        """The usual case: as many heads of keys as of queries, which know nothing of distances."""
        return self.shape.heads == self.shape.key_heads and type(self.relative) is Unaware

    def forward(
        self,
        x: Tensor,  # (B, L, E)
        mask: Tensor | Spans | None,
        cache: KeyValue | None = None,
        position: int | Tensor = 0,
        need_weights: bool = False,
    ) -> Attention:
        """A cache is preallocated storage; this call fills it from `position` and attends to all that is filled."""
        H, K = self.shape.heads, self.shape.key_heads
        projected = self.query_key_value(x)
        if self.plain and isinstance(mask, Spans) and not need_weights:
            qkv = projected.unflatten(2, (3, H, -1))
            if mask.can_be_fused(qkv):
                return Attention(self.output(attend_own_spans(qkv, mask, self.dropped)), None)
        q, k, v = self.split(projected, H, K, K)
        q, k = self.relative.rotate(q, position), self.relative.rotate(k, position)
        if cache is not None:
            assert isinstance(position, int)
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

    def step(self, x: Tensor, storage: KeyValue, step: Step) -> Tensor:
        """`forward` for one position of the rows (R, 1, E) of beams, which share their storage."""
        H, K, D = self.shape.heads, self.shape.key_heads, self.shape.head_width
        projected = self.query_key_value(x)
        if self.plain:  # in as few calls as can be
            qkv = projected.view(-1, step.size, 3, H, D).permute(2, 0, 3, 1, 4)
            q, (keys, values) = step.take(storage, qkv)
            context = attend(q, keys, values, score=self.score, mask=step.over_cells).context
            return self.output(context.transpose(1, 2).reshape(*x.shape[:2], -1))
        q, k, v = self.split(projected, H, K, K)
        q, k = self.relative.rotate(q, step.place), self.relative.rotate(k, step.place)
        cells = step.write(storage, step.fold(k), step.fold(v))
        bias = self.relative.bias(q, step.position, step.positions)
        if bias is None and not self.relative.needs_weights:
            keys, values, mask = *cells, step.over_cells
            q = step.fold(q)
        else:  # what depends on the distance is said of positions, not of cells
            keys, values, mask = *step.own(cells), step.over_positions
        found = attend(
            q,
            self.spread(keys),
            self.spread(values),
            score=self.score,
            mask=mask,
            bias=bias,
            need_weights=self.relative.needs_weights,
        )
        context = found.context
        if found.weights is not None:
            added = self.relative.values(found.weights, step.position)
            context = context if added is None else context + added
        return self.merge(context).view_as(x)

    def empty_cache(self, batch: int, capacity: int) -> KeyValue:
        """Room for the keys and values of `capacity` positions."""
        weight = self.query_key_value.weight
        shape = (batch, self.shape.key_heads, capacity, self.shape.head_width)
        kind = weight.device.type  # what is kept has the type that the products are computed in
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        return KeyValue(weight.new_empty(shape, dtype=dtype), weight.new_empty(shape, dtype=dtype))


class CrossAttention(_MultiHead):
    """A target attends to a memory whose keys and values were projected once."""

    looks = MEMORY

    def __init__(self, heads: Heads, dropout: float) -> None:
        super().__init__(heads, dropout)
        self.query = nn.Linear(heads.width, heads.inner)
        self.key_value = nn.Linear(heads.width, 2 * heads.key_width)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys and values of a memory (B, S, E)."""
        K = self.shape.key_heads
        return KeyValue(*self.split(self.key_value(memory), K, K))

    def forward(
        self, x: Tensor, memory: KeyValue, mask: Tensor | Spans | None, need_weights: bool = False
    ) -> Attention:
        """Where x (B, 1, E) has more rows than the memory, those of a beam side by side share a row of it."""
        B, T, _ = x.shape
        N, H, D = memory.keys.size(0), self.shape.heads, self.shape.head_width
        # (N, H, T or the rows of a beam, D)
        q = self.query(x).view(N, -1, H, D).transpose(1, 2)
        found = attend(
            q,
            self.spread(memory.keys),
            self.spread(memory.values),
            score=self.score,
            mask=mask,
            dropout=self.dropped,
            need_weights=need_weights,
        )
        weights = found.weights
        if weights is not None and N != B:
            weights = weights.transpose(1, 2).reshape(B, T, H, -1).transpose(1, 2)  # (B, H, 1, S)
        return Attention(self.output(found.context.transpose(1, 2).reshape(B, T, -1)), weights)


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
        E, K = owner.shape.inner, owner.shape.key_width
        if name == "query_key_value":
            return linear.weight.split([E, K, K])
        if name == "key_value":
            return linear.weight.split([K, K])
    return (linear.weight,)
