"""Relative positions: what self-attention knows of how far apart two words are.

A scheme has three places to say so, and most use one: it may turn queries and keys before they are scored (rotary), add
a bias to the scores (T5, ALiBi, Shaw), or add to the values that are mixed (Shaw). `start` is the position of the first
query, a tensor where a step is captured; keys always start at 0.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn


class Relative(Protocol):
    """A scheme of relative positions."""

    needs_weights: bool  # whether `values` has something to say

    def rotate(self, x_BHLD: Tensor, start: int | Tensor) -> Tensor:
        """Queries or keys, turned by where they stand; `start` may be each row's own, (B, 1, 1)."""

    def bias(self, q_BHQD: Tensor, start: int | Tensor, keys: int) -> Tensor | None:
        """What is added to the scores, broadcast to (B, H, Q, K)."""

    def values(self, weights_BHQK: Tensor, start: int | Tensor) -> Tensor | None:
        """What is added to the context, (B, H, Q, D)."""


class Unaware(nn.Module):
    """No relative positions: absolute ones, or none at all."""

    needs_weights = False

    def __init__(self, heads: int = 1, head_width: int = 1, causal: bool = False) -> None:
        super().__init__()

    def rotate(self, x_BHLD: Tensor, start: int | Tensor) -> Tensor:
        return x_BHLD

    def bias(self, q_BHQD: Tensor, start: int | Tensor, keys: int) -> Tensor | None:
        return None

    def values(self, weights_BHQK: Tensor, start: int | Tensor) -> Tensor | None:
        return None


def distances(queries: int, start: int | Tensor, keys: int, device: torch.device) -> Tensor:
    """j - i for query positions i and key positions j, (Q, K)."""
    i = start + torch.arange(queries, device=device)
    return torch.arange(keys, device=device) - i.unsqueeze(1)


class ALiBi(Unaware):
    """e_ij = q_i k_j / √D - m_h |i - j|,  m_h = 2^(-8h/H)   (Press et al. 2022, 3). Nothing is learned."""

    slopes: Tensor

    def __init__(self, heads: int, head_width: int, causal: bool) -> None:
        super().__init__()
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, q_BHQD: Tensor, start: int | Tensor, keys: int) -> Tensor | None:
        far = distances(q_BHQD.size(2), start, keys, q_BHQD.device).abs()
        return -self.slopes.to(q_BHQD.dtype).view(-1, 1, 1) * far


class T5Buckets(Unaware):
    """e_ij = q_i k_j / √D + b_h[bucket(j - i)]   (Raffel et al. 2020, 2.1).

    Near distances have a bucket each; farther ones share buckets that widen as their logarithm, up to `far`; what is
    beyond shares the last.
    """

    BUCKETS, FAR = 32, 128

    def __init__(self, heads: int, head_width: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.table = nn.Parameter(torch.randn(heads, self.BUCKETS) * 0.1)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of j - i: half of them for words before, half for words after; all for words before if causal."""
        buckets, first = self.BUCKETS, torch.zeros_like(distance)
        if not self.causal:
            buckets //= 2
            first = (distance > 0).long() * buckets
        away = distance.abs() if not self.causal else (-distance).clamp(min=0)
        near = buckets // 2
        scale = (away.clamp(min=1) / near).log() / torch.tensor(self.FAR / near).log()
        wide = (near + (scale * (buckets - near)).long()).clamp(max=buckets - 1)
        return first + torch.where(away < near, away, wide)

    def bias(self, q_BHQD: Tensor, start: int | Tensor, keys: int) -> Tensor | None:
        return self.table[:, self.bucket(distances(q_BHQD.size(2), start, keys, q_BHQD.device))]


class Shaw(Unaware):
    """e_ij = q_i (k_j + a^K_ij) / √D,   z_i = Σ_j α_ij (v_j + a^V_ij)   (Shaw et al. 2018, eq. 3 and 4).

    a_ij is a learned vector for the distance j - i, clipped at ±k; heads share them.
    """

    CLIP = 16
    needs_weights = True

    def __init__(self, heads: int, head_width: int, causal: bool) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(2 * self.CLIP + 1, head_width) * head_width**-0.5)
        self.mixed = nn.Parameter(torch.randn(2 * self.CLIP + 1, head_width) * head_width**-0.5)

    def _clipped(self, queries: int, start: int | Tensor, keys: int, device: torch.device) -> Tensor:
        return distances(queries, start, keys, device).clamp(-self.CLIP, self.CLIP) + self.CLIP

    def bias(self, q_BHQD: Tensor, start: int | Tensor, keys: int) -> Tensor | None:
        by_distance = q_BHQD @ self.keys.mT * q_BHQD.size(-1) ** -0.5  # (B, H, Q, 2k + 1)
        places = self._clipped(q_BHQD.size(2), start, keys, q_BHQD.device)
        return by_distance.gather(-1, places.expand(*by_distance.shape[:-1], -1))

    def values(self, weights_BHQK: Tensor, start: int | Tensor) -> Tensor | None:
        places = self._clipped(weights_BHQK.size(2), start, weights_BHQK.size(3), weights_BHQK.device)
        by_distance = weights_BHQK.new_zeros(*weights_BHQK.shape[:-1], 2 * self.CLIP + 1)
        return by_distance.scatter_add(-1, places.expand_as(weights_BHQK), weights_BHQK) @ self.mixed.to(
            weights_BHQK.dtype
        )


class Rotary(Unaware):
    """Queries and keys are turned by an angle that grows with their position, so that scores depend on i - j alone.

    (x_2d, x_2d+1) ↦ rotation by p · 10000^(-2d/D)   (Su et al. 2021, eq. 14 and 15)
    """

    frequencies: Tensor

    def __init__(self, heads: int, head_width: int, causal: bool) -> None:
        super().__init__()
        frequencies = 10_000.0 ** (-torch.arange(0, head_width, 2) / head_width)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def rotate(self, x_BHLD: Tensor, start: int | Tensor) -> Tensor:
        p = start + torch.arange(x_BHLD.size(2), device=x_BHLD.device, dtype=self.frequencies.dtype)
        angles = p.unsqueeze(-1) * self.frequencies  # (L, D / 2), or a row's own (B, 1, L, D / 2)
        cos, sin = angles.cos().to(x_BHLD.dtype), angles.sin().to(x_BHLD.dtype)
        even, odd = x_BHLD[..., 0::2], x_BHLD[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


RELATIVE: dict[str, Callable[..., Relative]] = {"alibi": ALiBi, "t5": T5Buckets, "shaw": Shaw, "rotary": Rotary}
