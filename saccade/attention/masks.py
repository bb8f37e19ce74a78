"""Masks: boolean, True means "may attend", shaped to broadcast to (B, H, Q, K)."""

import torch
from torch import Tensor


def causal(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Query i, the (keys - queries + i)-th position, sees itself and what came before: (Q, K)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def over_keys(mask: Tensor) -> Tensor:
    """A (B, K) mask of real tokens, for every head and every query: (B, 1, 1, K)."""
    return mask[:, None, None, :]
