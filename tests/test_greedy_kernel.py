"""What greedy search does with logits in one kernel, run by Triton's interpreter on the CPU, against plain lines."""

import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import make, sentences

from saccade.data.batching import collate
from saccade.data.tokenizers import EOS
from saccade.generation import fixed
from saccade.generation.captured import replayed
from saccade.generation.fixed import FixedGreedy, Rows
from saccade.generation.rules import DEFAULT_RULES, forbid
from saccade.generation.search import Greedy
from saccade.models.lean import Lean, on_gpu

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

CAPACITY = 6


def searches(limits, vocabulary, forbidden, device="cpu"):
    """Two that stand alike: one for the kernel, one for the lines."""
    made = []
    for _ in range(2):
        rows = Rows(torch.tensor(limits, device=device), 1, vocabulary, forbidden)
        made.append(FixedGreedy(rows, CAPACITY, torch.float32))
    return made


def by_kernel(search, logits):
    from saccade.generation import greedy_kernel  # interpreted (conftest.py)

    greedy_kernel.advance(logits, search)


def check(vocabulary, dtype, seed, rough=False, device="cpu"):
    limits, forbidden = [1, 3, 6, 6, 5], (0, 1, 3, 7)
    one, other = searches(limits, vocabulary, forbidden, device)
    random = torch.Generator().manual_seed(seed)
    for number in range(CAPACITY):
        logits = 3 * torch.randn(5, vocabulary, generator=random)
        if rough:
            logits = logits.round()  # many are equal
        logits[number % 5, EOS] += 20.0 * (number > 1)
        logits[:, 0] += 30.0  # the likeliest is never written, but counts
        logits = logits.to(device, dtype)
        by_kernel(one, logits)
        other.advance(logits)
        for name in ("written", "done"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        torch.testing.assert_close(one.log_prob, other.log_prob, rtol=1e-5, atol=1e-5)
        assert torch.equal(one.rows.tokens, other.rows.tokens)
        assert one.rows.positions.tolist() == other.rows.positions.tolist() == [number + 1] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [9, 64, 1000, 9000])
@pytest.mark.parametrize("rough", [False, True])
def test_greedy_by_a_kernel_writes_what_the_lines_write(vocabulary, dtype, rough):
    check(vocabulary, dtype, vocabulary, rough)


@settings(max_examples=20, deadline=None)
@given(vocabulary=st.integers(8, 70), seed=st.integers(0, 999))
def test_of_equal_logits_both_take_the_first(vocabulary, seed):
    check(vocabulary, torch.float32, seed, rough=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [9, 1000, 32_000, 250_001])
@pytest.mark.parametrize("rough", [False, True])
def test_the_compiled_kernel_does_too(vocabulary, dtype, rough, monkeypatch):
    from saccade.models import norm_kernel

    if not norm_kernel.COMPILED:
        pytest.skip("Triton was told to interpret (TRITON_INTERPRET=0 compiles)")
    monkeypatch.setattr(fixed, "runs_triton", lambda device, dtype: False)
    check(vocabulary, dtype, vocabulary, rough, "cuda")


def test_where_nothing_may_be_written_the_first_piece_is_at_no_chance():
    one, other = searches([6, 1], 8, tuple(range(8)))
    logits = torch.randn(2, 8)
    by_kernel(one, logits)
    other.advance(logits)
    assert one.rows.tokens.tolist() == other.rows.tokens.tolist() == [[0], [EOS]]
    assert one.log_prob.tolist() == other.log_prob.tolist() == [-float("inf")] * 2


@torch.inference_mode()
def test_captured_steps_by_the_kernel_find_what_those_by_lines_find(monkeypatch):
    monkeypatch.setattr("saccade.models.transformer.lean", lambda layers: Lean(layers, on_gpu))
    for lengths, seed in (([5, 9, 2, 14], 1), ([6], 3)):
        batch = collate([(s, []) for s in sentences(lengths, seed=seed)], range(len(lengths)))
        limits = torch.tensor([min(2 * n + 3, 33) for n in lengths])
        parts = batch.source, batch.source_mask, Greedy(), limits, (*DEFAULT_RULES, forbid([7]))
        expected = replayed(make("transformer pre-norm").float(), *parts)
        with monkeypatch.context() as compiled:
            compiled.setattr(fixed, "runs_triton", lambda device, dtype: True)
            found = replayed(make("transformer pre-norm").float(), *parts)
        for (one,), (other,) in zip(found, expected, strict=True):
            assert one.tokens == other.tokens
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
