"""A step in few calls is the step of the layers: for every wiring, one row or many, one sentence or several."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from models_under_test import TRANSFORMER

from saccade.config import Config
from saccade.models.build import build_model, with_shape
from saccade.models.lean import Absorbed, Lean, lean, on_gpu
from saccade.models.packing import can_pack, pack

pytestmark = pytest.mark.skipif(not can_pack(), reason="this torch cannot pack weights")

WIRINGS = {
    "pre": ["model.norm=pre"],
    "post": ["model.norm=post", "model.activation=gelu"],
    "deepnorm": ["model.norm=deep", "model.activation=silu"],
    "rms, gated": ["model.normalisation=rms", "model.activation=swiglu"],
    "no residual": ["model.residual=false", "model.norm=post"],
    "one head": ["model.heads=1"],
    "pruned": ["model.heads_left={encoder: [4, 2], decoder: [3, 4], cross: [1, 2]}"],
}


def lively(*settings):
    """A model in float32 whose weights make it look around."""
    config = Config.load(None, [*TRANSFORMER, *settings])
    torch.manual_seed(1)
    model = (
        build_model(config.model_copy(update={"model": with_shape(config.model, joint=True)}), 20, 20).float().eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def packed(*settings):
    model = lively(*settings)
    pack(model)
    return model


def sources(sentences, length):
    """Ids and mask; where there are several, the last is shorter."""
    ids = torch.randint(4, 20, (sentences, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones(sentences, length, dtype=torch.bool)
    if sentences > 1:
        mask[-1, length // 2 :] = False
    return ids.masked_fill(~mask, 0), mask


@torch.inference_mode()
def steps(model, source, mask, size, flat):
    """Hidden states of four steps, in between which the rows of a beam are reordered."""
    state = model.init_state(model.encode(source, mask), capacity=5)
    assert state.lean is not None
    if not flat:
        state = replace(state, lean=None, absorbed=None)
    rows, found = source.size(0), []
    tokens = torch.full((rows, 1), 5)
    for number in range(4):
        output = model.decode(tokens, state)
        found.append(output.hidden)
        state = output.state
        if number == 0 and size > 1:
            state, rows = state.beams(size), rows * size
        elif size > 1:
            parents = torch.arange(rows).view(-1, size).flip(1).flatten()
            state = state.follow(parents)
        tokens = (torch.arange(rows) + number).remainder(15).add(4).unsqueeze(1)
    return found


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("sentences", "length"), [(1, 3), (1, 30), (3, 6)])
def test_a_step_in_few_calls_is_the_step_of_the_layers(wiring, size, sentences, length):
    model = packed(*WIRINGS[wiring])
    source, mask = sources(sentences, length)
    for one, other in zip(steps(model, source, mask, size, True), steps(model, source, mask, size, False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_matrices_are_absorbed_for_one_short_sentence_alone():
    model = packed()
    layer = model.decoder.layers[0]
    for sentences, length, expected in ((1, 3, True), (1, 30, False), (2, 3, False)):
        states = model.encode(*sources(sentences, length)).states
        assert (Absorbed.of(layer.cross, layer.cross.project(states)) is not None) is expected
    state = model.init_state(model.encode(*sources(1, 3)), capacity=4)
    assert state.absorbed is not None
    assert state.keep(torch.tensor([0, 0])).absorbed is None  # no sentence by itself any more
    assert state.beams(2).keep(torch.tensor([0])).absorbed is not None


def test_what_trains_or_needs_more_than_these_calls_goes_through_its_layers():
    assert lean(list(packed().decoder.layers)) is None  # gradients are on
    with torch.inference_mode():
        assert lean(list(packed().decoder.layers)) is not None
        assert lean(list(packed().train().decoder.layers)) is None
        assert lean(list(packed("model.positions=rotary").decoder.layers)) is None
        assert lean(list(packed("model.key_heads=2").decoder.layers)) is None
        assert lean(list(lively().decoder.layers)) is None


@torch.inference_mode()
def test_on_a_gpu_nobody_asks_in_what_order_a_processor_reads_weights(monkeypatch):
    """To find it out a function is compiled, while the first sentence waits; and layers of one order serve all rows."""
    model = lively()
    monkeypatch.setattr("saccade.models.transformer.lean", lambda layers: flat)
    monkeypatch.setattr("saccade.models.lean.order_for", lambda rows: pytest.fail("asked"))
    flat = Lean(list(model.decoder.layers), on_gpu)
    for sentences in (1, 9):
        steps(model, *sources(sentences, 4), 1, True)
    assert len(flat._laid_out) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@torch.inference_mode()
def test_the_relu_in_a_product_is_the_relu_of_the_product(dtype):
    x, weight, bias = (torch.randn(*shape, dtype=dtype) for shape in ((5, 24), (40, 24), (40,)))
    with_relu = on_gpu("columns", False).with_relu
    assert with_relu is not None
    torch.testing.assert_close(with_relu(x, weight, bias), F.linear(x, weight, bias).relu())


@torch.inference_mode()
def test_a_product_with_relu_is_computed_in_the_type_that_autocast_asks_for():
    x, weight, bias = torch.randn(5, 24), torch.randn(40, 24), torch.randn(40)
    with torch.autocast("cpu", torch.bfloat16):
        found = on_gpu("columns", False).with_relu(x, weight, bias)
        assert torch.equal(found, F.linear(x, weight, bias).relu())
        assert found.dtype is torch.bfloat16
