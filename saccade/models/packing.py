"""Weights laid out for a CPU that only reads them.

A matrix product over few rows spends much of its time bringing the weights into the order that the processor wants.
When a model is loaded to translate, its linear layers become `PackedLinear`, which keep a copy in that order. For up to
8 rows that is panels, where they can be read (`few_rows`). Else it is by columns on Intel's processors, for MKL; on
others, where MKL is slow, it is oneDNN's own, through the operators that `torch.compile` uses (for a single row, by
columns there too). Everything else about them stays: names, parameters, answers. One core, 256 → 8,000, ms for 1, 5, 64
and 320 rows: an AMD EPYC 1.0, 1.7, 4.3, 15.4 as weights are stored and 0.2, 0.4, 2.8, 13.0 in oneDNN's order; an Intel
Xeon, 5, 64 and 320 rows: 0.63, 2.1, 9.0 as they are stored, 0.40, 1.9, 10.3 in oneDNN's order and 0.39, 1.5, 9.9 by
columns (the smaller the matrix, the more columns gain).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.devices import is_intel, onednn_is_quicker
from saccade.models import blocks
from saccade.models.few_rows import MOST, Panels, compiled, few_rows

ROWS = 64  # the number of rows for which the order is chosen; it serves any other nearly as well
QUARTERS, FEW = 4, 8  # the numbers of rows that oneDNN is given are quarters of powers of two, beyond a few


def can_pack() -> bool:
    """Whether this torch has the operators, and they do what is expected of them."""
    try:
        weight, x = torch.eye(4, 8), torch.arange(16.0).view(2, 8)
        return torch.equal(packed_linear(x, _pack(weight), None), F.linear(x, weight))
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return False


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS)


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    """x Wᵀ + b, where W is in oneDNN's order; `then`: `relu` of it, in the same call.

    For every number of rows oneDNN makes a program, which takes 0.4 MB and as long as the product of a hundred rows; it
    keeps the last thousand. Sentences that come and go make any number of rows, so it is rounded up.
    """
    rows = x.numel() // x.size(-1)
    some = rounded(rows)
    if some == rows:
        return torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, then, [], "")
    filled = x.new_zeros(some, x.size(-1))
    filled[:rows] = x.reshape(rows, -1)
    found = torch.ops.mkldnn._linear_pointwise.default(filled, packed, bias, then, [], "")
    return found[:rows].view(*x.shape[:-1], -1)


def rounded(rows: int) -> int:
    """The next power of two up to 8, beyond it the next of which each power of two has four."""
    if rows <= FEW:  # read as quickly as one
        return 1 << (rows - 1).bit_length()
    step = (1 << rows.bit_length()) // (2 * QUARTERS)
    return -(-rows // step) * step


# What multiplies by weights in an order. By columns, since a row is a sum of them, and there each lies in one piece.
PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "panels": few_rows,
    "packed": packed_linear,
    "columns": F.linear,
    "one row": F.linear,
}
LAYOUTS: dict[str, Callable[[Tensor], Any]] = {
    "panels": Panels.of,
    "packed": _pack,
    "columns": lambda weight: weight.t().contiguous().t(),
}


def order_for(rows: int) -> str:
    """The order of weights that so many rows are best multiplied by."""
    if rows <= MOST and compiled() is not None:
        return "panels"
    if rows == 1:
        return "one row"
    return "columns" if is_intel() else "packed"


class PackedLinear(nn.Linear):
    """`nn.Linear` that, where no gradient is asked for, reads a copy of its weights in a better order.

    A copy is made when it is first needed, and made again if the weights have changed. A step of a small model is over
    in a millisecond, so what is asked here at every call is asked in the quickest way.
    """

    _stamp: tuple[int, int] | None
    _copies: dict[str, Any]

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_parameter("weight", linear.weight)  # type: ignore[arg-type]
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)
        self._forget()

    def forward(self, x: Tensor) -> Tensor:
        parameters = self._parameters
        weight, bias = parameters["weight"], parameters["bias"]
        assert weight is not None
        if torch.compiler.is_compiling():  # what is traced must not meet a copy, nor ask how many rows there are
            return F.linear(x, weight, bias)
        if torch.is_grad_enabled() or (onednn_is_quicker() and x.numel() >= blocks.ROWS * self.in_features):
            return blocks.linear(x, weight, bias)
        if not x.is_cpu or x.dtype is not torch.float32:
            return F.linear(x, weight, bias)
        order = order_for(x.numel() // self.in_features)
        return PRODUCTS[order](x, self.laid_out(order), bias)

    def laid_out(self, order: str) -> Any:
        """The weights for one of `PRODUCTS`."""
        weight = self._parameters["weight"]
        assert weight is not None
        # Weights that were made in inference mode do not count their changes: they cannot be trained.
        stamp = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        if stamp != self._stamp:
            self._forget(stamp)
        if order == "one row":  # few long rows are read as they are
            return weight.detach() if self.in_features > self.out_features else self.laid_out("columns")
        found = self._copies.get(order)
        if found is None:
            found = self._copies[order] = LAYOUTS[order](weight.detach())
        return found

    def train(self, mode: bool = True) -> "PackedLinear":
        """The fused optimizer changes weights without counting it: what learns has its copies made anew."""
        if mode:
            self._forget()
        return super().train(mode)

    def _forget(self, stamp: tuple[int, int] | None = None) -> None:
        # A plain tensor is no parameter and no buffer: state_dict and `.to()` leave it alone.
        self._stamp, self._copies = stamp, {}

    def __getstate__(self) -> dict[str, Any]:  # what is packed cannot be copied or sent
        return self.__dict__ | {"_stamp": None, "_copies": {}}


def pack(model: nn.Module) -> None:
    """Make the linear layers of a model packed ones, where this machine can."""
    if not can_pack():
        return
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
    for module in model.modules():  # found at once, not after a search in vain
        module.__dict__.update(module._modules)


@torch.inference_mode()
def make_programs(model: nn.Module, most: int = 256) -> None:
    """Have oneDNN make its programs for up to `most` rows now, where it makes any, and all copies of weights be made.

    For a server: nobody then waits for one, and memory is from the start what it will be (without, that of two
    processes grew by 9% between the first 1,000 requests and the first 10,000).
    """
    if is_intel() or not can_pack():
        return
    orders = {rows: order_for(rows) for rows in range(1, most + 1)}
    numbers = sorted({rounded(rows) for rows, order in orders.items() if order == "packed"})
    made = set()
    for name, module in model.named_modules():
        if not isinstance(module, PackedLinear) or not module.weight.is_cpu:
            continue
        for order in set(orders.values()):
            module.laid_out(order)
        zeros = module.weight.new_zeros(2 * blocks.ROWS, module.in_features)
        then = "relu" if name.endswith("feed_forward.inner") else "none"  # as `lean` asks for it
        for how in {"none", then}:
            kind = (module.in_features, module.out_features, module.bias is None, how)
            if kind not in made:
                made.add(kind)
                for rows in numbers:
                    packed_linear(zeros[:rows], module.laid_out("packed"), module.bias, how)
        for rows in range(blocks.ROWS, 2 * blocks.ROWS, blocks.PART):
            module(zeros[:rows])
