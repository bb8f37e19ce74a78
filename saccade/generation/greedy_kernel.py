"""What greedy search does with the logits of a step, as one kernel in Triton: a sentence at a time.

    w = argmax_v x_v   over what may be written,   log p(w) = x_w - max_v x_v - log Σ_v exp(x_v - max)

The vocabulary is read once. Of equal logits the first is taken, as `torch.max` does. (The plain lines compare
log-probabilities, of which two may be equal where the logits differ in their last bits; then these take the larger.)
"""

# mypy: ignore-errors
# What is inside a kernel is Triton's language, not Python's.

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.data.tokenizers import EOS

if TYPE_CHECKING:
    from saccade.generation.fixed import FixedGreedy

BLOCK = 4096  # of the vocabulary


@triton.jit
def _advance(
    LOGITS, ALLOWED, LIMITS, POSITIONS, TOKENS, LOG_PROB, DONE, WRITTEN, CELLS, apart, vocabulary, capacity,
    EOS: tl.constexpr, BLOCK: tl.constexpr, CELLED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    logits = LOGITS + row.to(tl.int64) * apart
    column = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    place = column
    for start in range(0, vocabulary, BLOCK):
        at = start + column
        x = tl.load(logits + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, x)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(highest - base) + tl.exp(x - base)
        highest = higher
        allowed = tl.load(ALLOWED + at, mask=at < vocabulary, other=0) != 0
        better = allowed & (x > best)
        best = tl.where(better, x, best)
        place = tl.where(better, at, place)
    most = tl.max(highest, axis=0)
    mass = tl.sum(total * tl.exp(highest - most), axis=0)
    found = tl.max(best, axis=0)
    token = tl.min(tl.where(best == found, place, vocabulary - 1), axis=0)

    position = tl.load(POSITIONS + row)
    full = tl.load(LIMITS + row) <= position + 1
    end = tl.where(tl.load(ALLOWED + EOS) != 0, tl.load(logits + EOS).to(tl.float32), -float("inf"))
    token = tl.where(full, EOS, token)
    found = tl.where(full, end, found)
    done = tl.load(DONE + row) != 0
    log_prob = tl.load(LOG_PROB + row) + tl.where(done, 0.0, found - most - tl.log(mass))
    tl.store(LOG_PROB + row, log_prob)
    tl.store(DONE + row, (done | (token == EOS)).to(tl.uint8))
    tl.store(WRITTEN + row.to(tl.int64) * capacity + position, token.to(tl.int64))
    tl.store(TOKENS + row, token.to(tl.int64))
    tl.store(POSITIONS + row, position + 1)
    if CELLED:  # all sentences stand alike
        tl.store(CELLS + position + 1, 0.0, mask=(row == 0) & (position + 1 < capacity))


def advance(logits: Tensor, run: "FixedGreedy") -> None:
    """Write the next token of every row, and count on."""
    N, V = logits.shape
    assert logits.stride(1) == 1, "the logits of a row lie side by side"
    rows, done = run.rows, run.done.view(torch.uint8)
    _advance[N,](
        logits, rows.allowed, rows.limits, rows.positions, rows.tokens, run.log_prob, done, run.written, run.cells,
        logits.stride(0), V, run.written.size(1),
        EOS=EOS, BLOCK=min(BLOCK, triton.next_power_of_2(V)), CELLED=run.cells is not None, num_warps=16,
    )  # fmt: skip
