"""Every family against the same network written directly in PyTorch: the loss and every gradient, in float64."""

import pytest
import torch
from models_under_test import sentences

from benchmarks.direct import NETWORKS
from benchmarks.families import settings_of, twins
from saccade.data.batching import collate
from saccade.training.objectives import CrossEntropy

CASES = [
    *((family, ()) for family in NETWORKS),
    # what families have beside their defaults, where the direct network has it too
    ("gnmt", ("model.layers=4",)),
    ("rctm", ("model.largest_kernel=3",)),  # the longest source needs it more than once
    ("lstmn", ("model.layers=2",)),
    ("lstmn-shallow", ("model.layers=2",)),
    ("lm-attention", ("model.layers=2", "model.window=3")),
    ("lm-ngram", ("model.order=8", "model.width=112")),  # reaches beyond the first word of a row
]


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("family", "more"), CASES, ids=[" ".join([family, *more]) for family, more in CASES])
def test_a_family_equals_its_direct_network_loss_and_gradients(family, more):
    torch.manual_seed(1)
    network = NETWORKS[family]
    ours, direct = twins(network, settings_of(network, "model.size=tiny", "model.dropout=0", *more), vocabulary=30)
    # targets longer and shorter than their sources, and padding on both sides
    pairs = zip(sentences([7, 3, 5], 30), sentences([4, 6, 9], 30, seed=2), strict=True)
    batch = collate(list(pairs), [0, 1, 2])
    summed = CrossEntropy(ours.train(), 0.1)(batch)
    own, other = summed.total / summed.tokens, direct.train().loss(batch, 0.1)
    torch.testing.assert_close(own, other)
    own.backward()
    other.backward()
    weights = list(direct.pairs(ours))
    assert {id(mine) for mine, _ in weights} == {id(parameter) for parameter in direct.parameters()}
    assert {id(theirs) for _, theirs in weights} == {id(parameter) for parameter in ours.parameters()}
    for mine, theirs in weights:
        torch.testing.assert_close(theirs.grad, mine.grad)
