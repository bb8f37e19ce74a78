"""The loss and the optimizer."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, sentences

from saccade.config import TrainingConfig
from saccade.data.batching import collate
from saccade.training import objectives
from saccade.training.objectives import CrossEntropy, projected_cross_entropy
from saccade.training.optim import clip_gradients, learning_rate, make_optimizer


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 23),
    smoothing=st.sampled_from([0.0, 0.1, 0.4]),
    block=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_blocked_cross_entropy_equals_torch_with_gradients(rows, smoothing, block, seed):
    torch.manual_seed(seed)
    gold = torch.randint(0, 11, (rows,))
    ours = [torch.randn(rows, 5).double().requires_grad_(), torch.randn(11, 5).double().requires_grad_()]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objectives._ProjectedCrossEntropy, "ROWS", block)
        total, nll = projected_cross_entropy(ours[0], ours[1], gold, smoothing)
    logits = F.linear(*theirs)
    expected = F.cross_entropy(logits, gold, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits, gold, reduction="sum"))
    (total * 0.37).backward()
    (expected * 0.37).backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_half_precision_is_close_and_keeps_the_sum_in_single():
    torch.manual_seed(0)
    hidden, weight, gold = torch.randn(700, 32), torch.randn(50, 32), torch.randint(0, 50, (700,))
    total, _ = projected_cross_entropy(hidden.bfloat16(), weight, gold, 0.1)
    exact, _ = projected_cross_entropy(hidden, weight, gold, 0.1)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact.item(), rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_padding_never_changes_the_loss_or_its_gradient(name):
    pairs = list(zip(sentences([4, 9]), sentences([6, 2], seed=2), strict=True))
    gradients = []
    for shape in (None, (14, 13)):
        model = make(name)
        loss = CrossEntropy(model, 0.1)(collate(pairs, [0, 1], shape))
        loss.total.backward()
        gradients.append((loss.total, loss.tokens, [p.grad for p in model.parameters()]))
    (tight, tokens, grads), (wide, same_tokens, same_grads) = gradients
    assert tokens == same_tokens == 6 + 2 + 2
    torch.testing.assert_close(tight, wide)
    for one, other in zip(grads, same_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_has_the_loss_of_its_sentences(name):
    model = make(name)
    objective = CrossEntropy(model, 0.1)
    pairs = list(zip(sentences([4, 9, 1]), sentences([6, 2, 5], seed=2), strict=True))
    together = objective(collate(pairs, range(3)))
    alone = [objective(collate([pair], [0])) for pair in pairs]
    torch.testing.assert_close(together.total, torch.stack([loss.total for loss in alone]).sum())
    torch.testing.assert_close(together.nll, torch.stack([loss.nll for loss in alone]).sum())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("inverse-sqrt", {5: 0.5, 10: 1.0, 40: 0.5, 90: 1 / 3}),
        ("linear", {5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0}),
        ("cosine", {5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0}),
        ("constant", {5: 0.5, 10: 1.0, 100: 1.0}),
    ],
)
def test_the_learning_rate_rises_then_falls_as_its_schedule_says(schedule, expected):
    for step, share in expected.items():
        rate = learning_rate(step, schedule=schedule, peak=2e-3, warmup=10, total=100)
        assert rate == pytest.approx(2e-3 * share, abs=1e-12)


def test_inverse_square_root_is_vaswanis_formula():
    width, warmup = 512, 4000
    for step in (1, 100, 4000, 9999):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        ours = learning_rate(step, schedule="inverse-sqrt", peak=(width * warmup) ** -0.5, warmup=warmup, total=10**6)
        assert ours == pytest.approx(paper)


def test_no_warmup_starts_at_the_peak():
    assert learning_rate(1, schedule="cosine", peak=1.0, warmup=0, total=100) == pytest.approx(1.0, abs=0.01)


def test_weight_decay_is_on_matrices_only():
    model = make("transformer pre-norm")
    decayed, free = make_optimizer(model, TrainingConfig(weight_decay=0.1)).param_groups
    assert all(p.dim() >= 2 for p in decayed["params"])
    assert all(p.dim() < 2 for p in free["params"])
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))


def test_clipping_limits_the_joint_norm_and_zero_leaves_it():
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(1))]
    for limit, norm in ((1.0, 1.0), (0.0, 5.0), (9.0, 5.0)):
        weights[0].grad, weights[1].grad = torch.tensor([0.0, 3.0, 0.0]), torch.tensor([4.0])
        assert clip_gradients(weights, limit).item() == pytest.approx(5.0)
        assert math.dist([0] * 4, torch.cat([w.grad for w in weights]).tolist()) == pytest.approx(norm, abs=1e-5)
