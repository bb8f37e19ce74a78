"""Convolutional models against their papers' equations, position by position in float64."""

import pytest
import torch
from models_under_test import make, sentences, settings_of

from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.models.build import build_model
from saccade.models.conv import CausalConv

HALF = 0.5**0.5


def conv_at(conv, xs, t, dilation=1, centred=False):
    """One output of a convolution over a list of vectors; beyond the ends there is nothing."""
    kernel = conv.weight.size(-1)
    first = t - (kernel // 2 if centred else kernel - 1) * dilation
    out = conv.bias.clone()
    for i in range(kernel):
        place = first + i * dilation
        if 0 <= place < len(xs):
            out = out + conv.weight[:, :, i] @ xs[place]
    return out


def glu(x):
    a, b = x.chunk(2)
    return a * torch.sigmoid(b)


@torch.no_grad()
def test_convs2s_is_gehrings_section_3():
    model = make("convs2s")
    source, target = sentences([5])[0], sentences([4], seed=2)[0]
    batch = collate([(source, target), (sentences([9])[0], target)], [0, 1])
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    encoder, decoder = model.encoder, model.decoder
    tokens = batch.source[0, : len(source) + 1]
    e = list(encoder.embedding.table.weight[tokens] + encoder.embedding.positions.table[: len(tokens)])
    z = [encoder.enter(x) for x in e]
    for conv in encoder.convs:
        z = [(glu(conv_at(conv, z, t, centred=True)) + z[t]) * HALF for t in range(len(z))]
    z = [encoder.leave(x) for x in z]
    m = len(z)
    inputs = batch.inputs[0]
    g = list(decoder.embedding.table.weight[inputs] + decoder.embedding.positions.table[: len(inputs)])
    h = [decoder.enter(x) for x in g]
    for number, block in enumerate(decoder.blocks):
        x = [glu(conv_at(block.conv.conv, h, t)) for t in range(len(h))]
        for t in range(len(h)):
            d = (block.query(x[t]) + g[t]) * HALF
            alpha = torch.stack([d @ z_j for z_j in z]).softmax(0)
            torch.testing.assert_close(output.attentions[number][0, 0, t, :m], alpha)
            c = sum(a * (z_j + e_j) * HALF for a, z_j, e_j in zip(alpha, z, e, strict=True)) * m * (1 / m) ** 0.5
            x[t] = (x[t] + block.back(c)) * HALF
        h = [(after + before) * HALF for after, before in zip(x, h, strict=True)]
    for t, state in enumerate(h):
        torch.testing.assert_close(output.hidden[0, t], decoder.leave(state))


def normed(norm, x):
    """r(n(x))"""
    standard = (x - x.mean()) / (x.var(unbiased=False) + norm.eps).sqrt()
    return (standard * norm.weight + norm.bias).clamp(min=0)


def byte_block(block, xs, conv, dilation, centred):
    first, second, third = block.norms
    inner = [normed(second, block.narrow.weight @ normed(first, x) + block.narrow.bias) for x in xs]
    convolved = [conv_at(conv, inner, t, dilation, centred) for t in range(len(xs))]
    W_3, b = block.widen.weight, block.widen.bias
    return [x + W_3 @ normed(third, c) + b for x, c in zip(xs, convolved, strict=True)]


@torch.no_grad()
def test_bytenet_is_kalchbrenners_stack_on_a_stack():
    model = make("bytenet")
    source, target = sentences([3])[0], sentences([6], seed=2)[0]
    batch = collate([(source, target), (sentences([9])[0], target)], [0, 1])
    output = model(batch.source, batch.source_mask, batch.inputs)
    x = list(model.encoder.embedding.weight[batch.source[0, : len(source) + 1]])
    for i, block in enumerate(model.encoder.blocks):
        x = byte_block(block, x, block.conv, 2 ** (i % 2), centred=True)
    beneath = x + [torch.zeros_like(x[0])] * 20
    enter, (norm, _, leave) = model.decoder.enter, model.decoder.leave
    y = [
        enter.weight @ torch.cat([model.decoder.embedding.weight[token], beneath[t]]) + enter.bias
        for t, token in enumerate(batch.inputs[0])
    ]
    for i, block in enumerate(model.decoder.blocks):
        y = byte_block(block, y, block.conv.conv, 2 ** (i % 2), centred=False)
    for t, state in enumerate(y):
        torch.testing.assert_close(output.hidden[0, t], leave.weight @ normed(norm, state) + leave.bias)


def test_generation_keeps_only_what_the_convolutions_reach():
    model = make("convs2s")
    batch = collate([(sentences([5])[0], sentences([12])[0])], [0])
    state = model.init_state(model.encode(batch.source, batch.source_mask))
    for token in batch.inputs.split(1, dim=1):
        state = model.decode(token, state).state
        assert [recent.size(1) for recent in state.recent] == [2, 2, 2]


@pytest.mark.parametrize("dilation", [1, 3])
def test_a_causal_convolution_is_the_same_in_any_portions(dilation):
    conv = CausalConv(4, 5, 3, dilation).double()
    x = torch.randn(2, 11, 4).double()
    whole, _ = conv(x, conv.start(x))
    recent, parts = conv.start(x), []
    for part in x.split([1, 4, 6], dim=1):
        out, recent = conv(part, recent)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_initial_variance_is_kept_through_deep_stacks():
    """The paper's initialisation: after many gated layers the states are neither blown up nor dead."""
    torch.manual_seed(0)
    more = ["model.embedding=128", "model.width=128", "model.encoder_layers=12", "model.dropout=0.0"]
    model = build_model(settings_of("convs2s", *more), 50, 50).eval()
    source = torch.randint(4, 50, (8, 30))
    states = model.encode(source, torch.ones_like(source, dtype=torch.bool)).states
    embedded = model.encoder.embedding(source)
    assert 0.1 < (states.std() / embedded.std()).item() < 10


def test_the_encoders_gradient_is_scaled_by_the_number_of_attentions():
    model = make("convs2s")
    assert model.encoder.gradient_scale == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [("convs2s", "model.kernel=4", "odd; use 5"), ("bytenet", "model.embedding=13", "make it even")],
)
def test_measures_that_cannot_be_are_refused(name, setting, message):
    with pytest.raises(SaccadeError, match=message):
        build_model(settings_of(name, setting), 20, 20)
