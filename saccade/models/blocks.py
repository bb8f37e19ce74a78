"""Linear layers over many rows, on a CPU that MKL is not made for: those that learn, and those of encoders.

oneDNN takes half of MKL's time there (one core of an AMD EPYC, 2,048 rows, 160 → 640: 268 instead of 117 GFLOP/s). But
for every number of rows it makes programs, which take some MB and milliseconds, and batches come in many shapes: so
rows are multiplied in blocks of one size, the last of them filled up with zeros to one of few.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.devices import onednn_is_quicker, quick_products

ROWS = 256  # of a block
PART = 64  # the last block is a multiple of it


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, with gradients."""
    single = x.is_cpu and x.dtype is weight.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
    if single and onednn_is_quicker() and x.numel() >= ROWS * x.size(-1):
        return _Linear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def filled(rows: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (…, N, E) and what is told of each (N,), with zeros behind them, so that their number is one of few."""
    more = -gold.numel() % PART
    if not more or not rows.is_cpu or rows.dtype is torch.float64 or not onednn_is_quicker():
        return rows, gold
    return F.pad(rows, (0, 0, 0, more)), F.pad(gold, (0, more))


class _Linear(torch.autograd.Function):
    """∂L/∂x = G W, ∂L/∂W = Gᵀ x, ∂L/∂b = Σ G,  G = ∂L/∂y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        flat = x.reshape(-1, x.size(-1))
        with quick_products():
            y = _by_blocks(flat, weight.t(), bias)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        flat = grad.reshape(-1, grad.size(-1))
        with quick_products():
            of_x = _by_blocks(flat, weight, None).view_as(x) if ctx.needs_input_grad[0] else None
            # Rows are what is summed over: their number asks for no other program.
            of_weight = flat.t() @ x.reshape(-1, x.size(-1)) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, flat.sum(0) if ctx.needs_input_grad[2] else None


def _by_blocks(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """rows · matrix + bias."""
    found = rows.new_empty(rows.size(0), matrix.size(1))
    left = rows.size(0) % ROWS
    whole = rows.size(0) - left
    for start in range(0, whole, ROWS):
        _product(rows[start : start + ROWS], matrix, bias, found[start : start + ROWS])
    if left:
        last = F.pad(rows[whole:], (0, 0, 0, -left % PART))
        found[whole:] = _product(last, matrix, bias, last.new_empty(last.size(0), matrix.size(1)))[:left]
    return found


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None, into: Tensor) -> Tensor:
    return torch.mm(rows, matrix, out=into) if bias is None else torch.addmm(bias, rows, matrix, out=into)
