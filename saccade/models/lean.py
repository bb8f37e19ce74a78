"""A decoder layer's step in as few calls as can be.

A step of a small Transformer is over in a millisecond. On a CPU half of that is Python finding out what to call; on a
GPU every call is a kernel, and most of them take longer to begin than to compute. Here what to call is found out once
for a whole search: `Lean` reads the weights off the layers, on a CPU each in the order that suits the number of rows,
and what is left of a step are the calls that compute. It is `DecoderLayer.forward` of one position where nothing is
dropped and no weights are asked for (proved equal in tests/test_lean.py).

For a sentence by itself, on a CPU, the cross-attention has no projections left. A head's score of a key, and what it
adds to the output, are

    e_s = (W_q x + b_q) · k_s / √D = x · (W_qᵀ k_s / √D) + b_q · k_s / √D,      o = Σ_s α_s W_o v_s + b_o / H

so W_q is absorbed into the keys and W_o into the values when the sentence has been read, once for all its steps.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.attention.multihead import CrossAttention, KeyValue, Step
from saccade.attention.relative import Unaware
from saccade.devices import runs_triton
from saccade.models.few_rows import few_rows
from saccade.models.packing import PRODUCTS, PackedLinear, order_for, packed_linear


class Absorbed(NamedTuple):
    """A memory of one sentence with the matrices of the attention in it."""

    keys: Tensor  # (E, H · S)
    offset: Tensor  # (1, H · S)
    values: Tensor  # (H · S, E)

    @classmethod
    def of(cls, attention: CrossAttention, memory: KeyValue) -> "Absorbed | None":
        """None where it would not pay: the matrices grow with the sentence."""
        H, D, E = attention.shape.heads, attention.shape.head_width, attention.shape.width
        S = memory.keys.size(2)
        if memory.keys.size(0) != 1 or S > 2 * D:
            return None
        keys, values = memory.keys[0] / math.sqrt(D), memory.values[0]  # (H, S, D)
        asking = attention.query.weight.view(H, D, E).transpose(1, 2)  # (H, E, D)
        absorbed = (asking @ keys.transpose(1, 2)).transpose(0, 1).reshape(E, H * S)
        offset = (keys @ attention.query.bias.view(H, D, 1)).view(1, H * S)
        telling = attention.output.weight.view(E, H, D).permute(1, 2, 0)  # (H, D, E)
        given = values @ telling + attention.output.bias / H
        return cls(absorbed, offset, given.view(H * S, E))


class Looks:
    """What the rows of a step may look at, said once for all layers: by a mask that broadcasts to (N, 1, rows, K), in
    which every row has something, by numbers to be added to the scores, 0 or -∞, or by None for everything."""

    def __init__(self, mask: Tensor | None, numbers: Tensor | None = None) -> None:
        self._mask = mask
        self._added: dict[tuple[int, int], Tensor] = {}
        self._numbers = numbers

    @property
    def mask(self) -> Tensor | None:
        if self._mask is None and self._numbers is not None:
            self._mask = self._numbers == 0.0
        return self._mask

    def bias(self, like: Tensor) -> Tensor | None:
        """The numbers, still to be broadcast: the logarithm of whether a place may be looked at."""
        if self._numbers is None and self._mask is not None:
            self._numbers = self._mask.to(like.dtype).log_()
        return self._numbers

    def added(self, sentences: int, heads: int) -> Tensor:
        """0 or -∞ for each score, (N · H, rows, K)."""
        mask = self.mask
        assert mask is not None
        found = self._added.get((sentences, heads))
        if found is None:
            one_head = torch.zeros(mask.shape).masked_fill_(~mask, -math.inf)
            found = one_head.expand(sentences, heads, -1, -1).flatten(0, 1)
            self._added[sentences, heads] = found
        return found


# From what a sub-layer read off the stream and what it says: the stream behind it, and what the next sub-layer reads.
Leave = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Calls(NamedTuple):
    """How a machine is best asked for what a layer's step is made of."""

    apply: Callable[..., Tensor]  # x Wᵀ + b
    with_relu: Callable[..., Tensor] | None  # max(0, x Wᵀ + b), where that is one call
    matrix: Callable[[Any], Tensor]  # W of a linear layer, as `apply` reads it
    attend: Callable[[Tensor, Tensor, Tensor, Looks], Tensor]  # (N, H, rows, D)
    leave: Callable[[Any, nn.Module | None], Leave]  # of the wiring around a sub-layer, and the norm behind it


class LeanLayer:
    """One layer of a decoder, flat."""

    def __init__(self, layer: Any, behind: nn.Module | None, calls: Calls) -> None:
        """`layer`: a `transformer.DecoderLayer`, whose room reads this one; `behind`: the norm of the next, if pre."""
        attention, cross, feed = layer.attention, layer.cross, layer.feed_forward
        linears = (attention.query_key_value, attention.output, cross.query, cross.output, feed.inner, feed.outer)
        self.apply, self.attend = calls.apply, calls.attend
        self.matrices = tuple((calls.matrix(linear), linear.bias) for linear in linears)
        around = (layer.around_attention, layer.around_cross, layer.around_feed_forward)
        norms = [wiring.norm for wiring in around]
        norms = [*norms[1:], behind] if around[0].pre else norms
        self.leave = tuple(calls.leave(wiring, norm) for wiring, norm in zip(around, norms, strict=True))
        self.gated, self.activation = feed.gated, feed.activation
        self.with_relu = calls.with_relu if self.activation is F.relu and not self.gated else None
        self.heads, self.head_width = attention.shape.heads, attention.shape.head_width

    def __call__(
        self,
        y: Tensor,
        x: Tensor,
        memory: KeyValue,
        absorbed: Absorbed | None,
        looks: tuple[Looks, Looks],
        cache: KeyValue,
        step: Step,
    ) -> tuple[Tensor, Tensor]:
        """Rows (R, E), `step.size` for each of the N sentences of the memory: the stream, and what is read of it.

        `looks`: at cells, and at the memory.
        """
        apply, (enter, look, _, _, inner, outer) = self.apply, self.matrices
        first, second, third = self.leave
        size, H, D = step.size, self.heads, self.head_width
        qkv = apply(x, *enter).view(-1, size, 3, H, D).permute(2, 0, 3, 1, 4)
        q, (keys, values) = step.take(cache, qkv)
        found = self.attend(q, keys, values, looks[0])
        y, x = first(y, apply(found.transpose(1, 2).reshape(-1, H * D), *look))
        y, x = second(y, self._cross(x, memory, absorbed, looks[1], size))
        return third(y, apply(self._inner(x, *inner), *outer))

    def _cross(self, x: Tensor, memory: KeyValue, absorbed: Absorbed | None, looks: Looks, size: int) -> Tensor:
        H, D = memory.keys.size(1), self.head_width  # a pruned layer may have other numbers of heads here and there
        if absorbed is not None and looks.mask is None:
            scores = torch.addmm(absorbed.offset, x, absorbed.keys)
            return scores.view(x.size(0), H, -1).softmax(-1).view(x.size(0), -1) @ absorbed.values
        _, _, ask, tell, _, _ = self.matrices
        q = self.apply(x, *ask).view(-1, size, H, D).transpose(1, 2)
        found = self.attend(q, memory.keys, memory.values, looks)
        return self.apply(found.transpose(1, 2).reshape(-1, H * D), *tell)

    def _inner(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.with_relu is not None:
            return self.with_relu(x, weight, bias)
        h = self.apply(x, weight, bias)
        if not self.gated:
            return self.activation(h)
        gate, h = h.chunk(2, dim=-1)
        return self.activation(gate) * h


def _in_parts(q: Tensor, k: Tensor, v: Tensor, looks: Looks) -> Tensor:
    """For several sentences a CPU's fused kernel is slower than its parts; see `attention.core`."""
    N, H, _, D = q.shape
    if N == 1:
        return F.scaled_dot_product_attention(q, k, v, looks.mask)
    q_, k_T, v_ = q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1)
    if looks.mask is None:
        scores = torch.bmm(q_ * D**-0.5, k_T)
    else:
        scores = torch.baddbmm(looks.added(N, H), q_, k_T, alpha=D**-0.5)
    return torch.bmm(scores.softmax(-1), v_).view(q.shape)


def _in_one(q: Tensor, k: Tensor, v: Tensor, looks: Looks) -> Tensor:
    """Of a mask of truths the fused kernel would make one of numbers at every call, for every layer."""
    return F.scaled_dot_product_attention(q, k, v, looks.bias(q))


def _relu_of_sums(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The ReLU where the product adds its bias. (The GELU to be had there is the tanh form on a GPU; ours is not.)"""
    if x.dtype is not weight.dtype or torch.is_autocast_enabled(x.device.type):  # which knows no such call
        return F.linear(x, weight, bias).relu_()
    return torch._addmm_activation(bias, x, weight.t())


def _norm(norm: nn.Module | None) -> Callable[[Tensor], Tensor]:
    """Its function, without what a module asks at every call."""
    if norm is None:
        return lambda x: x
    if type(norm) is nn.LayerNorm:
        shape, weight, bias, eps = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return norm.forward


def _leave(around: Any, norm: nn.Module | None) -> Leave:
    normed, scale, pre = _norm(norm), float(around.scale), bool(around.pre)

    def leave(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.add_(x, alpha=scale) if scale else y
        z = normed(y)
        return (y, z) if pre else (z, z)

    return leave


def _leave_by_kernel(around: Any, norm: nn.Module | None) -> Leave:
    """`_leave` in one call, where this machine and the norm allow (proved equal in tests/test_norm_kernel.py)."""
    plainly, scale, pre = _leave(around, norm), float(around.scale), bool(around.pre)
    if not scale or type(norm) is not nn.LayerNorm or not runs_triton(norm.weight.device, norm.weight.dtype):
        return plainly
    from saccade.models import norm_kernel

    layer_norm, dtype = norm, norm.weight.dtype

    def leave(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if x.dtype is y.dtype is dtype:
            return norm_kernel.leave(x, y, layer_norm, scale, pre)
        return plainly(x, y)  # autocast has made them different

    return leave if norm_kernel.suits(norm) else plainly


def on_cpu(order: str, captured: bool) -> Calls:
    """`order`: of the weights."""
    product = PRODUCTS[order]
    with_relu = partial(product, then="relu") if product in (packed_linear, few_rows) else None
    return Calls(product, with_relu, lambda linear: linear.laid_out(order), _in_parts, _leave)


def on_gpu(order: str, captured: bool) -> Calls:
    """Weights as they are, whatever the order. Where steps are not captured there is nothing to gain by kernels."""
    with_relu = _relu_of_sums if hasattr(torch, "_addmm_activation") else None  # not one of torch's public names
    leave = _leave_by_kernel if captured else _leave
    return Calls(F.linear, with_relu, lambda linear: linear.weight, _in_one, leave)


class Lean:
    """The layers of a decoder for one search, laid out for few rows and for many when they are needed."""

    def __init__(self, layers: Sequence[Any], calls: Callable[[str, bool], Calls]) -> None:
        self._layers, self._calls = layers, calls
        first = layers[0].around_attention
        self._enter = _norm(first.norm if first.pre else None)
        self._laid_out: dict[tuple[str, bool], tuple[LeanLayer, ...]] = {}

    def absorbed(self, memory: Sequence[KeyValue]) -> tuple[Absorbed | None, ...] | None:
        """The memory of one sentence as its steps read it; None where that does not pay."""
        if self._calls is not on_cpu or memory[0].keys.size(0) != 1:
            return None
        return tuple(Absorbed.of(layer.cross, own) for layer, own in zip(self._layers, memory, strict=True))

    def step(
        self,
        y: Tensor,
        memory: Sequence[KeyValue],
        absorbed: Sequence[Absorbed | None] | None,
        looks: tuple[Looks, Looks],
        caches: Sequence[KeyValue],
        at: Step,
    ) -> Tensor:
        """Rows (R, E) through all layers; `looks`: at cells, and at the memory."""
        absorbed = absorbed or [None] * len(self._layers)
        layers = self._of(y.size(0), isinstance(at.position, Tensor))
        x = self._enter(y)
        for layer, own, inside, cache in zip(layers, memory, absorbed, caches, strict=True):
            y, x = layer(y, x, own, inside, looks, cache, at)
        return y

    def _of(self, rows: int, captured: bool) -> tuple[LeanLayer, ...]:
        """As they are best called for so many rows; `captured`: once, to be replayed."""
        order = order_for(rows) if self._calls is on_cpu else ""  # to find it out, a function is compiled
        found = self._laid_out.get((order, captured))
        if found is None:
            calls = self._calls(order, captured)
            behind = [*(layer.around_attention.norm for layer in self._layers[1:]), None]
            found = tuple(LeanLayer(*pair, calls) for pair in zip(self._layers, behind, strict=True))
            self._laid_out[order, captured] = found
        return found


def lean(layers: Sequence[Any]) -> Lean | None:
    """For a decoder that only writes; None where its steps are more than the calls of `LeanLayer`."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not all(map(suits, layers)):
        return None
    linears = [layer.attention.query_key_value for layer in layers]
    if all(linear.weight.is_cuda for linear in linears):
        return Lean(layers, on_gpu)
    if all(
        isinstance(one, PackedLinear) and one.weight.is_cpu and one.weight.dtype is torch.float32 for one in linears
    ):
        return Lean(layers, on_cpu)
    return None


def suits(layer: Any) -> bool:
    """Whether the calls of `LeanLayer` are all that a layer's step is."""
    heads = layer.attention.shape
    return not layer.training and type(layer.attention.relative) is Unaware and heads.heads == heads.key_heads
