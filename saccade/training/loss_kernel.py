"""Label-smoothed cross-entropy in Triton: a row of logits is read, and becomes its gradient where it lies.

    L = -c Σ_t [(1 - ε) log p(y_t) + ε/V Σ_v log p(v)],   ∂L/∂z = c (p - (1 - ε) onehot(y) - ε/V)

A row is gone through twice, once for its normaliser and once for its gradient. So few rows are at work at a time that
the second time it comes from the cache: what memory has to do is to read each logit once and write it once.
Rows of PAD count nothing, and their gradients are zeros. Computed in float32.
"""

# mypy: ignore-errors
# What is inside a kernel is Triton's language, not Python's.

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.data.tokenizers import PAD

LOWEST = tl.constexpr(-1e30)  # of places beyond the vocabulary, where infinity less infinity would be no number
BLOCK = 4096  # logits that are read at a time
WARPS = 8  # four rows a multiprocessor, then: 132 · 4 rows of 32,000 logits are 34 of an H200's 50 MB of cache


@triton.jit
def _settle(
    LOGITS, GOLD, LOSS, NLL, smoothing, share, V,
    PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    logits = LOGITS + row.to(tl.int64) * V
    gold = tl.load(GOLD + row)
    column = tl.arange(0, BLOCK)
    of_gold = tl.load(logits + gold).to(tl.float32)
    highest = LOWEST
    total = tl.zeros([BLOCK], tl.float32)
    added = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        there = start + column < V
        z = tl.load(logits + start + column, mask=there, other=LOWEST).to(tl.float32)
        higher = tl.maximum(highest, tl.max(z, axis=0))  # one for all: an exponential less for each logit
        total = total * tl.exp(highest - higher) + tl.exp(z - higher)
        highest = higher
        added += tl.where(there, z, 0.0)
    normaliser = highest + tl.log(tl.sum(total, axis=0))
    nll = normaliser - of_gold
    counted = gold != PAD
    loss = (1.0 - smoothing) * nll + smoothing * (normaliser - tl.sum(added, axis=0) / V)
    tl.store(NLL + row, tl.where(counted, nll, 0.0))
    tl.store(LOSS + row, tl.where(counted, share * loss, 0.0))
    scale = tl.where(counted, share, 0.0)
    for start in range(0, V, BLOCK):
        there = start + column < V
        z = tl.load(logits + start + column, mask=there, other=LOWEST).to(tl.float32)
        gradient = tl.exp(z - normaliser) - smoothing / V
        gradient = scale * tl.where(start + column == gold, gradient - (1.0 - smoothing), gradient)
        tl.store(logits + start + column, gradient.to(LOGITS.dtype.element_ty), mask=there)


def settle(logits: Tensor, gold: Tensor, smoothing: float, share: float) -> tuple[Tensor, Tensor]:
    """The loss of a block of rows and its NLL; `logits` (N, V) are then its gradient."""
    assert logits.is_contiguous(), "rows lie one behind the other"
    N, V = logits.shape
    loss, nll = (logits.new_empty(N, dtype=torch.float32) for _ in range(2))
    block = min(BLOCK, triton.next_power_of_2(V))
    _settle[N,](logits, gold, loss, nll, smoothing, share, V, PAD=PAD, BLOCK=block, num_warps=WARPS)
    return loss.sum(), nll.sum()
