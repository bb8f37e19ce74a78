"""Score functions: how well a key answers a query.

A score is called with queries and *prepared* keys. `prepare` does, once for a source sentence, whatever depends on
the keys alone: Bahdanau's U h_j does not change while the target is written.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn


class Score(Protocol):
    """Anything that scores queries (B, H, Q, ·) against prepared keys (B, H, K, ·) as (B, H, Q, K)."""

    def prepare(self, keys: Tensor) -> Tensor: ...

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor: ...


class Dot(nn.Module):
    """e = qᵀ k   (Luong et al. 2015, eq. 8)."""

    def prepare(self, keys: Tensor) -> Tensor:
        return keys

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT


class ScaledDot(Dot):
    """e = qᵀ k / √D   (Vaswani et al. 2017, eq. 1): the variance of a dot product grows with its width D."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT * queries.size(-1) ** -0.5


class Additive(nn.Module):
    """e = vᵀ tanh(W s + U h)   (Bahdanau et al. 2015, A.1.2), with U h prepared once a sentence."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__()
        self.W = nn.Linear(query_width, width, bias=False)
        self.U = nn.Linear(key_width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))
        # B.1 of the paper draws W and U small and sets v to zero: the first looks are even.
        nn.init.normal_(self.W.weight, std=0.001)
        nn.init.normal_(self.U.weight, std=0.001)
        nn.init.zeros_(self.v)

    def prepare(self, keys: Tensor) -> Tensor:
        return self.U(keys)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        summed = self.W(queries).unsqueeze(-2) + keys.unsqueeze(-3)  # (B, H, Q, K, ·)
        return torch.tanh(summed) @ self.v


SCORES: dict[str, Callable[..., Score]] = {"dot": Dot, "scaled-dot": ScaledDot, "additive": Additive}
