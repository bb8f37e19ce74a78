"""Products in blocks of rows are the products, and nothing is left behind by them."""

import pytest
import torch
from models_under_test import make, sentences
from torch import nn

from saccade import devices
from saccade.data.batching import collate
from saccade.models import blocks
from saccade.models.packing import PackedLinear, pack
from saccade.training import divergences, objectives
from saccade.training.divergences import Pull, projected_divergences
from saccade.training.objectives import CrossEntropy, projected_cross_entropy


@pytest.fixture(autouse=True)
def in_blocks(monkeypatch):
    """As on a processor that MKL is not made for."""
    monkeypatch.setattr(blocks, "onednn_is_quicker", lambda: True)


@pytest.mark.parametrize("rows", [255, 256, 257, 511, 512, 700])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_and_its_gradients_are_those_of_torch(rows, bias):
    torch.manual_seed(rows)
    linear = nn.Linear(24, 40, bias=bias)
    ours, theirs = (torch.randn(rows, 24, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in "ab")
    found, expected = PackedLinear(linear)(ours), linear(theirs)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    own = torch.autograd.grad(found, [ours, *linear.parameters()], grad)
    other = torch.autograd.grad(expected, [theirs, *linear.parameters()], grad)
    for one, two in zip(own, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def test_gradients_that_nobody_asks_for_are_not_made():
    linear, x = nn.Linear(8, 8), torch.randn(3, 100, 8, requires_grad=True)
    linear.weight.requires_grad_(False)
    blocks.linear(x, linear.weight, None).sum().backward()
    assert x.grad is not None
    assert linear.weight.grad is None


def test_few_rows_other_types_and_half_precision_go_the_usual_way(monkeypatch):
    monkeypatch.setattr(blocks._Linear, "apply", lambda *_: pytest.fail("in blocks"))
    weight = torch.randn(6, 4)
    blocks.linear(torch.randn(255, 4), weight, None)
    blocks.linear(torch.randn(300, 4).double(), weight.double(), None)
    with torch.autocast("cpu", torch.bfloat16):
        assert blocks.linear(torch.randn(300, 4), weight, None).dtype is torch.bfloat16


def test_the_setting_of_torch_is_what_it_was(monkeypatch):
    monkeypatch.setattr(devices, "onednn_is_quicker", lambda: True)
    before = devices._MATMUL.fp32_precision
    within = []

    def fail():
        with devices.quick_products():
            within.append(devices._MATMUL.fp32_precision)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert within != [before]
    assert devices._MATMUL.fp32_precision == before


def test_products_that_come_out_rounded_are_left_to_mkl(monkeypatch):
    monkeypatch.setattr(devices, "is_intel", lambda: False)
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: False)
    before = devices._MATMUL.fp32_precision
    assert not devices.onednn_is_quicker.__wrapped__()
    assert devices._MATMUL.fp32_precision == before


@pytest.mark.parametrize("rows", [1, 5, 8, 13])
def test_rows_that_fill_a_block_count_for_nothing(monkeypatch, rows):
    monkeypatch.setattr(blocks, "PART", 8)
    monkeypatch.setattr(objectives._ProjectedCrossEntropy, "ROWS", 8)
    monkeypatch.setattr(divergences._ProjectedDivergences, "ROWS", 8)
    torch.manual_seed(rows)
    hidden, weight, gold = torch.randn(2, rows, 5), torch.randn(11, 5), torch.randint(0, 11, (rows,))

    def both(hidden, weight):
        one = projected_cross_entropy(hidden[0], weight, gold, 0.1)
        return one + projected_divergences(hidden, weight, gold, 0.1, [0.5, 0.5], [Pull(0, 1, 2.0)])

    values, gradients = [], []
    for dtype in (torch.float32, torch.float64):  # which is never filled up
        h, w = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        found = both(h, w)
        gradients.append(torch.autograd.grad(found[0] + found[2], [h, w]))
        values.append(torch.stack(found).float())
    torch.testing.assert_close(*values)
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two.float(), rtol=1e-4, atol=1e-5)


def test_a_model_learns_the_same_in_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 16)
    pairs = list(zip(sentences([4, 9, 7]), sentences([6, 2, 9], seed=2), strict=True))
    gradients = []
    for packed in (False, True):
        model = make("transformer pre-norm").float()
        if packed:
            pack(model)
        loss = CrossEntropy(model, 0.1)(collate(pairs, range(3)))
        loss.total.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, grad in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], grad, rtol=1e-4, atol=1e-5, msg=name)
    assert isinstance(model.decoder.layers[0].feed_forward.inner, PackedLinear)
