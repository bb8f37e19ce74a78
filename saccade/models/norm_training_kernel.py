"""LayerNorm as training takes it, in Triton: a block of rows at a time, and all gradients in one pass over them.

    x̂ = (x - E[x]) / √(Var[x] + ε),   y = x̂ ∘ w + b                                     (Ba et al. 2016, eq. 3 and 4)
    ∂x = (g - mean(g) - x̂ mean(g ∘ x̂)) / √(Var[x] + ε),   g = ∂y ∘ w,   ∂w = Σ ∂y ∘ x̂,   ∂b = Σ ∂y

Few programs go through many rows each, so that the sums over all rows have few parts, which are added up in one order:
the same rows give the same gradients. Computed in float32.
"""

# mypy: ignore-errors
# What is inside a kernel is Triton's language, not Python's.

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from saccade.models.norm_kernel import suits

TILE = 4096  # elements that a program holds at a time
WARPS = 4
PROGRAMS = 2  # of the backward pass, for each multiprocessor


@triton.jit
def _norm(
    X, WEIGHT, BIAS, Y, MEAN, SCALE, rows, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    within = (column < WIDTH)[None, :]
    inside = (row < rows)[:, None] & within
    here = row[:, None].to(tl.int64) * WIDTH + column[None, :]
    x = tl.load(X + here, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(WEIGHT + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1) / WIDTH
    apart = tl.where(within, x - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(apart * apart, axis=1) / WIDTH + eps)
    y = apart * scale[:, None] * weight[None, :] + bias[None, :]
    tl.store(Y + here, y.to(Y.dtype.element_ty), mask=inside)
    tl.store(MEAN + row, mean, mask=row < rows)
    tl.store(SCALE + row, scale, mask=row < rows)


@triton.jit
def _differentiate_rows(
    OF_Y, X, WEIGHT, MEAN, SCALE, OF_X, PARTS, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    within = (column < WIDTH)[None, :]
    weight = tl.load(WEIGHT + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    of_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    of_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & within
        here = row[:, None].to(tl.int64) * WIDTH + column[None, :]
        x = tl.load(X + here, mask=inside, other=0.0).to(tl.float32)
        of_y = tl.load(OF_Y + here, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(MEAN + row, mask=row < rows, other=0.0)
        scale = tl.load(SCALE + row, mask=row < rows, other=0.0)
        normed = tl.where(inside, (x - mean[:, None]) * scale[:, None], 0.0)
        g = of_y * weight[None, :]
        along = tl.sum(g * normed, axis=1) / WIDTH
        of_x = (g - (tl.sum(g, axis=1) / WIDTH)[:, None] - normed * along[:, None]) * scale[:, None]
        tl.store(OF_X + here, of_x.to(OF_X.dtype.element_ty), mask=inside)
        of_weight += of_y * normed
        of_bias += of_y
    part = PARTS + tl.program_id(0) * 2 * WIDTH + column
    tl.store(part, tl.sum(of_weight, axis=0), mask=column < WIDTH)
    tl.store(part + WIDTH, tl.sum(of_bias, axis=0), mask=column < WIDTH)


@triton.jit
def _add_up(PARTS, TOTAL, parts, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = (column < COLUMNS)[None, :]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(0, parts, ROWS):
        row = first + tl.arange(0, ROWS)
        here = row[:, None] * COLUMNS + column[None, :]
        total += tl.load(PARTS + here, mask=(row < parts)[:, None] & within, other=0.0)
    tl.store(TOTAL + column, tl.sum(total, axis=0).to(TOTAL.dtype.element_ty), mask=column < COLUMNS)


def _tile(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "ROWS": max(1, TILE // block)}


def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y like x (…, E), and the mean and 1/√(Var + ε) of each row."""
    x = x.contiguous()
    tile, rows = _tile(weight.numel()), x.numel() // weight.numel()
    y = torch.empty_like(x)
    mean, scale = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    _norm[triton.cdiv(rows, tile["ROWS"]),](x, weight, bias, y, mean, scale, rows, eps, **tile, num_warps=WARPS)
    return y, mean, scale


def backward(of_y: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of weight and bias as one (2, E)."""
    of_y, x = of_y.contiguous(), x.contiguous()
    tile, rows = _tile(weight.numel()), mean.numel()
    of_x, of_both = torch.empty_like(x), weight.new_empty(2, weight.numel())
    programs = min(triton.cdiv(rows, tile["ROWS"]), PROGRAMS * _multiprocessors(x.device))
    parts = x.new_empty(programs, 2, weight.numel(), dtype=torch.float32)
    _differentiate_rows[programs,](of_y, x, weight, mean, scale, of_x, parts, rows, **tile, num_warps=WARPS)
    columns = of_both.numel()
    _add_up[triton.cdiv(columns, 16),](parts, of_both, programs, COLUMNS=columns, BLOCK=16, ROWS=256, num_warps=4)
    return of_x, of_both


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@torch.library.custom_op("saccade::layer_norm", mutates_args=())
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`forward`, as an operator that a compiled layer can hold."""
    return forward(x, weight, bias, eps)


@layer_norm.register_fake
def _(x, weight, bias, eps):
    rows = x.numel() // weight.numel()
    return x.new_empty(x.shape), *(x.new_empty(rows, dtype=torch.float32) for _ in range(2))


@torch.library.custom_op("saccade::layer_norm_backward", mutates_args=())
def layer_norm_backward(of_y: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """`backward`, likewise."""
    return backward(of_y, x, weight, mean, scale)


@layer_norm_backward.register_fake
def _(of_y, x, weight, mean, scale):
    return x.new_empty(x.shape), weight.new_empty(2, weight.numel())


def _remember(ctx, inputs, output):
    x, weight, _, _ = inputs
    ctx.save_for_backward(x, weight, *output[1:])


def _differentiate(ctx, of_y, of_mean, of_scale):
    of_x, of_both = layer_norm_backward(of_y, *ctx.saved_tensors)
    return of_x, of_both[0], of_both[1], None


layer_norm.register_autograd(_differentiate, setup_context=_remember)


class TrainedNorm(nn.Module):
    """A LayerNorm's own parameters, normed by the kernels."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)[0]


def with_kernels(model: nn.Module) -> nn.Module:
    """The same network, each LayerNorm that the kernels know replaced, in place."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if suits(child):
                setattr(module, name, TrainedNorm(child))
    return model
