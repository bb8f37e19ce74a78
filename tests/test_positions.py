"""How a Transformer knows word order: each scheme against its equation, and what order is worth."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import TRANSFORMER, make, settings_of

from saccade.attention.multihead import Heads, SelfAttention
from saccade.attention.positions import sinusoid
from saccade.attention.relative import RELATIVE, Rotary, Shaw, T5Buckets
from saccade.config import Config
from saccade.errors import SaccadeError
from saccade.models.build import build_model, with_shape

H, D = 4, 6


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention_with(kind: str, causal: bool = False) -> SelfAttention:
    torch.manual_seed(3)
    relative = RELATIVE[kind](H, D, causal) if kind != "none" else None
    return SelfAttention(Heads(H * D, H, H), 0.0, relative).double()


@pytest.mark.parametrize("start", [0, 3])
def test_alibi_falls_linearly_with_a_slope_for_each_head(start):
    bias = RELATIVE["alibi"](H, D, True).double().bias(torch.zeros(1, H, 2, D).double(), start, 6)
    for h in range(H):
        for i in range(2):
            for j in range(6):
                expected = -(2 ** (-8 * (h + 1) / H)) * abs(start + i - j)
                assert bias[h, i, j].item() == pytest.approx(expected)


def test_rotary_turns_pairs_by_position():
    rotary, x = Rotary(H, D, False).double(), random(1, 1, 3, D)
    turned = rotary.rotate(x, 5)
    for place in range(3):
        for d in range(D // 2):
            angle = (5 + place) * 10_000 ** (-2 * d / D)
            a, b = x[0, 0, place, 2 * d].item(), x[0, 0, place, 2 * d + 1].item()
            expected = [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
            assert turned[0, 0, place, 2 * d : 2 * d + 2].tolist() == pytest.approx(expected)


def test_rotary_scores_depend_on_distance_alone():
    rotary, q, k = Rotary(H, D, False).double(), random(1, 1, 1, D), random(1, 1, 1, D, seed=1)
    near = (rotary.rotate(q, 2) @ rotary.rotate(k, 5).mT).item()
    far = (rotary.rotate(q, 102) @ rotary.rotate(k, 105).mT).item()
    other = (rotary.rotate(q, 2) @ rotary.rotate(k, 6).mT).item()
    assert near == pytest.approx(far, abs=1e-4)
    assert near != pytest.approx(other, abs=1e-4)


def test_shaw_adds_a_vector_for_each_clipped_distance():
    attention = attention_with("shaw")
    relative, x = attention.relative, random(1, 40, H * D)
    assert isinstance(relative, Shaw)
    found = attention(x, None, need_weights=True)
    q, k, v = attention.split(attention.query_key_value(x), H, H, H)
    for h, i in ((0, 0), (1, 7), (3, 39)):
        clipped = [max(-16, min(16, j - i)) + 16 for j in range(40)]
        e = torch.stack([q[0, h, i] @ (k[0, h, j] + relative.keys[clipped[j]]) / D**0.5 for j in range(40)])
        torch.testing.assert_close(found.weights[0, h, i], e.softmax(0))
    mixed = torch.zeros(1, 40, H, D, dtype=torch.float64)
    for h in range(H):
        for i in range(40):
            for j in range(40):
                a = relative.mixed[max(-16, min(16, j - i)) + 16]
                mixed[0, i, h] += found.weights[0, h, i, j] * (v[0, h, j] + a)
    torch.testing.assert_close(found.context, attention.output(mixed.flatten(2)))


def test_t5_buckets_are_the_papers():
    both, causal = T5Buckets(1, 1, causal=False), T5Buckets(1, 1, causal=True)
    distance = torch.tensor([0, -1, -7, -8, -16, -127, -5000, 1, 7, 8, 5000])
    assert both.bucket(distance).tolist() == [0, 1, 7, 8, 10, 15, 15, 17, 23, 24, 31]
    assert causal.bucket(torch.tensor([0, -1, -15, -16, -64, -127, -5000, 3])).tolist() == [0, 1, 15, 16, 26, 31, 31, 0]


def test_t5_buckets_equal_those_of_transformers():
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-300, 301)
    for causal in (False, True):
        theirs = T5Attention._relative_position_bucket(distance, not causal, 32, 128)
        assert T5Buckets(1, 1, causal).bucket(distance).tolist() == theirs.tolist()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), length=st.integers(2, 8))
def test_attention_without_positions_is_permutation_equivariant(seed, length):
    attention, x = attention_with("none"), random(1, length, H * D, seed=seed)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(attention(x, None).context[:, order], attention(x[:, order], None).context)


@pytest.mark.parametrize("kind", RELATIVE)
def test_every_relative_scheme_breaks_the_permutation(kind):
    attention, x = attention_with(kind), random(1, 6, H * D)
    order = torch.tensor([3, 1, 0, 5, 2, 4])
    assert (attention(x, None).context[:, order] - attention(x[:, order], None).context).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["none", "sinusoidal", "learned", *RELATIVE])
def test_an_encoder_sees_order_with_every_scheme_and_none_without(kind):
    torch.manual_seed(0)
    config = Config.load(None, [*TRANSFORMER, f"model.positions={kind}"])
    config = config.model_copy(update={"model": with_shape(config.model, joint=True)})
    model = build_model(config, 20, 20).double().eval()
    tokens, order = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([4, 2, 0, 3, 1])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    change = (model.encode(tokens, mask).states[:, order] - model.encode(tokens[:, order], mask).states).abs().max()
    assert (change < 1e-9) == (kind == "none")


@pytest.mark.parametrize("k", [1, 5, 40])
def test_sinusoids_of_a_later_place_are_a_linear_function_of_those_of_an_earlier(k):
    """PE(t + k) = M_k PE(t), with one matrix M_k of 2 x 2 rotations for all t (Vaswani et al. 2017, 3.5)."""
    width = 16
    table = sinusoid(torch.arange(200).double(), width).double()
    M = torch.linalg.lstsq(table[: 200 - k], table[k:]).solution
    torch.testing.assert_close(table[: 200 - k] @ M, table[k:], rtol=0, atol=1e-4)
    for d in range(width // 2):
        w = 10_000 ** (-2 * d / width)
        rotation = torch.tensor([[math.cos(k * w), -math.sin(k * w)], [math.sin(k * w), math.cos(k * w)]])
        torch.testing.assert_close(
            table[:100, 2 * d : 2 * d + 2].float() @ rotation,
            table[k : k + 100, 2 * d : 2 * d + 2].float(),
            rtol=0,
            atol=1e-4,
        )


@pytest.mark.parametrize("kind", ["sinusoidal", *RELATIVE])
def test_schemes_without_a_table_go_beyond_any_length(kind):
    model = build_model(settings_of("transformer pre-norm", f"model.positions={kind}"), 20, 20).eval()
    long = torch.randint(4, 20, (1, 700))
    assert torch.isfinite(model(long, torch.ones_like(long, dtype=torch.bool), long).hidden).all()


def test_learned_positions_refuse_what_they_cannot_hold():
    model = make("transformer learned positions")
    long = torch.randint(4, 20, (1, 41))
    with pytest.raises(SaccadeError, match=r"41 pieces.*40 learned positions"):
        model.encode(long, torch.ones_like(long, dtype=torch.bool))


def test_fewer_key_heads_mean_a_smaller_cache_and_the_shared_head_is_the_same():
    attention = SelfAttention(Heads(H * D, H, 2), 0.0).double()
    assert attention.empty_cache(3, 7).keys.shape == (3, 2, 7, D)
    full = SelfAttention(Heads(H * D, H, H), 0.0).double()
    q, k, v = attention.query_key_value.weight.split([H * D, 2 * D, 2 * D])
    bq, bk, bv = attention.query_key_value.bias.split([H * D, 2 * D, 2 * D])

    def spread(part):
        return part.unflatten(0, (2, D)).repeat_interleave(2, dim=0).flatten(0, 1)

    with torch.no_grad():
        full.query_key_value.weight.copy_(torch.cat([q, spread(k), spread(v)]))
        full.query_key_value.bias.copy_(torch.cat([bq, spread(bk), spread(bv)]))
        full.output.load_state_dict(attention.output.state_dict())
    x = random(2, 5, H * D)
    torch.testing.assert_close(attention(x, None).context, full(x, None).context)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.key_heads=3", r"model\.key_heads=3 does not divide model\.heads=4"),
        ("model.heads=16", "rotary turns pairs"),
    ],
)
def test_shapes_that_cannot_be_are_refused(setting, message):
    more = ["model.positions=rotary"] if "rotary" in message else []
    with pytest.raises(SaccadeError, match=message):
        build_model(settings_of("transformer pre-norm", setting, *more), 20, 20)


def test_deepnorm_scales_the_residual_and_shrinks_what_the_paper_shrinks():
    plain = build_model(settings_of("transformer post-norm"), 20, 20)
    torch.manual_seed(0)
    deep = build_model(settings_of("transformer post deepnorm"), 20, 20)
    assert deep.encoder.layers[0].around_attention.scale == pytest.approx(0.81 * (2**4 * 2) ** (1 / 16))
    assert deep.decoder.layers[0].around_attention.scale == pytest.approx(6 ** (1 / 4))
    assert plain.encoder.layers[0].around_attention.scale == 1.0
    gain = 24 ** (-1 / 4)
    bound = (6 / 48) ** 0.5
    assert deep.decoder.layers[0].feed_forward.inner.weight.abs().max().item() == pytest.approx(gain * bound, rel=0.05)
    projection = deep.decoder.layers[0].attention.query_key_value.weight
    assert projection[:32].abs().max() > projection[32:].abs().max() / gain * 0.9


def test_without_residuals_nothing_of_the_input_is_added():
    model = build_model(settings_of("transformer post-norm", "model.residual=false", "model.dropout=0.0"), 20, 20)
    around = model.encoder.layers[0].around_attention
    x, y = torch.randn(1, 3, 16), torch.randn(1, 3, 16)
    torch.testing.assert_close(around.leave(x, y), around.norm(y))
