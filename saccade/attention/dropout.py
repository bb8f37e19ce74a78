"""Dropout (Srivastava et al. 2014), with masks that a CPU can draw quickly.

y = x ∘ m / (1 - p),  m ~ Bernoulli(1 - p)

A CPU draws random numbers one after the other, and torch spends one on every element: a sixth of the time of a
training step. Here one 64-bit number gives four 16-bit lanes, each compared with p · 2¹⁶. The chance is exact to
1/65,536 and the scale is that of the exact chance, so the expectation is x. Randomness comes from torch's own
generator, as ever.

Where a layer is compiled for a GPU, an element's number is its place, mixed with a seed (`mixed`): a dozen operations
that join the pass over x, where the generator's counter takes a hundred, and the mask need not be stored.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LANES = 1 << 16
LOWEST = -(1 << 63)


class Dropout(nn.Module):
    """As `torch.nn.Dropout`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with chance p and scale the rest up."""
    if p == 0.0:
        return x
    if x.device.type != "cpu":
        return _by_place(x, p) if torch.compiler.is_compiling() else F.dropout(x, p)
    dropped = round(p * LANES)
    return _Masked.apply(x, _kept(x, dropped), LANES / (LANES - dropped))


def _by_place(x: Tensor, p: float) -> Tensor:
    seed = torch.randint(1 << 31, (1,), device=x.device, dtype=torch.int32)
    return torch.where(kept_by_place(x.shape, p, seed), x * (1 / (1 - p)), 0)


def kept_by_place(shape: torch.Size, p: float, seed: Tensor) -> Tensor:
    """A boolean mask, False with chance p, exact to 2⁻²⁴."""
    places = torch.arange(shape.numel(), device=seed.device, dtype=torch.int32).view(shape)
    return (mixed(places ^ mixed(seed)) & 0xFFFFFF) >= round(p * (1 << 24))


def mixed(bits: Tensor) -> Tensor:
    """32 bits, every one of which depends on all that were given: multiply and shift, twice (Wellons' lowbias32)."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * 0x7FEB352D
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * -0x7B935975
    return bits ^ ((bits >> 16) & 0xFFFF)


def _kept(x: Tensor, dropped: int) -> Tensor:
    """A boolean mask like x, False with chance dropped / 65,536."""
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(LOWEST, None)
    lanes = words.view(torch.int16)[: x.numel()]
    return (lanes >= dropped - LANES // 2).view(x.shape)


class _Masked(torch.autograd.Function):
    """x ∘ mask · scale, remembering the mask alone: a byte an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (x * mask).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return (grad * mask).mul_(ctx.scale), None, None
