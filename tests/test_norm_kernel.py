"""A residual's sum and its norm in one kernel, run by Triton's interpreter on the CPU, against the two calls."""

import importlib.util
import warnings

import pytest
import torch
from models_under_test import make, sentences
from torch import nn

from saccade import devices
from saccade.data.batching import collate
from saccade.generation.captured import replayed
from saccade.generation.rules import DEFAULT_RULES
from saccade.generation.search import Beam, Greedy
from saccade.models import lean
from saccade.models.lean import Lean, on_gpu

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def kernel():
    """Interpreted (conftest.py)."""
    from saccade.models import norm_kernel

    return norm_kernel


def lively(width, dtype, device="cpu"):
    norm = nn.LayerNorm(width, device=device, dtype=dtype)
    with torch.no_grad():
        norm.weight.add_(torch.randn(width, device=device, dtype=dtype))
        norm.bias.add_(torch.randn(width, device=device, dtype=dtype))
    return norm


def check(kernel, width, rows, dtype, device="cpu"):
    """Sum and norm against those in float64, of what is stored in between."""
    norm, precise = lively(width, dtype, device), nn.LayerNorm(width, device=device, dtype=torch.float64)
    precise.load_state_dict(norm.state_dict())
    for scale, offset in ((1.0, 0.0), (2.5, 0.0), (1.0, 30.0)):
        x = torch.randn(rows, width, device=device).add(offset).to(dtype)
        y = torch.randn(rows, width, device=device).to(dtype)
        expected = (y.float() + scale * x.float()).to(dtype)  # a CPU's `add_` would round scale · x first
        alone, same = kernel.leave(x, y.clone(), norm, scale, keep=False)
        assert alone is same
        added, normed = kernel.leave(x, y, norm, scale, keep=True)
        assert added is y
        # The interpreter cuts numbers off where a GPU rounds them.
        torch.testing.assert_close(added, expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
        assert torch.equal(normed, alone)
        close = {"rtol": 2e-5, "atol": 2e-5} if dtype is torch.float32 else {"rtol": 0.01, "atol": 0.01}
        torch.testing.assert_close(normed.double(), precise(added.double()), **close)
        torch.testing.assert_close(normed, norm(added), **close)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "rows"), [(1, 2), (48, 1), (64, 5), (300, 3), (512, 64), (1100, 2)])
@torch.inference_mode()
def test_sum_and_norm_in_one_kernel_are_those_of_the_two_calls(kernel, width, rows, dtype):
    check(kernel, width, rows, dtype)


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "rows"), [(48, 1), (300, 3), (512, 1), (512, 320), (1100, 2), (8192, 7)])
@torch.inference_mode()
def test_the_compiled_kernel_does_too(kernel, width, rows, dtype):
    if not kernel.COMPILED:
        pytest.skip("Triton was told to interpret (TRITON_INTERPRET=0 compiles)")
    check(kernel, width, rows, dtype, "cuda")


@needs_triton
def test_norms_that_the_kernel_does_not_know_are_left_alone(kernel):
    assert kernel.suits(nn.LayerNorm(48))
    assert not kernel.suits(None)
    assert not kernel.suits(nn.RMSNorm(48))
    assert not kernel.suits(nn.LayerNorm(48, bias=False))
    assert not kernel.suits(nn.LayerNorm(48, elementwise_affine=False))
    assert not kernel.suits(nn.LayerNorm(2 * kernel.WIDEST))
    assert not kernel.suits(nn.LayerNorm(48, dtype=torch.float64))


@needs_triton
@pytest.mark.parametrize("name", ["transformer pre-norm", "transformer post-norm", "transformer post deepnorm"])
@pytest.mark.parametrize("search", [Greedy(), Beam(3)])
@torch.inference_mode()
def test_captured_steps_by_kernels_find_what_those_by_calls_find(name, search, kernel, monkeypatch):
    model = make(name).float()
    sources = sentences([5, 9, 2], seed=1)
    batch = collate([(s, []) for s in sources], range(3))
    parts = batch.source, batch.source_mask, search, torch.tensor([9, 12, 5]), DEFAULT_RULES
    monkeypatch.setattr("saccade.models.transformer.lean", lambda layers: Lean(layers, on_gpu))
    expected = replayed(model, *parts)
    called, leave = [], kernel.leave
    monkeypatch.setattr(kernel, "leave", lambda *given: called.append(given) or leave(*given))
    monkeypatch.setattr(lean, "runs_triton", lambda device, dtype: True)
    found = replayed(make(name).float(), *parts)
    assert called
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-4)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trial_is_the_same_under_autocast(kernel, dtype, monkeypatch):
    """A run validates under autocast, whose norms on a GPU answer in float32 whatever they are given."""
    call = nn.LayerNorm.forward

    def as_on_a_gpu(norm, x):
        return call(norm.float(), x.float()) if torch.is_autocast_enabled("cpu") else call(norm, x)

    monkeypatch.setattr(nn.LayerNorm, "forward", as_on_a_gpu)
    with torch.autocast("cpu", torch.bfloat16):
        kernel.trial(torch.device("cpu"), dtype)


@needs_triton
def test_where_triton_fails_it_is_said_once_and_calls_are_made(kernel, monkeypatch):
    def fails(*device):
        raise OSError("no C compiler")

    device = torch.device("cuda", 0)
    monkeypatch.setattr(kernel, "trial", fails)
    monkeypatch.setattr(kernel, "COMPILED", True)
    devices.runs_triton.cache_clear()
    with pytest.warns(UserWarning, match="Triton cannot be used on cuda:0.*no C compiler"):
        assert not devices.runs_triton(device, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not devices.runs_triton(device, torch.float32)
    assert not devices.runs_triton(torch.device("cpu"), torch.float32)
    devices.runs_triton.cache_clear()
