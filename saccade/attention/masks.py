"""Masks: boolean, True means "may attend", shaped to broadcast to (B, H, Q, K)."""

import torch
from torch import Tensor


def causal(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Query i, the (keys - queries + i)-th position, sees itself and what came before: (Q, K)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def before(queries: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """From the places of queries (B, Q) and keys (B, K): a query sees the `window` places before its own, itself not
    among them; None: all before: (B, 1, Q, K)."""
    distance = queries.unsqueeze(2) - keys.unsqueeze(1)
    mask = distance > 0 if window is None else (distance > 0) & (distance <= window)
    return mask.unsqueeze(1)


def over_keys(mask: Tensor) -> Tensor:
    """A (B, K) mask of real tokens, for every head and every query: (B, 1, 1, K)."""
    return mask[:, None, None, :]
