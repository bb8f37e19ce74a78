"""What beam search does with the logits of a step, as two kernels in Triton.

The first reads the vocabulary once, a part of a row at a time: Σ_v exp(x_v - max) and the best that may be written. The
second takes the best 2K of a sentence's rows,

    log P(y w) = log P(y) + x_w - max_v x_v - log Σ_v exp(x_v - max),

those among the first K that end into the K best that have ended, by log P / lp, and goes on from the first K that do
not: tokens, path and what may be read of the cells are put in the order of the beams they come from. It is
`FixedBeam.advance` (proved equal in tests/test_beam_kernel.py).
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
    from saccade.generation.fixed import FixedBeam

PART = 4096  # of the vocabulary
MOST = 8192  # of what the second kernel chooses among, in its registers
TOGETHER = 64  # positions that are moved at a time


@triton.jit
def _best(
    LOGITS, ALLOWED, BEST, IDS, HIGHEST, MASS, apart, vocabulary, parts,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    at = part * BLOCK + column
    x = tl.load(LOGITS + row.to(tl.int64) * apart + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
    highest = tl.max(x, axis=0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    here = row * parts + part
    tl.store(HIGHEST + here, highest)
    tl.store(MASS + here, tl.sum(tl.exp(x - base), axis=0))
    x = tl.where(tl.load(ALLOWED + at, mask=at < vocabulary, other=0) != 0, x, -float("inf"))
    for number in range(COUNT):
        found, place = tl.max(x, axis=0, return_indices=True)
        tl.store(BEST + here * COUNT + number, found)
        tl.store(IDS + here * COUNT + number, tl.minimum(part * BLOCK + place, vocabulary - 1))
        x = tl.where(column == place, -float("inf"), x)


@triton.jit
def _lp(length, alpha):
    """((5 + |Y|) / 6)^α   (Wu et al. 2016, eq. 14)."""
    return tl.exp(alpha * tl.log((5.0 + length.to(tl.float32)) / 6.0))


@triton.jit
def _scores(
    LOGITS, BEST, HIGHEST, MASS, ALLOWED, LOG_PROB, row, real, full, apart, parts,
    COUNT: tl.constexpr, EOS: tl.constexpr, PARTS: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """log P(y w) of what each row has to choose from, (ROWS, CHOICES); of those that are full the end alone."""
    c = tl.arange(0, PARTS)
    inside = real[:, None] & (c < parts)[None, :]
    there = row[:, None] * parts + c[None, :]
    high = tl.load(HIGHEST + there, mask=inside, other=-float("inf"))
    mass = tl.load(MASS + there, mask=inside, other=0.0)
    highest = tl.max(high, axis=1)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    total = tl.sum(mass * tl.exp(tl.where(mass > 0.0, high - highest[:, None], 0.0)), axis=1)
    rest = tl.log(tl.where(total > 0.0, total, 1.0))
    m = tl.arange(0, CHOICES)
    given = real[:, None] & (m < parts * COUNT)[None, :]
    x = tl.load(BEST + row[:, None] * (parts * COUNT) + m[None, :], mask=given, other=-float("inf"))
    may_end = tl.load(ALLOWED + EOS) != 0
    end = tl.load(LOGITS + row * apart + EOS, mask=real, other=-float("inf")).to(tl.float32)
    end = tl.where(may_end, end, -float("inf"))
    x = tl.where(full, tl.where(m[None, :] == 0, end[:, None], -float("inf")), x)
    before = tl.load(LOG_PROB + row, mask=real, other=-float("inf"))
    score = before[:, None] + (x - highest[:, None] - rest[:, None])
    return tl.where(x == -float("inf"), -float("inf"), score)


@triton.jit
def _keep_ended(
    ENDED_SCORE, ENDED_LOG_PROB, ENDED_TOKENS, TOKENS, n, e, e_score, e_log, e_beam, rank, kept, capacity,
    K: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """What had ended (the first K of e) and what ends now, each where its rank is. All is read before it is written."""
    old = (e < K)[:, None]
    for start in range(0, capacity, TOGETHER):
        at = (start + tl.arange(0, TOGETHER))[None, :]
        inside = at < capacity
        of_old = tl.load(ENDED_TOKENS + (n * K + e)[:, None] * capacity + at, mask=old & inside)
        of_new = tl.load(TOKENS + (n * K + e_beam)[:, None] * capacity + at, mask=(e >= K)[:, None] & inside)
        tl.debug_barrier()
        there = ENDED_TOKENS + (n * K + rank)[:, None] * capacity + at
        tl.store(there, tl.where(old, of_old, of_new), mask=kept[:, None] & inside)
    tl.store(ENDED_SCORE + n * K + rank, e_score, mask=kept)
    tl.store(ENDED_LOG_PROB + n * K + rank, e_log, mask=kept)


@triton.jit
def _go_on(
    TOKENS, PATH, CELLS, row, real, k, come_from, token, position, capacity,
    K: tl.constexpr, CELLED: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Each row behind the one that it comes from, with the cells of that one; the next is its own."""
    real, k = real[:, None], k[:, None]
    row, come_from = row[:, None], come_from[:, None]
    for start in range(0, position + 2, TOGETHER):
        at = (start + tl.arange(0, TOGETHER))[None, :]
        read = real & (at <= position)
        tokens = tl.load(TOKENS + come_from * capacity + at, mask=read, other=0)
        path = tl.load(PATH + come_from * capacity + at, mask=read, other=0)
        tl.debug_barrier()
        tl.store(TOKENS + row * capacity + at, tl.where(at == position, token[:, None], tokens), mask=read)
        written = real & (at < tl.minimum(position + 2, capacity))
        tl.store(PATH + row * capacity + at, tl.where(at <= position, path, k), mask=written)
    if CELLED:
        cells = capacity * K
        for start in range(0, (position + 2) * K, TOGETHER):
            at = (start + tl.arange(0, TOGETHER))[None, :]
            read = real & (at < (position + 1) * K)
            seen = tl.load(CELLS + come_from * cells + at, mask=read, other=-float("inf"))
            tl.debug_barrier()
            seen = tl.where(at == (position + 1) * K + k, 0.0, seen.to(tl.float32))
            written = real & (at < tl.minimum((position + 2) * K, cells))
            tl.store(CELLS + row * cells + at, seen.to(CELLS.dtype.element_ty), mask=written)


@triton.jit
def _advance(
    LOGITS, BEST, IDS, HIGHEST, MASS, ALLOWED, LIMITS,
    POSITIONS, NEXT, LOG_PROB, TOKENS, DONE, ENDED_SCORE, ENDED_LOG_PROB, ENDED_TOKENS, ENDED_COUNT, PATH, CELLS,
    apart, parts, capacity, alpha, wanted,
    K: tl.constexpr, COUNT: tl.constexpr, EOS: tl.constexpr, STOP: tl.constexpr, CELLED: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr, CHOICES: tl.constexpr, ENDS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    position = tl.load(POSITIONS + n)
    limit = tl.load(LIMITS + n)
    full = limit <= position + 1
    k = tl.arange(0, ROWS)
    row = n * K + k
    real = k < K
    score = _scores(
        LOGITS, BEST, HIGHEST, MASS, ALLOWED, LOG_PROB, row, real, full, apart, parts, COUNT, EOS, PARTS, CHOICES
    )  # fmt: skip
    flat = tl.reshape(score, [ROWS * CHOICES])
    place = tl.arange(0, ROWS * CHOICES)

    # The best 2K, one after the other: e are the K that had ended, and then those that end now.
    e = tl.arange(0, ENDS)
    old = e < K
    e_log = tl.load(ENDED_LOG_PROB + n * K + e, mask=old, other=-float("inf"))
    e_beam = tl.zeros([ENDS], tl.int64)
    next_log = tl.full([ROWS], -float("inf"), tl.float32)
    next_token = tl.full([ROWS], EOS, tl.int64)
    next_beam = tl.where(real, k, 0).to(tl.int64)
    going = 0
    choices = parts * COUNT
    for number in range(COUNT):
        found, best = tl.max(flat, axis=0, return_indices=True)
        flat = tl.where(place == best, -float("inf"), flat)
        beam = tl.minimum(best // CHOICES, K - 1)
        token = tl.load(IDS + (n * K + beam) * choices + tl.minimum(best % CHOICES, choices - 1)).to(tl.int64)
        token = tl.where(full, EOS, token)
        here = (e == K + number) & (token == EOS) & (number < K)
        e_log = tl.where(here, found, e_log)
        e_beam = tl.where(here, beam, e_beam)
        goes = (token != EOS) & (going < K)
        chosen = (k == going) & goes
        next_log = tl.where(chosen, found, next_log)
        next_token = tl.where(chosen, token, next_token)
        next_beam = tl.where(chosen, beam, next_beam)
        going += goes.to(tl.int32)

    # Those that have ended, the best first.
    e_score = e_log / _lp(position + 1, alpha)
    e_score = tl.where(old, tl.load(ENDED_SCORE + n * K + e, mask=old, other=-float("inf")), e_score)
    level = e_score[None, :] == e_score[:, None]
    better = (e_score[None, :] > e_score[:, None]) | (level & (e[None, :] < e[:, None]))
    rank = tl.sum((better & (e < 2 * K)[None, :]).to(tl.int32), axis=1)
    kept = (rank < K) & (e < 2 * K)
    ended = tl.sum(((e_log > -float("inf")) & (e >= K)).to(tl.int32), axis=0)
    count = tl.load(ENDED_COUNT + n) + ended
    if ended > 0:
        _keep_ended(
            ENDED_SCORE, ENDED_LOG_PROB, ENDED_TOKENS, TOKENS, n, e, e_score, e_log, e_beam, rank, kept, capacity,
            K, TOGETHER,
        )  # fmt: skip
        tl.store(ENDED_COUNT + n, count)
    tl.debug_barrier()
    _go_on(
        TOKENS, PATH, CELLS, row, real, k, n * K + next_beam, next_token, position, capacity, K, CELLED, TOGETHER
    )  # fmt: skip

    worst = tl.max(tl.where((rank == wanted - 1) & kept, e_score, -float("inf")), axis=0)
    done = (tl.load(DONE + n) != 0) | (worst >= tl.max(next_log, axis=0) / _lp(limit, alpha))
    if STOP:
        done = done | (count >= K)
    tl.store(DONE + n, done.to(tl.uint8))
    tl.store(LOG_PROB + row, tl.where(done, -float("inf"), next_log), mask=real)
    tl.store(NEXT + row, next_token, mask=real)
    tl.store(POSITIONS + n, position + 1)


def suits(size: int, vocabulary: int) -> bool:
    """Whether a step of so many beams over so many pieces is one for the kernels."""
    return triton.next_power_of_2(size) * triton.next_power_of_2(_choices(size, vocabulary)) <= MOST


def _choices(size: int, vocabulary: int) -> int:
    """How many of a row are chosen among: the best of each part of the vocabulary."""
    return -(-vocabulary // PART) * min(2 * size, vocabulary)


def advance(logits: Tensor, run: "FixedBeam") -> None:
    """Take the next token of every row, and count on."""
    R, V = logits.shape
    N, K, capacity = run.tokens.shape
    assert logits.stride(1) == 1, "the logits of a row lie side by side"
    rows, count, parts = run.fixed, min(2 * K, V), -(-V // PART)
    best = logits.new_empty(R, parts * count, dtype=torch.float32)
    ids = torch.empty_like(best, dtype=torch.int32)
    highest, mass = best.new_empty(R, parts), best.new_empty(R, parts)
    block = min(PART, triton.next_power_of_2(V))
    _best[R, parts](
        logits, rows.allowed, best, ids, highest, mass, logits.stride(0), V, parts,
        COUNT=count, BLOCK=block, num_warps=min(max(block // 1024, 1), 4),
    )  # fmt: skip
    ended = run.ended_score, run.ended_log_prob, run.ended_tokens, run.ended_count
    _advance[N,](
        logits, best, ids, highest, mass, rows.allowed, rows.limits,
        rows.positions, rows.tokens, run.log_prob, run.tokens, run.done.view(torch.uint8), *ended, run.path, run.cells,
        logits.stride(0), parts, capacity, float(run.search.length_penalty), run.search.n_best,
        K=K, COUNT=count, EOS=EOS, STOP=run.search.stop_at_size or K == 1, CELLED=run.cells is not None,
        ROWS=triton.next_power_of_2(K), PARTS=triton.next_power_of_2(parts),
        CHOICES=triton.next_power_of_2(parts * count), ENDS=triton.next_power_of_2(2 * K), TOGETHER=TOGETHER,
        num_warps=4,
    )  # fmt: skip
