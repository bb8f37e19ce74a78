"""Attention where sentences lie one behind the other, without padding.

The rows of all sentences are one axis. Each query may attend to the keys of a span [first, end): those of its own
sentence, those up to itself, or those of its source. Each key then has a span of queries that may attend to it, which
is what its gradient is summed over. Nothing else need be known, so there are no lengths, no blocks and no padding.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from saccade.attention.dropout import mixed

HEAD_WIDTHS = (16, 32, 64, 128)  # that the kernels know


class Spans(NamedTuple):
    """Which keys each query may attend to, and which queries to each key; an empty span is [0, 0)."""

    of_queries: Tensor  # (2, Q) int32: the first key and the one behind the last
    of_keys: Tensor  # (2, K) int32: the first query and the one behind the last
    longest: int  # no span of a query has more keys

    def mask(self) -> Tensor:
        """The same as a mask (Q, K)."""
        first, end = self.of_queries.unsqueeze(2)
        keys = torch.arange(self.of_keys.size(1), device=first.device)
        return (keys >= first) & (keys < end)

    def can_be_fused(self, query: Tensor) -> bool:
        """Whether the kernels know such heads, on such a device."""
        return query.is_cuda and query.size(-1) in HEAD_WIDTHS and query.dtype is not torch.float64


def attend_spans(q_1HQD: Tensor, k_1HKD: Tensor, v_1HKD: Tensor, spans: Spans, dropout: float) -> Tensor:
    """The context (1, H, Q, D) by kernels that read only what is in a span (proved equal in tests/test_spans.py)."""
    from saccade.attention import span_kernels  # Triton comes with torch for CUDA, not for a CPU

    rows = (_in_rows(part) for part in (q_1HQD, k_1HKD, v_1HKD))
    seed = _seed(spans, dropout)
    context, _ = span_kernels.attend(*rows, spans.of_queries, spans.of_keys, seed, dropout, spans.longest)
    return context.transpose(0, 1).unsqueeze(0)


def attend_own_spans(qkv_1N3HD: Tensor, spans: Spans, dropout: float) -> Tensor:
    """The same of a fused projection, in rows (1, N, H · D) as it comes."""
    from saccade.attention import span_kernels

    seed = _seed(spans, dropout)
    qkv = qkv_1N3HD.squeeze(0)
    context, _ = span_kernels.attend_own(qkv, spans.of_queries, spans.of_keys, seed, dropout, spans.longest)
    return context.flatten(1).unsqueeze(0)


def _seed(spans: Spans, dropout: float) -> Tensor:
    if not dropout:
        return spans.of_queries[0, :1]  # not looked at
    return mixed(torch.randint(1 << 31, (1,), device=spans.of_queries.device, dtype=torch.int32))


def _in_rows(x_1HND: Tensor) -> Tensor:
    """(N, H, D), where the heads of a row lie side by side: as they do unless they were turned by their places."""
    rows = x_1HND.squeeze(0).transpose(0, 1)
    return rows if rows.stride()[1:] == (rows.size(2), 1) else rows.contiguous()
