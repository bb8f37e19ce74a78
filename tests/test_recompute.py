"""Layers that forget give the same gradients, and keep less."""

import pytest
import torch
from models_under_test import MODELS, make, sentences

from saccade.config import TrainingConfig
from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.models.recompute import Recomputable
from saccade.training.objectives import make_objective

CAN = [name for name in MODELS if any(isinstance(module, Recomputable) for module in make(name).modules())]


def batch():
    pairs = zip(sentences([7, 3, 5]), sentences([4, 6, 9], seed=2), strict=True)
    return collate(list(pairs), [0, 1, 2])


def trained_once(name, recompute):
    """Gradients under dropout, and how many numbers were kept for them."""
    model = make(name).train()
    for module in model.modules():
        for kind in ("p", "dropout"):
            if isinstance(getattr(module, kind, None), float):
                setattr(module, kind, 0.25)
    objective = make_objective(model, TrainingConfig(recompute=recompute))
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective(batch())
    before = sum(kept)
    loss.total.backward()
    return loss.total.detach(), {key: p.grad for key, p in model.named_parameters()}, before


@pytest.mark.parametrize("name", CAN)
def test_layers_that_forget_have_the_gradients_of_those_that_remember_and_keep_less(name):
    loss, gradients, kept = trained_once(name, recompute=False)
    again, others, less = trained_once(name, recompute=True)
    torch.testing.assert_close(again, loss, rtol=0, atol=0)
    assert gradients.keys() == others.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(others[key], gradient, rtol=0, atol=0, msg=key)
    assert less < 0.8 * kept


def test_transformers_and_convs2s_can():
    assert {"transformer pre-norm", "transformer causal decoder-only", "convs2s"} <= set(CAN)


def test_a_model_without_such_layers_is_refused_by_name():
    with pytest.raises(SaccadeError, match=r"training\.recompute=true: this model has no layers .* leave it out"):
        make_objective(make("rnn bahdanau"), TrainingConfig(recompute=True))
