"""The attention core: scores → mask → weights → context.

Axis letters, for the whole package: B batch, S source length, T target length, H heads, Q queries, K keys, D width of
a head, E width of the model, V vocabulary. Masks are boolean and True means "may attend".
"""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, bfloat16, finfo

from saccade.attention.dropout import dropout as drop
from saccade.attention.scores import ScaledDot, Score
from saccade.attention.spans import Spans, attend_spans
from saccade.attention.watching import WATCHES, Asked, watch_of

Normalize = Callable[[Tensor, Tensor | None], Tensor]


class Attention(NamedTuple):
    """What a query found: the mixture of values, and the weights if they were asked for."""

    context: Tensor  # (B, H, Q, D)
    weights: Tensor | None  # (B, H, Q, K)


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """α_qk = exp(e_qk) / Σ_k' exp(e_qk') over the keys that may be attended to; a row with none is all zeros."""
    if mask is None:
        return scores.softmax(-1)
    # The lowest finite number, not -inf: exp() of it is zero just the same, and an empty row has no NaN to
    # leak through the backward pass.
    forbidden = ~mask
    weights = scores.masked_fill(forbidden, finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(forbidden, 0.0)


def attend(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    score: Score,
    mask: Tensor | Spans | None = None,
    bias: Tensor | None = None,
    normalize: Normalize = softmax,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Attention:
    """Mix the values by how well their keys score against each query.

    `mask` and `bias` broadcast to (B, H, Q, K); spans say what a mask of all pairs would say. Dropout falls on the
    weights, as in the Transformer; the weights that are returned are those before dropout. Who watches (`watching`) is
    told what the weights are made of, on every road but that of spans, which only training takes.
    """
    fusible = isinstance(score, ScaledDot) and normalize is softmax and bias is None and not need_weights
    if isinstance(mask, Spans):
        if fusible and mask.can_be_fused(q_BHQD):
            return Attention(attend_spans(q_BHQD, k_BHKD, v_BHKD, mask, dropout), None)
        mask = mask.mask()
    if WATCHES and (watch := watch_of()) is not None:
        watch(Asked(q_BHQD, k_BHKD, score, mask, bias, normalize))
    if fusible and not (q_BHQD.device.type == "cpu" and (dropout or _quicker_by_lines(q_BHQD, k_BHKD.size(2)))):
        return Attention(_fused(q_BHQD, k_BHKD, v_BHKD, mask, dropout), None)

    scores = score(q_BHQD, k_BHKD)  # (B, H, Q, K)
    weights = normalize(scores if bias is None else scores + bias, mask)
    context = drop(weights, dropout) @ v_BHKD
    return Attention(context, weights if need_weights else None)


def _quicker_by_lines(q_BHQD: Tensor, K: int) -> bool:
    """On a CPU the fused kernel knows no dropout, and is made for many queries: a step of a large batch is quicker
    without it (28 keys, 64 sentences of 4 heads, 1 query: 0.23 instead of 0.47 ms). Its products are small ones, and in
    half precision each takes long to begin (120 sentences of 34 pieces, 5 heads, backward pass: 32 instead of 7 ms)."""
    B, H, Q, _ = q_BHQD.shape
    return (Q <= 8 and B * H >= 64) or (q_BHQD.dtype is bfloat16 and K <= 128)


def _fused(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The same mixture through one kernel that never stores the scores (proved equal in tests/test_attention.py)."""
    return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=mask, dropout_p=dropout)
