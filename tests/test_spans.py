"""The kernels of attention over spans, run by Triton's interpreter on the CPU, against attention with a mask."""

import importlib.util
from itertools import accumulate

import pytest
import torch

from saccade.attention.core import attend
from saccade.attention.dropout import kept_by_place, mixed
from saccade.attention.multihead import Heads, SelfAttention
from saccade.attention.relative import Rotary
from saccade.attention.scores import ScaledDot
from saccade.attention.spans import Spans, attend_spans

H, D = 3, 16


@pytest.fixture(scope="module")
def kernels():
    """Interpreted (conftest.py)."""
    from saccade.attention import span_kernels

    return span_kernels


def between(lengths, others, rows):
    """The span of each row: where its sentence stands among those of `others`; rows of no sentence have none."""
    spans = torch.zeros(2, rows, dtype=torch.int32)
    starts, ends = [0, *accumulate(lengths)], [0, *accumulate(others)]
    for i in range(len(lengths)):
        spans[0, starts[i] : starts[i + 1]], spans[1, starts[i] : starts[i + 1]] = ends[i], ends[i + 1]
    return spans


def examples():
    source, target = [5, 40, 3, 20, 1], [7, 12, 10, 25, 2]
    S, T = sum(source) + 6, sum(target) + 9
    within, across = between(target, target, T), Spans(between(target, source, T), between(source, target, S), 40)
    here, there = torch.arange(T, dtype=torch.int32), within[1] > 0
    before = torch.stack([within[0], torch.where(there, here + 1, 0)])
    behind = torch.stack([torch.where(there, here, 0), within[1]])
    return {
        "within": (Spans(within, within, 25), T, T),
        "causal": (Spans(before, behind, 25), T, T),
        "across": (across, T, S),
    }


def parts(queries, keys, apart=False):
    """Queries, keys and values; `apart`: as parts of one wider matrix, as a fused projection has them."""
    torch.manual_seed(queries + keys)
    wide = [torch.randn(n, 3 * H * D) for n in (queries, keys, keys)]
    made = [one[:, i * H * D : (i + 1) * H * D] if apart else one[:, : H * D] for i, one in enumerate(wide)]
    rows = [one.unflatten(1, (H, D)) for one in made]
    return [one.requires_grad_() if apart else one.contiguous().requires_grad_() for one in rows]


def by_mask(q, k, v, spans, kept=None):
    """The same by scores, mask and weights; `kept` (H, Q, K): what dropout leaves, scaled."""
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
    found = attend(q, k, v, score=ScaledDot(), mask=spans.mask(), need_weights=True)
    weights = found.weights if kept is None else found.weights * kept
    return (weights @ v).squeeze(0).transpose(0, 1)


def test_triton_is_installed_for_this_suite():
    assert importlib.util.find_spec("triton") is not None


@pytest.mark.parametrize("apart", [False, True], ids=["each in one piece", "parts of a projection"])
@pytest.mark.parametrize("name", examples())
def test_kernels_equal_attention_with_a_mask_and_its_gradients(kernels, name, apart):
    spans, queries, keys = examples()[name]
    given = parts(queries, keys, apart)
    seed = torch.zeros(1, dtype=torch.int32)
    context, _ = kernels.attend(*given, spans.of_queries, spans.of_keys, seed, 0.0, spans.longest)
    expected = by_mask(*given, spans)
    torch.testing.assert_close(context, expected)
    upstream = torch.randn_like(context)
    ours = torch.autograd.grad(context, given, upstream)
    for own, other in zip(ours, torch.autograd.grad(expected, given, upstream), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", examples())
def test_dropout_falls_where_its_numbers_say_in_both_passes(kernels, name):
    """The mask is computed here by `mixed`, place by place; the kernels draw it twice and must draw the same."""
    spans, queries, keys = examples()[name]
    given, chance, seed = parts(queries, keys), 0.3, mixed(torch.tensor([17], dtype=torch.int32))
    rows = torch.arange(H).view(-1, 1, 1) * queries + torch.arange(queries).view(1, -1, 1)
    counters = rows * spans.longest + torch.arange(keys) - spans.of_queries[0].view(1, -1, 1)
    kept = ((mixed(counters.int() ^ seed) & 0xFFFFFF) >= chance * (1 << 24)) / (1 - chance)
    context, _ = kernels.attend(*given, spans.of_queries, spans.of_keys, seed, chance, spans.longest)
    expected = by_mask(*given, spans, kept)
    torch.testing.assert_close(context, expected)
    upstream = torch.randn_like(context)
    ours = torch.autograd.grad(context, given, upstream)
    for own, other in zip(ours, torch.autograd.grad(expected, given, upstream), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chance", [0.0, 0.3])
@pytest.mark.parametrize("name", ["within", "causal"])
def test_a_fused_projection_has_the_context_and_the_gradient_of_its_parts(kernels, name, chance):
    spans, rows, _ = examples()[name]
    qkv, seed = torch.randn(rows, 3, H, D, requires_grad=True), torch.tensor([17], dtype=torch.int32)
    rest = spans.of_queries, spans.of_keys, seed, chance, spans.longest
    context, _ = kernels.attend_own(qkv, *rest)
    expected, _ = kernels.attend(*qkv.unbind(1), *rest)
    assert torch.equal(context, expected)
    upstream = torch.randn_like(context)
    (found,) = torch.autograd.grad(context, qkv, upstream)
    (wanted,) = torch.autograd.grad(expected, qkv, upstream)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("heads", [1, 3])
def test_heads_that_were_turned_are_read_however_many_they_are(kernels, heads):
    spans, rows, _ = examples()["causal"]
    q, k, v = (torch.randn(1, heads, rows, D) for _ in range(3))
    rotary = Rotary(heads, D, causal=True)
    q, k = rotary.rotate(q, 0), rotary.rotate(k, 0)
    expected = attend(q, k, v, score=ScaledDot(), mask=spans.mask()).context
    torch.testing.assert_close(attend_spans(q, k, v, spans, 0.0), expected)


@pytest.mark.parametrize("name", ["within", "causal"])
def test_self_attention_by_kernels_is_that_by_masks(kernels, name, monkeypatch):
    spans, rows, _ = examples()[name]
    attention = SelfAttention(Heads(H * D, H, H), 0.0)
    x = torch.randn(1, rows, H * D, requires_grad=True)
    expected = attention(x, spans).context
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [x, *attention.parameters()], upstream)
    monkeypatch.setattr(Spans, "can_be_fused", lambda spans, query: True)
    context = attention(x, spans).context
    torch.testing.assert_close(context, expected)
    found = torch.autograd.grad(context, [x, *attention.parameters()], upstream)
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_rows_of_no_sentence_find_nothing(kernels):
    spans, queries, keys = examples()["across"]
    seed = torch.zeros(1, dtype=torch.int32)
    context, _ = kernels.attend(*parts(queries, keys), spans.of_queries, spans.of_keys, seed, 0.0, spans.longest)
    assert not context[-9:].any()
    assert context[:-9].any(dim=2).all()


@pytest.mark.parametrize("chance", [0.1, 0.5])
def test_dropout_by_place_falls_as_often_as_asked_and_knows_no_neighbours(chance):
    shape = torch.Size([500, 400])
    dropped = (~kept_by_place(shape, chance, torch.tensor([3], dtype=torch.int32))).double()
    deviation = (chance * (1 - chance)) ** 0.5
    assert dropped.mean().item() == pytest.approx(chance, abs=4 * deviation / shape.numel() ** 0.5)
    other = (~kept_by_place(shape, chance, torch.tensor([4], dtype=torch.int32))).double()
    for left, right in ((dropped[1:], dropped[:-1]), (dropped[:, 1:], dropped[:, :-1]), (dropped, other)):
        together = ((left - chance) * (right - chance)).mean().item() / deviation**2
        assert abs(together) < 4 / left.numel() ** 0.5
