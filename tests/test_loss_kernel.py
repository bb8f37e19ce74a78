"""The loss kernel, run by Triton's interpreter on the CPU, against the loss as it is written."""

import pytest
import torch
from test_norm_kernel import needs_triton

from saccade.data.tokenizers import PAD
from saccade.training.divergences import _settle, _settle_by_kernel, projected_divergences


@pytest.fixture(scope="module", autouse=True)
def kernel():
    """Interpreted (conftest.py)."""
    pytest.importorskip("triton")
    from saccade.training import loss_kernel

    return loss_kernel


def check(rows, V, smoothing, share, dtype, device="cpu"):
    logits = (4 * torch.randn(rows, V, device=device)).to(dtype)
    gold = torch.randint(V, (rows,), device=device, dtype=torch.int32)
    gold[-1], gold[0] = PAD, V - 1
    expected = _settle((logits.double(),), gold, smoothing, (share,), ())
    found = _settle_by_kernel((logits.clone(),), gold, smoothing, (share,), ())
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 0.01, "atol": 1e-4}
    for one, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    assert found[2][0].dtype is dtype
    torch.testing.assert_close(found[2][0].double(), expected[2][0], **close)
    assert not found[2][0][-1].any()


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("smoothing", "share"), [(0.1, 1.0), (0.0, 1.0), (0.3, 0.25)])
@pytest.mark.parametrize(("rows", "V"), [(2, 5), (5, 64), (3, 1000), (3, 9001)])
def test_losses_and_gradients_are_those_that_are_written(rows, V, smoothing, share, dtype):
    check(rows, V, smoothing, share, dtype)


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "V"), [(2, 5), (300, 1000), (64, 9001), (700, 32_000)])
def test_the_compiled_kernel_does_too(rows, V, dtype):
    check(rows, V, 0.1, 1.0, dtype, "cuda")


@needs_triton
@pytest.mark.parametrize("rows", [1, 700])
def test_the_projected_loss_is_the_same_with_the_kernel_in_its_blocks(rows):
    """700 rows are two blocks; the last rows of each are no words."""
    hidden, weight = torch.randn(1, rows, 16, requires_grad=True), torch.randn(90, 16, requires_grad=True)
    gold = torch.randint(1, 90, (rows,), dtype=torch.int32)
    gold[505:520], gold[690:] = PAD, PAD
    given = hidden, weight, gold, 0.1, [1.0], []

    def by_kernel(work, *block):
        return _settle_by_kernel(*block)

    (expected, expected_nll), (total, nll) = projected_divergences(*given), projected_divergences(*given, by_kernel)
    torch.testing.assert_close((total, nll), (expected, expected_nll), rtol=1e-5, atol=1e-3)
    wanted = torch.autograd.grad(expected, [hidden, weight])
    found = torch.autograd.grad(total, [hidden, weight])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert not found[0][0, gold == PAD].any()


@needs_triton
def test_logits_far_apart_do_no_harm(kernel):
    logits = torch.tensor([[3e4, -3e4, 0.0, 3e4 - 1]])
    loss, nll = kernel.settle(logits, torch.tensor([1], dtype=torch.int32), 0.1, 1.0)
    assert nll.item() == pytest.approx(6e4 + torch.tensor([0.0, -1.0]).logsumexp(0).item())
    assert torch.isfinite(loss)
    assert torch.isfinite(logits).all()
