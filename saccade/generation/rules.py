"""Rules: plain functions on log-probabilities, applied before the search chooses.

A rule sees what each row has written so far and returns the log-probabilities with what it forbids at -inf. What it
leaves keeps the model's own value, so a score is always the model's.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    log_probs[:, [PAD, BOS, UNK]] = -float("inf")
    return log_probs


def forbid(ids: Sequence[int]) -> Rule:
    """A rule that keeps some tokens from ever being written."""

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        log_probs[:, list(ids)] = -float("inf")
        return log_probs

    return rule


def end_at_limit(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
    """A row that has room for one more token ends."""
    full = prefixes.limits <= prefixes.tokens.size(1) + 1  # (R,)
    end = log_probs[:, EOS].clone()
    log_probs.masked_fill_(full.unsqueeze(1), -float("inf"))
    log_probs[:, EOS] = end
    return log_probs


DEFAULT_RULES: tuple[Rule, ...] = (no_specials, end_at_limit)
