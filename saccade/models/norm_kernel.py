"""A residual's sum and the LayerNorm that follows, as one kernel in Triton: a row at a time, which stays in registers.

    z = y + scale · x,   n = (z - E[z]) / √(Var[z] + ε) · w + b

Computed in float32. z is rounded to its own type before it is normed, as if it had been stored: what is found is what
the two calls find that this stands for (`lean._leave`), but for the order in which a row is summed up.
"""

# mypy: ignore-errors
# What is inside a kernel is Triton's language, not Python's.

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

WIDEST = 8192  # a row is one block
TYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit
def _leave(
    X, Y, WEIGHT, BIAS, NORMED, scale, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    here = tl.program_id(0).to(tl.int64) * WIDTH + column
    x = tl.load(X + here, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(Y + here, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(WEIGHT + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + column, mask=inside, other=0.0).to(tl.float32)
    z = (y + scale * x).to(Y.dtype.element_ty)
    if KEEP:
        tl.store(Y + here, z, mask=inside)
    z = z.to(tl.float32)
    mean = tl.sum(z, axis=0) / WIDTH
    apart = tl.where(inside, z - mean, 0.0)
    variance = tl.sum(apart * apart, axis=0) / WIDTH
    normed = apart * (1.0 / tl.sqrt(variance + eps)) * weight + bias
    tl.store(NORMED + here, normed.to(NORMED.dtype.element_ty), mask=inside)


COMPILED = isinstance(_leave, triton.runtime.JITFunction)  # not when Triton was told to interpret


def suits(norm: nn.Module | None) -> bool:
    """Whether the kernel knows such a norm."""
    return (
        type(norm) is nn.LayerNorm
        and norm.weight is not None
        and norm.bias is not None
        and norm.weight.dim() == 1
        and norm.weight.numel() <= WIDEST
        and norm.weight.dtype in TYPES
    )


def leave(x: Tensor, y: Tensor, norm: nn.LayerNorm, scale: float, keep: bool) -> tuple[Tensor, Tensor]:
    """The sum of rows (R, E) and its norm; `keep`: the sum is wanted, and stored over y."""
    rows, width = y.shape
    assert x.is_contiguous(), "rows lie one behind the other"
    assert y.is_contiguous(), "rows lie one behind the other"
    normed = torch.empty_like(y)
    block = triton.next_power_of_2(width)
    _leave[rows,](
        x, y, norm.weight, norm.bias, normed, scale, norm.eps,
        WIDTH=width, BLOCK=block, KEEP=keep, num_warps=min(max(block // 256, 1), 8),
    )  # fmt: skip
    return (y, normed) if keep else (normed, normed)


@torch.inference_mode()
def trial(device: torch.device, dtype: torch.dtype) -> None:
    """Raises what stands in the way of kernels there, if anything does."""
    norm = nn.LayerNorm(64, device=device, dtype=dtype)
    x, y = torch.arange(2.0 * 3 * 64, device=device).sin().to(dtype).view(2, 3, 64)
    with torch.autocast(device.type, enabled=False):  # which would have the norm answer in float32
        expected = norm(x + y)
    torch.testing.assert_close(leave(x, y, norm, 1.0, True)[1], expected, rtol=0.02, atol=0.02)
