"""LayerNorm's training kernels, run by Triton's interpreter on the CPU, against torch's own norm and its gradients."""

import copy

import pytest
import torch
from models_under_test import make
from test_norm_kernel import lively, needs_triton
from torch import nn
from unpadded_under_test import both, some_pairs

from saccade.config import TrainingConfig
from saccade.training.unpadded import Unpadded


@pytest.fixture(scope="module")
def kernel():
    """Interpreted (conftest.py)."""
    from saccade.models import norm_training_kernel

    return norm_training_kernel


def gradients(norm, x, upstream):
    x = x.clone().requires_grad_()
    y = norm(x)
    return y, *torch.autograd.grad(y, [x, *norm.parameters()], upstream.to(y.dtype))


def check(kernel, width, rows, dtype, device="cpu"):
    """Value and gradients against float64's, where the rows of programs do not come out even too."""
    norm = lively(width, dtype, device)
    x = torch.randn(2, rows, width, device=device).add(3.0).to(dtype)
    upstream = torch.randn(2, rows, width, device=device).to(dtype)
    precise = nn.LayerNorm(width, device=device, dtype=torch.float64)
    precise.load_state_dict(norm.state_dict())
    expected = gradients(precise, x.double(), upstream)
    found = gradients(kernel.TrainedNorm(norm), x, upstream)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is dtype
        assert one.shape == other.shape
        error = (one.double() - other).norm() / other.norm().clamp(min=1e-3)
        assert error < (2e-5 if dtype is torch.float32 else 1e-2)


SHAPES = [(1, 2), (48, 1), (64, 5), (300, 37), (512, 64), (1100, 2)]


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "rows"), SHAPES)
def test_norm_and_gradients_are_those_of_layer_norm(kernel, width, rows, dtype):
    check(kernel, width, rows, dtype)


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "rows"), [*SHAPES, (512, 12_800), (8192, 70)])
def test_the_compiled_kernels_do_too(kernel, width, rows, dtype):
    check(kernel, width, rows, dtype, "cuda")


@needs_triton
def test_a_gradient_that_lies_apart_in_memory_is_read_as_it_is(kernel):
    norm = lively(48, torch.float32)
    x = torch.randn(7, 2, 48).transpose(0, 1)
    upstream = torch.randn(48, 7, 2).permute(2, 1, 0)
    for one, other in zip(gradients(kernel.TrainedNorm(norm), x, upstream), gradients(norm, x, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize("name", ["transformer pre-norm", "transformer post-norm", "transformer rotary, rms, swiglu"])
def test_a_network_learns_the_same_with_its_norms_replaced(kernel, name):
    """Parameters stay in their order, which is how the optimiser's are found; other norms are left alone."""
    _, unpadded = both(some_pairs())
    plain = make(name).float()
    replaced = kernel.with_kernels(copy.deepcopy(plain))
    norms = [module for module in replaced.modules() if isinstance(module, kernel.TrainedNorm)]
    assert bool(norms) == any(isinstance(module, nn.LayerNorm) for module in plain.modules())
    assert not any(isinstance(module, nn.LayerNorm) for module in replaced.modules())
    assert [n for n, _ in replaced.named_parameters()] == [n for n, _ in plain.named_parameters()]
    for model in (plain, replaced):
        Unpadded(model, TrainingConfig(r_drop=0.0))(unpadded).total.backward()
    for one, other in zip(replaced.parameters(), plain.parameters(), strict=True):
        assert (one.grad - other.grad).norm() < 1e-3 * other.grad.norm()
