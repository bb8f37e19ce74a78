"""The Transformer against `torch.nn.Transformer`, with copied weights: outputs and gradients."""

import math
from dataclasses import replace

import pytest
import torch
from models_under_test import make, settings_of
from torch import nn

from benchmarks.peers import copy_transformer
from saccade.attention.masks import causal
from saccade.config import Config
from saccade.errors import SaccadeError
from saccade.models.build import build_model, count_parameters, with_shape
from saccade.models.build.shapes import TRANSFORMER_SIZES
from saccade.models.transformer import ACTIVATIONS, GATED, NORMS, FeedForward, Shape


def twin(model, norm):
    """`torch.nn.Transformer` with the weights of our model."""
    reference = nn.Transformer(16, 4, 2, 2, 32, 0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64)
    copy_transformer(model, reference)
    return reference


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_it_equals_torch_outputs_and_gradients(norm):
    model = make(f"transformer {norm}-norm")
    reference = twin(model, norm)
    source, target = torch.randint(4, 20, (3, 6)), torch.randint(4, 20, (3, 5))
    mask = torch.arange(6) < torch.tensor([[6], [4], [2]])
    ours = model(source, mask, target).hidden
    x, y = model.encoder.embedding(source), model.decoder.embedding(target)
    theirs = reference(
        x, y, tgt_mask=~causal(5, 5), src_key_padding_mask=~mask, memory_key_padding_mask=~mask, tgt_is_causal=True
    )
    torch.testing.assert_close(ours, theirs)
    probe = torch.randn_like(ours)
    (ours * probe).sum().backward()
    (theirs * probe).sum().backward()
    for own, other in (
        (model.encoder.layers[0].feed_forward.inner.weight, reference.encoder.layers[0].linear1.weight),
        (
            model.decoder.layers[0].attention.query_key_value.weight,
            reference.decoder.layers[0].self_attn.in_proj_weight,
        ),
        (model.encoder.layers[0].attention.output.weight, reference.encoder.layers[0].self_attn.out_proj.weight),
    ):
        torch.testing.assert_close(own.grad, other.grad)


EQUATIONS = {
    "relu": lambda x: x if x > 0 else 0.0,
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", [*ACTIVATIONS, *GATED])
def test_every_feed_forward_is_its_equation(name):
    torch.manual_seed(0)
    shape = Shape(width=3, feed_forward=5, heads=1, key_heads=1, activation=name)
    feed_forward = FeedForward(replace(shape, activation_dropout=0.5)).double().eval()
    x = 2 * torch.randn(4, 3).double()
    act = EQUATIONS[GATED.get(name, name)]
    found = feed_forward(x)
    inner, outer = feed_forward.inner, feed_forward.outer
    for row, given in zip(found, x, strict=True):
        h = (inner.weight @ given + inner.bias).tolist()
        h = [act(a) * b for a, b in zip(h[:5], h[5:], strict=True)] if name in GATED else [act(a) for a in h]
        torch.testing.assert_close(row, outer.weight @ torch.tensor(h, dtype=torch.float64) + outer.bias)


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_is_its_equation(name):
    torch.manual_seed(0)
    norm = NORMS[name](6).double()
    nn.init.normal_(norm.weight)
    x = 3 * torch.randn(6).double() + 1
    apart = x - x.mean() if name == "layer" else x
    # RMSNorm's epsilon is torch's to choose, and far below what is compared.
    expected = apart / ((apart**2).mean() + (1e-5 if name == "layer" else 0)).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=1e-6, atol=1e-9)


def test_embeddings_are_scaled_by_the_root_of_the_width_and_positions_added():
    model = make("transformer pre-norm")
    embedding = model.encoder.embedding
    tokens = torch.tensor([[5, 6]])
    expected = embedding.table.weight[[5, 6]] * 4.0 + embedding.positions(0, 2)
    torch.testing.assert_close(embedding(tokens)[0], expected)


def test_tied_embeddings_are_one_matrix():
    tied = build_model(settings_of("transformer pre-norm", "model.tied=all"), 20, 20)
    assert tied.encoder.embedding.table.weight is tied.decoder.embedding.table.weight is tied.decoder.output.weight
    half = build_model(settings_of("transformer pre-norm", "model.tied=decoder"), 30, 20)
    assert half.encoder.embedding.table.weight is not half.decoder.embedding.table.weight
    assert half.decoder.embedding.table.weight is half.decoder.output.weight
    untied = build_model(settings_of("transformer untied"), 20, 20)
    assert untied.decoder.embedding.table.weight is not untied.decoder.output.weight


def test_initial_matrices_are_xavier_uniform_part_by_part():
    model = build_model(settings_of("transformer pre-norm", "model.width=256", "model.feed_forward=512"), 20, 20)
    projection = model.encoder.layers[0].attention.query_key_value
    for part in projection.weight.chunk(3):
        bound = (6 / (256 + 256)) ** 0.5
        assert part.abs().max().item() <= bound
        assert part.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not projection.bias.any()


@pytest.mark.parametrize("size", TRANSFORMER_SIZES)
def test_named_sizes_have_the_parameters_they_promise(size):
    config = Config.load(None, [f"model.size={size}"])
    config = config.model_copy(update={"model": with_shape(config.model, joint=True)})
    with torch.device("meta"):
        model = build_model(config, 1000, 1000)
    width, inner, _, layers = TRANSFORMER_SIZES[size]
    attention, feed_forward, norm = 4 * width * (width + 1), 2 * width * inner + inner + width, 2 * width
    encoder = layers * (attention + feed_forward + 2 * norm) + norm
    decoder = layers * (2 * attention + feed_forward + 3 * norm) + norm
    assert count_parameters(model) == encoder + decoder + 1000 * width


def test_heads_must_divide_the_width():
    with pytest.raises(SaccadeError, match=r"model.width=16.*model.heads=3"):
        build_model(settings_of("transformer pre-norm", "model.heads=3"), 20, 20)


def test_tying_all_embeddings_needs_a_joint_vocabulary():
    with pytest.raises(SaccadeError, match=r"tokenizer\.joint=true"):
        with_shape(Config.load(None, ["model.tied=all"]).model, joint=False)
