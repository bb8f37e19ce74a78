"""Watching attention at work: whoever watches is told what each call of `attend` was asked, and may ask for weights.

A run keeps its fused kernels, which never store weights. These are a function of what `attend` is given, so that any
part of them can be had: some heads, some rows of queries at a time.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from saccade.attention.scores import Score

# At what a module looks (its `looks`), so that whose rows and columns its weights are is known wherever it stands.
ITSELF, MEMORY, TAPE, PAST, HOPS = "itself", "memory", "tape", "past", "hops"


class Looks(Protocol):
    """A module that attends, by a score of its own."""

    looks: str
    heads: int
    score: Score


@runtime_checkable
class ByRows(Protocol):
    """A normalisation that is not the same for every row of queries."""

    def rows(self, rows: slice) -> Callable[[Tensor, Tensor | None], Tensor]: ...


class Asked(NamedTuple):
    """All that weights are a function of. `mask` and `bias` broadcast to (B, H, Q, K)."""

    queries: Tensor  # (B, H, Q, ·)
    keys: Tensor  # (B, H, K, ·), as the score prepared them
    score: Score
    mask: Tensor | None
    bias: Tensor | None
    normalize: Callable[[Tensor, Tensor | None], Tensor]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, Q, K."""
        batch, heads = (max(self.queries.size(axis), self.keys.size(axis)) for axis in (0, 1))
        return batch, heads, self.queries.size(2), self.keys.size(2)

    def weights(self, heads: Sequence[int], rows: slice) -> Tensor:
        """(B, heads, rows, K): what the road without fused kernels would compute, and no more of it than this."""
        q, k = _part(self.queries, heads, rows), _part(self.keys, heads, slice(None))
        scores = self.score.after(rows.start)(q, k)
        if self.bias is not None:
            scores = scores + _part(self.bias, heads, rows)
        mask = None if self.mask is None else _part(self.mask, heads, rows)
        normalize = self.normalize.rows(rows) if isinstance(self.normalize, ByRows) else self.normalize
        return normalize(scores, mask)


def _part(x: Tensor, heads: Sequence[int], rows: slice) -> Tensor:
    """Some heads and rows of what broadcasts to (B, H, Q, ·)."""
    x = x[(None,) * (4 - x.dim())]
    if x.size(1) > 1 and len(heads) < x.size(1):
        x = x[:, heads[0] : heads[0] + 1] if len(heads) == 1 else x[:, torch.tensor(heads, device=x.device)]
    return x[:, :, rows] if x.size(2) > 1 else x


Watch = Callable[[Asked], None]

WATCHES: dict[int, Watch] = {}  # by thread: a model that serves others meanwhile is not watched for them


def watch_of() -> Watch | None:
    """Who watches this thread."""
    return WATCHES.get(threading.get_ident())


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Every `attend` of this thread tells `watch` what it was asked, before it answers."""
    thread = threading.get_ident()
    before = WATCHES.get(thread)
    WATCHES[thread] = watch
    try:
        yield
    finally:
        if before is None:
            del WATCHES[thread]
        else:
            WATCHES[thread] = before
