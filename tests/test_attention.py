"""The attention core against independent references, outputs and gradients."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from saccade.attention import Additive, Dot, ScaledDot, attend, softmax
from saccade.attention.dropout import Dropout, dropout
from saccade.attention.masks import causal, over_keys
from saccade.attention.multihead import CrossAttention, Heads, SelfAttention
from saccade.attention.positions import Absent, Learned, Places, Sinusoidal, sinusoid
from saccade.errors import SaccadeError


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(q, k, v, mask, score):
    """Attention one query at a time, in plain Python arithmetic over scalars."""
    B, H, Q, _ = q.shape
    context = torch.zeros(B, H, Q, v.size(-1), dtype=torch.float64)
    weights = torch.zeros(B, H, Q, k.size(2), dtype=torch.float64)
    for b, h, i in ((b, h, i) for b in range(B) for h in range(H) for i in range(Q)):
        open_keys = [j for j in range(k.size(2)) if mask[b, h, i, j]]
        exps = {j: math.exp(score(q[b, h, i], k[b, h, j])) for j in open_keys}
        for j in open_keys:
            weights[b, h, i, j] = exps[j] / sum(exps.values())
            context[b, h, i] += weights[b, h, i, j] * v[b, h, j]
    return context, weights


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), Q=st.integers(1, 4), K=st.integers(1, 5), share=st.floats(0, 1))
def test_the_fused_kernel_and_the_four_lines_equal_the_definition(seed, Q, K, share):
    q, k, v = random(2, 3, Q, 4, seed=seed), random(2, 3, K, 4, seed=seed + 1), random(2, 3, K, 5, seed=seed + 2)
    mask = torch.rand(2, 3, Q, K, generator=torch.Generator().manual_seed(seed)) < share
    context, weights = by_hand(q, k, v, mask, lambda a, b: float(a @ b) / 2.0)
    fused = attend(q, k, v, score=ScaledDot(), mask=mask)
    plain = attend(q, k, v, score=ScaledDot(), mask=mask, need_weights=True)
    assert fused.weights is None
    torch.testing.assert_close(fused.context, context)
    torch.testing.assert_close(plain.context, context)
    torch.testing.assert_close(plain.weights, weights)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_row_that_may_attend_to_nothing_gives_zeros_and_finite_gradients(need_weights):
    q, k, v = (random(1, 1, 3, 4, seed=i).requires_grad_() for i in range(3))
    mask = torch.tensor([[True, True, True], [False, False, False], [False, True, False]])
    found = attend(q, k, v, score=ScaledDot(), mask=mask, need_weights=need_weights)
    assert (found.context[0, 0, 1] == 0).all()
    found.context.sum().backward()
    for tensor in (q, k, v):
        assert torch.isfinite(tensor.grad).all()


def test_gradients_of_the_fused_kernel_equal_those_of_the_four_lines():
    mask = causal(5, 5)
    grads = []
    for need_weights in (False, True):
        q, k, v = (random(2, 2, 5, 4, seed=i).requires_grad_() for i in range(3))
        attend(q, k, v, score=ScaledDot(), mask=mask, need_weights=need_weights).context.pow(2).sum().backward()
        grads.append([q.grad, k.grad, v.grad])
    for fused, plain in zip(*grads, strict=True):
        torch.testing.assert_close(fused, plain)


def test_additive_score_is_bahdanaus_equation():
    score = Additive(query_width=3, key_width=4, width=5).double()
    nn.init.normal_(score.v)
    s, h = random(1, 1, 2, 3), random(1, 1, 6, 4, seed=1)
    e = score(s, score.prepare(h))
    for i in range(2):
        for j in range(6):
            by_equation = score.v @ torch.tanh(score.W.weight @ s[0, 0, i] + score.U.weight @ h[0, 0, j])
            assert e[0, 0, i, j].item() == pytest.approx(by_equation.item())


def test_scaling_keeps_the_variance_of_scores_at_one_whatever_the_width():
    for width in (16, 256):
        q, k = random(1, 1, 500, width), random(1, 1, 500, width, seed=1)
        assert Dot()(q, k).var().item() == pytest.approx(width, rel=0.1)
        assert ScaledDot()(q, k).var().item() == pytest.approx(1.0, rel=0.1)


def test_a_bias_is_added_to_the_scores():
    q, k, v, bias = random(1, 2, 3, 4), random(1, 2, 5, 4, seed=1), random(1, 2, 5, 4, seed=2), random(2, 3, 5, seed=3)
    found = attend(q, k, v, score=Dot(), bias=bias, need_weights=True)
    torch.testing.assert_close(found.weights, (q @ k.mT + bias).softmax(-1))


def test_softmax_without_a_mask_is_softmax():
    scores = random(2, 3)
    torch.testing.assert_close(softmax(scores, None), scores.softmax(-1))


def copy_into(reference: nn.MultiheadAttention, own, query_key_value):
    weights, biases = query_key_value
    with torch.no_grad():
        reference.in_proj_weight.copy_(weights)
        reference.in_proj_bias.copy_(biases)
        reference.out_proj.weight.copy_(own.output.weight)
        reference.out_proj.bias.copy_(own.output.bias)


def test_self_attention_equals_torch_with_gradients():
    own = SelfAttention(Heads(12, 3, 3), 0.0).double()
    reference = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    copy_into(reference, own, (own.query_key_value.weight, own.query_key_value.bias))
    x, y = random(2, 6, 12).requires_grad_(), random(2, 6, 12).requires_grad_()
    ours = own(x, causal(6, 6), need_weights=True)
    theirs, weights = reference(y, y, y, attn_mask=~causal(6, 6), average_attn_weights=False)
    torch.testing.assert_close(ours.context, theirs)
    torch.testing.assert_close(ours.weights, weights)
    ours.context.pow(2).sum().backward()
    theirs.pow(2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(own.query_key_value.weight.grad, reference.in_proj_weight.grad)


def test_cross_attention_equals_torch():
    own = CrossAttention(Heads(12, 4, 4), 0.0).double()
    reference = nn.MultiheadAttention(12, 4, batch_first=True, dtype=torch.float64)
    weights = torch.cat([own.query.weight, own.key_value.weight])
    copy_into(reference, own, (weights, torch.cat([own.query.bias, own.key_value.bias])))
    x, memory = random(2, 5, 12), random(2, 7, 12, seed=1)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    ours = own(x, own.project(memory), over_keys(mask), need_weights=True)
    theirs, found = reference(x, memory, memory, key_padding_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(ours.context, theirs)
    torch.testing.assert_close(ours.weights, found)


def test_sinusoids_are_the_papers():
    table = sinusoid(torch.arange(50), 10)
    for p, i in ((0, 0), (7, 2), (49, 4)):
        assert table[p, 2 * i].item() == pytest.approx(math.sin(p / 10000 ** (2 * i / 10)), abs=1e-5)
        assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(p / 10000 ** (2 * i / 10)), abs=1e-5)


def test_sinusoidal_positions_go_on_beyond_their_table():
    short, long = Sinusoidal(8, kept=4), Sinusoidal(8, kept=64)
    torch.testing.assert_close(short(2, 20), long(2, 20))


def test_learned_positions_say_where_they_end():
    with pytest.raises(SaccadeError, match=r"12 pieces.*10 learned positions.*model.max_positions"):
        Learned(8, 10)(5, 7)


@pytest.mark.parametrize("scheme", [Sinusoidal(8, kept=4), Sinusoidal(8, kept=64), Learned(8, 10), Absent(8)])
def test_rows_that_stand_apart_have_the_positions_of_one_sequence(scheme):
    positions = torch.tensor([[0, 1, 2], [5, 9, 3]])
    found = scheme.at(Places(positions, 10))
    torch.testing.assert_close(found.expand(2, 3, 8), scheme(0, 10)[positions])


@pytest.mark.parametrize("scheme", [Sinusoidal(8, kept=4), Sinusoidal(8, kept=64), Learned(8, 10), Absent(8)])
def test_positions_lie_where_the_model_lies(scheme):
    """A copy from the host could not be captured on a GPU."""
    there = copy.deepcopy(scheme).to("meta")
    assert there(0, 6).device.type == "meta"
    assert there.at(Places(torch.zeros(2, 3, dtype=torch.long, device="meta"), 10)).device.type == "meta"


def test_learned_positions_of_rows_say_where_they_end_and_only_then():
    learned = Learned(8, 10)
    assert learned.at(Places(torch.tensor([[9, 0]]), 99)).shape == (1, 2, 8)
    with pytest.raises(SaccadeError, match=r"11 pieces.*10 learned positions"):
        learned.at(Places(torch.tensor([[10, 0]]), 99))


@settings(max_examples=20, deadline=None)
@given(p=st.floats(0.01, 0.9), seed=st.integers(0, 100))
def test_dropout_drops_its_share_and_keeps_the_expectation(p, seed):
    torch.manual_seed(seed)
    x = torch.ones(200_000)
    y = dropout(x, p)
    dropped = (y == 0).float().mean().item()
    assert dropped == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / x.numel()) + 1 / 65536)
    assert y.mean().item() == pytest.approx(1.0, abs=0.02 / (1 - p))
    assert y.unique().numel() == 2


def test_dropout_passes_the_gradient_where_it_passed_the_value():
    x = torch.randn(1000, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.3)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_dropout_follows_torchs_generator_and_rests_in_evaluation():
    layer, x = Dropout(0.5), torch.ones(101, 3)
    torch.manual_seed(5)
    first = layer(x)
    torch.manual_seed(5)
    assert torch.equal(first, layer(x))
    assert not torch.equal(first, layer(x))
    assert layer.eval()(x) is x


def test_every_lane_of_a_draw_is_even_and_independent():
    torch.manual_seed(1)
    lanes = (dropout(torch.ones(400_000), 0.25) == 0).float().view(-1, 4)
    assert lanes.mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.01)
    correlation = torch.corrcoef(lanes.T)
    assert (correlation - torch.eye(4)).abs().max() < 0.02
