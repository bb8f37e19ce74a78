"""Windows: over what part of the source a query looks   (Luong et al. 2015, 3.1 and 3.2).

A window takes the queries, where the first of them stands in the target, and the mask of real source words; it says
which of them may be attended to and how scores become weights.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from saccade.attention.core import Normalize, softmax


class Look(NamedTuple):
    """What a window hands to `attend`."""

    mask: Tensor  # (B, 1, Q, K)
    normalize: Normalize


class Window(Protocol):
    """Queries (B, 1, Q, ·) from target position `position` on, real words (B, 1, 1, K) → where they look."""

    def __call__(self, queries: Tensor, position: int, mask: Tensor) -> Look: ...


class Global(nn.Module):
    """All of the source."""

    def __init__(self, query_width: int, radius: int) -> None:
        super().__init__()

    def forward(self, queries: Tensor, position: int, mask: Tensor) -> Look:
        return Look(mask, softmax)


class LocalMonotonic(nn.Module):
    """local-m: words t - D … t + D, on the guess that source and target run in step   (Luong et al. 2015, 3.2)."""

    def __init__(self, query_width: int, radius: int) -> None:
        super().__init__()
        self.radius = radius

    def forward(self, queries: Tensor, position: int, mask: Tensor) -> Look:
        t = position + torch.arange(queries.size(2), device=mask.device)
        s = torch.arange(mask.size(-1), device=mask.device)
        return Look(mask & ((s - t.unsqueeze(1)).abs() <= self.radius), softmax)


class LocalPredictive(nn.Module):
    """local-p: words within D of a centre that is predicted   (Luong et al. 2015, eq. 10 and 11).

    p_t = S · σ(v_pᵀ tanh(W_p h_t)),    a_t(s) = align(h_t, h̄_s) · exp(-(s - p_t)² / 2σ²),  σ = D / 2

    The Gaussian falls on the weights after the softmax, which therefore do not add up to one; through it the centre
    is learned.
    """

    def __init__(self, query_width: int, radius: int) -> None:
        super().__init__()
        self.radius = radius
        self.W_p = nn.Linear(query_width, query_width, bias=False)
        self.v_p = nn.Linear(query_width, 1, bias=False)
        nn.init.xavier_uniform_(self.W_p.weight)
        nn.init.xavier_uniform_(self.v_p.weight)

    def forward(self, queries: Tensor, position: int, mask: Tensor) -> Look:
        S = mask.sum(-1, keepdim=True)  # (B, 1, 1, 1)
        centre = S * torch.sigmoid(self.v_p(torch.tanh(self.W_p(queries))))  # (B, 1, Q, 1)
        distance = torch.arange(mask.size(-1), device=mask.device) - centre
        gaussian = torch.exp(-(distance**2) / (2 * (self.radius / 2) ** 2))
        near = mask & (distance.abs() <= self.radius)
        return Look(near, Fading(gaussian))


class Fading:
    """Weights after the softmax, multiplied by (B, 1, Q, K)."""

    def __init__(self, by: Tensor) -> None:
        self.by = by

    def __call__(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return softmax(scores, allowed) * self.by

    def rows(self, rows: slice) -> Normalize:
        """The same for some of the queries."""
        return Fading(self.by[:, :, rows])


WINDOWS: dict[str, Callable[..., Window]] = {
    "global": Global,
    "local-m": LocalMonotonic,
    "local-p": LocalPredictive,
}
