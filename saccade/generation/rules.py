"""Rules: plain functions on log-probabilities, applied before the search chooses.

A rule sees what each row has written so far and returns the log-probabilities with what it forbids at -inf. What it
leaves keeps the model's own value, so a score is always the model's. A *weighing* has the same form and changes the
values themselves, to change the choice: the loop applies it before the rules, and gives what was found the model's own
log-probability in the end.
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
Weighing = Rule


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


def min_length(length: int) -> Rule:
    """No end before `length` tokens are written, or as many as the sentence's limit has room for."""

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        short = prefixes.tokens.size(1) < (prefixes.limits - 1).clamp(max=length)  # (R,)
        log_probs[:, EOS].masked_fill_(short, -float("inf"))
        return log_probs

    return rule


def no_repeat_ngram(n: int) -> Rule:
    """No n-gram is written twice (Paulus et al. 2018, section 2.5)."""

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        tokens = prefixes.tokens
        if tokens.size(1) < n:
            return log_probs
        ngrams = tokens.unfold(1, n, 1)  # (R, t - n + 1, n)
        again = (ngrams[..., :-1] == tokens[:, None, tokens.size(1) - n + 1 :]).all(-1)
        forbidden = torch.zeros_like(again, dtype=log_probs.dtype).masked_fill_(again, -float("inf"))
        return log_probs.scatter_add_(1, ngrams[..., -1], forbidden)

    return rule


def repetition_penalty(theta: float) -> Weighing:
    """Tokens that are written already are chosen less (Keskar et al. 2019, section 4.1):

    p_i = exp(x_i / I(i ∈ g)) / Σ_j exp(x_j / I(j ∈ g)),    I = θ for what is written, else 1

    The paper divides logits, which lowers one only where it is positive. Here x is the log-probability, which is never
    positive: it is multiplied.
    """

    def weighing(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        written = log_probs.gather(1, prefixes.tokens)
        return log_probs.scatter(1, prefixes.tokens, written * theta).log_softmax(-1)

    return weighing


def shortlist(allowed: Tensor) -> Rule:
    """Only what is `allowed` is written, (V,) for all sentences or (B, V) for each its own; any may end."""
    forbidden = ~allowed
    forbidden[..., EOS] = False

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        return log_probs.masked_fill_(
            forbidden if forbidden.dim() == 1 else forbidden[prefixes.sentences], -float("inf")
        )

    return rule


def forced_prefix(wanted: Tensor, rules: Sequence[Rule]) -> Rule:
    """Each sentence begins with the tokens of its row of `wanted` (B, P), padded with -1; `rules` hold after them."""

    def rule(log_probs: Tensor, prefixes: Prefixes) -> Tensor:
        written = prefixes.tokens.size(1)
        if written >= wanted.size(1):
            return apply(rules, log_probs, prefixes)
        token = wanted[prefixes.sentences, written].unsqueeze(1)  # (R, 1)
        inside, token = token >= 0, token.clamp(min=0)
        forced = torch.full_like(log_probs, -float("inf")).scatter_(1, token, log_probs.gather(1, token))
        return torch.where(inside, forced, apply(rules, log_probs, prefixes))

    return rule


def apply(rules: Sequence[Rule], log_probs: Tensor, prefixes: Prefixes) -> Tensor:
    """One rule after the other."""
    for rule in rules:
        log_probs = rule(log_probs, prefixes)
    return log_probs
