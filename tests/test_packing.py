"""Weights laid out for a CPU give what they gave, for any number of rows, on any maker's processor."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from models_under_test import make
from torch import nn

from saccade.models import packing
from saccade.models.packing import PackedLinear, rounded


@pytest.mark.parametrize("intel", [True, False])
@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_products_are_those_of_the_weights_for_any_rows(monkeypatch, intel, shape):
    if not packing.can_pack():
        pytest.skip("this torch has no packed products")
    monkeypatch.setattr(packing, "is_intel", lambda: intel)
    inputs, outputs = shape
    torch.manual_seed(1)
    linear = nn.Linear(inputs, outputs)
    packed = PackedLinear(linear)
    with torch.no_grad():
        for rows in (1, 2, 5, 16, 17, 33, 63, 65, 130):
            x = torch.randn(rows, inputs)
            torch.testing.assert_close(packed(x), F.linear(x, linear.weight, linear.bias))
        x = torch.randn(3, 7, inputs)
        assert packed(x).shape == (3, 7, outputs)
        torch.testing.assert_close(packed(x), F.linear(x, linear.weight, linear.bias))
        linear.weight.mul_(2)
        torch.testing.assert_close(packed(x), F.linear(x, linear.weight, linear.bias))


@given(st.integers(1, 1_000_000))
def test_rows_are_rounded_up_by_a_quarter_at_most_or_to_eight(rows):
    assert rows <= rounded(rows) <= max(8, rows + rows // 4)
    assert rounded(rounded(rows)) == rounded(rows)


def test_few_numbers_of_rows_are_left():
    assert len({rounded(rows) for rows in range(1, 2**16 + 1)}) <= 16 + 8 * 12


@pytest.mark.parametrize("intel", [True, False])
def test_a_layer_that_has_learned_is_read_as_it_is_now(monkeypatch, intel):
    monkeypatch.setattr(packing, "is_intel", lambda: intel)
    torch.manual_seed(1)
    packed, x = PackedLinear(nn.Linear(8, 12)), torch.randn(5, 8)
    optimizer = torch.optim.AdamW(packed.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        packed.train()(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(packed.eval()(x), F.linear(x, packed.weight, packed.bias))


def test_programs_that_are_made_at_once_are_those_of_few_rows_and_change_nothing(monkeypatch):
    if not packing.can_pack():
        pytest.skip("this torch has no packed products")
    asked = []
    multiply = packing.packed_linear

    def counted(x, *how):
        asked.append((x.size(0), how[-1]))
        return multiply(x, *how)

    torch.manual_seed(1)
    model, x = make("transformer pre-norm").float(), torch.randn(9, 16)
    packing.pack(model)
    inner = model.decoder.layers[0].feed_forward.inner
    with torch.inference_mode():
        before = inner(x)
        monkeypatch.setattr(packing, "is_intel", lambda: False)
        monkeypatch.setattr(packing, "packed_linear", counted)
        packing.make_programs(model, most=40)  # and those of blocks, by another way
        torch.testing.assert_close(inner(x), before)
    kinds = {rounded(rows) for rows in range(2, 41) if packing.order_for(rows) == "packed"}
    assert {rows for rows, _ in asked[1:]} == kinds  # the first asks whether there are such products
    assert {how for _, how in asked[1:]} >= {"relu", "none"}
    asked.clear()
    monkeypatch.setattr(packing, "is_intel", lambda: True)
    packing.make_programs(model)
    assert asked == []
