"""Rules: plain functions on log-probabilities, applied before the search chooses.

A rule sees what each row has written so far and returns the log-probabilities with what it forbids at -inf. What it
leaves keeps the model's own value, so a score is always the model's.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.data.tokenizers import BOS, EOS, PAD, UNK


class Prefixes(NamedTuple):
    """What the rows of a running search stand for."""

    tokens: Tensor  # (R, t): written so far
    sentences: Tensor  # (R,): which sentence of the batch
    limits: Tensor  # (R,): most tokens that sentence may have, its end counted


Rule = Callable[[Tensor, Prefixes], Tensor]


def no_specials(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
    """Padding, the start and the unknown token are never written."""
    for token in (PAD, BOS, UNK):
        log_probs[:, token] = -float("inf")
    return log_probs


def forbid(ids: Sequence[int]) -> Rule:
    """A rule that keeps some tokens from ever being written."""

    places = torch.tensor(ids, dtype=torch.long)

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        nonlocal places
        places = places.to(log_probs.device)
        return log_probs.index_fill_(1, places, -float("inf"))

    return rule


def end_at_limit(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
    """A row that has room for one more token ends."""
    full = prefixes.limits <= prefixes.tokens.size(1) + 1  # (R,)
    if not full.any():
        return log_probs
    end = log_probs[:, EOS].clone()
    log_probs.masked_fill_(full.unsqueeze(1), -float("inf"))
    log_probs[:, EOS] = end
    return log_probs


DEFAULT_RULES: tuple[Rule, ...] = (no_specials, end_at_limit)
