"""The kernels of attention over spans, in Triton: a block of rows and a head at a time, the scores never stored.

    α_qk = exp(q·k/√D - lse_q),  z_q = Σ_k m_qk α_qk v_k,   lse_q = log Σ_k exp(q·k/√D)
    ∂v_k = Σ_q m_qk α_qk ∂z_q,   ∂e_qk = α_qk (m_qk ∂z_q·v_k - ∂z_q·z_q)
    ∂q_q = Σ_k ∂e_qk k/√D,       ∂k_k = Σ_q ∂e_qk q/√D

The dropout mask m is drawn by place, as `dropout.kept_by_place` does, so that the backward pass draws it again and need
not read it. A block of queries reads the keys from the first of its spans to the last; a block of keys, the queries.
"""

# mypy: ignore-errors
# What is inside a kernel is Triton's language, not Python's.

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # of a block: sentences are short, and a block reads the keys of all that it meets
# Of each kernel, the quickest on an H200 (docs/lab-log.md). Most blocks go once or twice through their loop.
TO_ATTEND = {"num_warps": 2, "num_stages": 1}
TO_QUERIES = {"num_warps": 4, "num_stages": 2}
TO_KEYS = {"num_warps": 4, "num_stages": 2}
LOG2E = tl.constexpr(1.4426950408889634)
FAR = tl.constexpr(1 << 30)


@triton.jit
def _kept(seed, head, rows, places, queries, longest, dropout):
    """The dropout mask, scaled: rows (queries) and places in their spans give each weight a number of its own."""
    bits = ((head * queries + rows) * longest + places).to(tl.uint32) ^ seed.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = (bits ^ (bits >> 16)) & 0xFFFFFF
    return tl.where(bits.to(tl.float32) >= dropout * 16777216.0, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def _attend(
    Q, K, V, Z, LSE, SPANS, SEED,
    row_q, row_k, row_v, queries, keys, longest, scale, dropout,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, D)
    inside = rows < queries
    first = tl.load(SPANS + rows, mask=inside, other=0)
    end = tl.load(SPANS + queries + rows, mask=inside, other=0)
    here = head * D + column[None, :]
    q = tl.load(Q + rows[:, None] * row_q + here, mask=inside[:, None], other=0.0)
    seed = tl.load(SEED)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    z = tl.zeros([ROWS, D], tl.float32)
    begin = tl.min(tl.where(end > first, first, FAR), axis=0)
    until = tl.max(end, axis=0)
    for start in range(begin, until, ROWS):
        at = start + tl.arange(0, ROWS)
        there = at < keys
        k = tl.load(K + at[:, None] * row_k + here, mask=there[:, None], other=0.0)
        v = tl.load(V + at[:, None] * row_v + here, mask=there[:, None], other=0.0)
        may = (at[None, :] >= first[:, None]) & (at[None, :] < end[:, None])
        e = tl.where(may, tl.dot(q, tl.trans(k)) * (scale * LOG2E), -float("inf"))
        higher = tl.maximum(highest, tl.max(e, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        a = tl.exp2(e - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(a, axis=1)
        if DROP:
            a *= _kept(seed, head, rows[:, None], at[None, :] - first[:, None], queries, longest, dropout)
        z = z * shrink[:, None] + tl.dot(a.to(v.dtype), v)
        highest = higher
    nothing = total == 0.0
    z = z / tl.where(nothing, 1.0, total)[:, None]
    lse = tl.where(nothing, 0.0, highest + tl.log2(tl.where(nothing, 1.0, total)))  # of base 2
    tl.store(Z + (rows[:, None] * H + head) * D + column[None, :], z.to(Z.dtype.element_ty), mask=inside[:, None])
    tl.store(LSE + rows * H + head, lse, mask=inside)


@triton.jit
def _to_queries(
    Q, K, V, Z, LSE, OF_Z, OF_Q, MEAN, SPANS, SEED,
    row_q, row_k, row_v, row_z, row_of_z, row_of_q, queries, keys, longest, scale, dropout,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, D)
    inside = rows < queries
    first = tl.load(SPANS + rows, mask=inside, other=0)
    end = tl.load(SPANS + queries + rows, mask=inside, other=0)
    here = head * D + column[None, :]
    q = tl.load(Q + rows[:, None] * row_q + here, mask=inside[:, None], other=0.0)
    z = tl.load(Z + rows[:, None] * row_z + here, mask=inside[:, None], other=0.0)
    of_z = tl.load(OF_Z + rows[:, None] * row_of_z + here, mask=inside[:, None], other=0.0)
    lse = tl.load(LSE + rows * H + head, mask=inside, other=0.0)
    mean = tl.sum(z.to(tl.float32) * of_z.to(tl.float32), axis=1)
    tl.store(MEAN + rows * H + head, mean, mask=inside)
    seed = tl.load(SEED)
    of_q = tl.zeros([ROWS, D], tl.float32)
    begin = tl.min(tl.where(end > first, first, FAR), axis=0)
    until = tl.max(end, axis=0)
    for start in range(begin, until, ROWS):
        at = start + tl.arange(0, ROWS)
        there = at < keys
        k = tl.load(K + at[:, None] * row_k + here, mask=there[:, None], other=0.0)
        v = tl.load(V + at[:, None] * row_v + here, mask=there[:, None], other=0.0)
        may = (at[None, :] >= first[:, None]) & (at[None, :] < end[:, None])
        e = tl.where(may, tl.dot(q, tl.trans(k)) * (scale * LOG2E), -float("inf"))
        a = tl.exp2(e - lse[:, None])
        of_a = tl.dot(of_z, tl.trans(v))
        if DROP:
            of_a *= _kept(seed, head, rows[:, None], at[None, :] - first[:, None], queries, longest, dropout)
        of_q += tl.dot((a * (of_a - mean[:, None])).to(k.dtype), k)
    of_q *= scale
    tl.store(OF_Q + rows[:, None] * row_of_q + here, of_q.to(OF_Q.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _to_keys(
    Q, K, V, MEAN, LSE, OF_Z, OF_K, OF_V, SPANS, KEY_SPANS, SEED,
    row_q, row_k, row_v, row_of_z, row_of_k, row_of_v, queries, keys, longest, scale, dropout,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, D)
    here = head * D + column[None, :]
    there = at < keys
    first = tl.load(KEY_SPANS + at, mask=there, other=0)
    end = tl.load(KEY_SPANS + keys + at, mask=there, other=0)
    k = tl.load(K + at[:, None] * row_k + here, mask=there[:, None], other=0.0)
    v = tl.load(V + at[:, None] * row_v + here, mask=there[:, None], other=0.0)
    seed = tl.load(SEED)
    of_k = tl.zeros([ROWS, D], tl.float32)
    of_v = tl.zeros([ROWS, D], tl.float32)
    begin = tl.min(tl.where(end > first, first, FAR), axis=0)
    until = tl.max(end, axis=0)
    for start in range(begin, until, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = rows < queries
        q = tl.load(Q + rows[:, None] * row_q + here, mask=inside[:, None], other=0.0)
        of_z = tl.load(OF_Z + rows[:, None] * row_of_z + here, mask=inside[:, None], other=0.0)
        lse = tl.load(LSE + rows * H + head, mask=inside, other=0.0)
        mean = tl.load(MEAN + rows * H + head, mask=inside, other=0.0)
        may = (rows[None, :] >= first[:, None]) & (rows[None, :] < end[:, None])
        e = tl.where(may, tl.dot(k, tl.trans(q)) * (scale * LOG2E), -float("inf"))
        a = tl.exp2(e - lse[None, :])
        of_a = tl.dot(v, tl.trans(of_z))
        if DROP:
            begins = tl.load(SPANS + rows, mask=inside, other=0)
            kept = _kept(seed, head, rows[None, :], at[:, None] - begins[None, :], queries, longest, dropout)
            of_v += tl.dot((a * kept).to(of_z.dtype), of_z)
            of_a *= kept
        else:
            of_v += tl.dot(a.to(of_z.dtype), of_z)
        of_k += tl.dot((a * (of_a - mean[None, :])).to(q.dtype), q)
    of_k *= scale
    tl.store(OF_K + at[:, None] * row_of_k + here, of_k.to(OF_K.dtype.element_ty), mask=there[:, None])
    tl.store(OF_V + at[:, None] * row_of_v + here, of_v.to(OF_V.dtype.element_ty), mask=there[:, None])


def forward(
    q: Tensor, k: Tensor, v: Tensor, spans: Tensor, seed: Tensor, dropout: float, longest: int
) -> tuple[Tensor, Tensor]:
    """Context (Q, H, D) and lse (Q, H); q (Q, H, D), k and v (K, H, D), whose rows may lie apart."""
    Q, H, D = q.shape
    z, lse = q.new_empty(Q, H, D), q.new_empty(Q, H, dtype=torch.float32)
    _attend[triton.cdiv(Q, ROWS), H](
        *(_by_heads(part) for part in (q, k, v)), z, lse, spans, seed,
        *(part.stride(0) for part in (q, k, v)), Q, k.size(0), longest, D**-0.5, dropout,
        H=H, D=D, ROWS=ROWS, DROP=dropout > 0, **TO_ATTEND,
    )  # fmt: skip
    return z, lse


def backward(
    of_z: Tensor, q: Tensor, k: Tensor, v: Tensor, z: Tensor, lse: Tensor, spans: Tensor, key_spans: Tensor,
    seed: Tensor, dropout: float, longest: int, into: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """The gradients of q, k and v, `into` where they are wanted."""
    Q, H, D = q.shape
    of_z, mean = of_z.contiguous(), torch.empty_like(lse)
    q, k, v = (_by_heads(part) for part in (q, k, v))
    of_q, of_k, of_v = (_by_heads(part) for part in into)
    rest = (Q, k.size(0), longest, D**-0.5, dropout)
    shape = {"H": H, "D": D, "ROWS": ROWS, "DROP": dropout > 0}
    _to_queries[triton.cdiv(Q, ROWS), H](
        q, k, v, z, lse, of_z, of_q, mean, spans, seed,
        *(part.stride(0) for part in (q, k, v, z, of_z, of_q)), *rest, **shape, **TO_QUERIES,
    )  # fmt: skip
    _to_keys[triton.cdiv(k.size(0), ROWS), H](
        q, k, v, mean, lse, of_z, of_k, of_v, spans, key_spans, seed,
        *(part.stride(0) for part in (q, k, v, of_z, of_k, of_v)), *rest, **shape, **TO_KEYS,
    )  # fmt: skip


def _by_heads(x: Tensor) -> Tensor:
    """Rows may lie apart; within one, heads and columns lie side by side."""
    assert x.stride(2) == 1, "a head lies in one piece"
    assert x.size(1) == 1 or x.stride(1) == x.size(2), "heads are parts of a row"
    assert x.size(0) * x.stride(0) < 1 << 31, "places are counted in 32 bits: fewer rows, or narrower ones"
    return x


@torch.library.custom_op("saccade::attend_spans", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, spans: Tensor, key_spans: Tensor, seed: Tensor, dropout: float, longest: int
) -> tuple[Tensor, Tensor]:
    """`forward`, as an operator that a compiled layer can hold."""
    return forward(q, k, v, spans, seed, dropout, longest)


@attend.register_fake
def _(q, k, v, spans, key_spans, seed, dropout, longest):
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.custom_op("saccade::attend_spans_backward", mutates_args=())
def attend_backward(
    of_z: Tensor, q: Tensor, k: Tensor, v: Tensor, z: Tensor, lse: Tensor, spans: Tensor, key_spans: Tensor,
    seed: Tensor, dropout: float, longest: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`backward`, likewise."""
    into = tuple(part.new_empty(part.shape) for part in (q, k, v))
    backward(of_z, q, k, v, z, lse, spans, key_spans, seed, dropout, longest, into)
    return into


@attend_backward.register_fake
def _(of_z, q, k, v, z, lse, spans, key_spans, seed, dropout, longest):
    return tuple(part.new_empty(part.shape) for part in (q, k, v))


def _remember(ctx, inputs, output):
    q, k, v, spans, key_spans, seed, ctx.dropout, ctx.longest = inputs
    ctx.save_for_backward(q, k, v, *output, spans, key_spans, seed)


def _differentiate(ctx, of_z, of_lse):
    given = attend_backward(of_z, *ctx.saved_tensors, ctx.dropout, ctx.longest)
    return *given, None, None, None, None, None


attend.register_autograd(_differentiate, setup_context=_remember)


@torch.library.custom_op("saccade::attend_own_spans", mutates_args=())
def attend_own(
    qkv: Tensor, spans: Tensor, key_spans: Tensor, seed: Tensor, dropout: float, longest: int
) -> tuple[Tensor, Tensor]:
    """`attend` of a fused projection (N, 3, H, D), whose gradient is one tensor too: nothing is put side by side."""
    return forward(*qkv.unbind(1), spans, seed, dropout, longest)


@attend_own.register_fake
def _(qkv, spans, key_spans, seed, dropout, longest):
    N, _, H, D = qkv.shape
    return qkv.new_empty(N, H, D), qkv.new_empty(N, H, dtype=torch.float32)


@torch.library.custom_op("saccade::attend_own_spans_backward", mutates_args=())
def attend_own_backward(
    of_z: Tensor, qkv: Tensor, z: Tensor, lse: Tensor, spans: Tensor, key_spans: Tensor, seed: Tensor,
    dropout: float, longest: int,
) -> Tensor:  # fmt: skip
    """Its gradient."""
    of_qkv = qkv.new_empty(qkv.shape)
    backward(of_z, *qkv.unbind(1), z, lse, spans, key_spans, seed, dropout, longest, of_qkv.unbind(1))
    return of_qkv


@attend_own_backward.register_fake
def _(of_z, qkv, z, lse, spans, key_spans, seed, dropout, longest):
    return qkv.new_empty(qkv.shape)


def _remember_own(ctx, inputs, output):
    qkv, spans, key_spans, seed, ctx.dropout, ctx.longest = inputs
    ctx.save_for_backward(qkv, *output, spans, key_spans, seed)


def _differentiate_own(ctx, of_z, of_lse):
    return attend_own_backward(of_z, *ctx.saved_tensors, ctx.dropout, ctx.longest), None, None, None, None, None


attend_own.register_autograd(_differentiate_own, setup_context=_remember_own)
