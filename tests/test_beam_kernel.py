"""What beam search does with logits in two kernels, run by Triton's interpreter on the CPU, against plain lines."""

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
from saccade.generation.fixed import FixedBeam, Rows
from saccade.generation.rules import DEFAULT_RULES, forbid
from saccade.generation.search import Beam
from saccade.models.lean import Lean, on_gpu

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

CAPACITY = 8
LIMITS = [1, 3, 8, 8, 5]
BEAMS = {
    "three": Beam(3, 0.8, 0.0, 2),
    "five": Beam(5, 0.0),
    "four, stop at size": Beam(4, 1.4, 0.0, 4, stop_at_size=True),
    "one": Beam(1, 1.0),
}


def searches(beam, vocabulary, forbidden, device="cpu", celled=True):
    """Two that stand alike: one for the kernels, one for the lines."""
    made, N, K = [], len(LIMITS), beam.size
    for _ in range(2):
        rows = Rows(torch.tensor(LIMITS, device=device), K, vocabulary, forbidden)
        path = torch.zeros(N, K, CAPACITY, dtype=torch.long, device=device)
        cells = torch.zeros(N, 1, K, CAPACITY * K, dtype=torch.bfloat16, device=device) if celled else None
        mask = torch.ones(N, 4, dtype=torch.bool, device=device)
        made.append(FixedBeam(beam, rows, CAPACITY, mask, torch.float32, path, cells))
        made[-1].reset()
    return made


def by_kernel(search, logits):
    from saccade.generation import beam_kernel  # interpreted (conftest.py)

    assert beam_kernel.suits(search.search.size, logits.size(1))
    beam_kernel.advance(logits, search)


def apart(rows, vocabulary, random):
    """Logits of which the highest stay apart when they are rounded: of equal ones either may be taken."""
    logits = torch.randn(rows, vocabulary, generator=random) - 9.0
    high = min(vocabulary, 24)
    places = torch.rand(rows, vocabulary, generator=random).argsort(1)[:, :high]
    return logits.scatter(1, places, torch.linspace(-5, 5, high) + 0.2 * torch.rand(rows, high, generator=random))


def check(beam, vocabulary, dtype, seed, device="cpu", celled=True, ending=3.0):
    one, other = searches(beam, vocabulary, (0, 1, 3, 7), device, celled)
    random = torch.Generator().manual_seed(seed)
    for number in range(CAPACITY):
        logits = apart(len(LIMITS) * beam.size, vocabulary, random)
        logits[:, EOS] += ending * torch.randn(len(logits), generator=random)
        logits[:, 0] += 5.0  # the likeliest is never written, but counts
        logits = logits.to(device, dtype)
        by_kernel(one, logits)
        other.advance(logits)
        assert_alike(one, other, number)


def assert_alike(one, other, number):
    assert torch.equal(one.done, other.done)
    assert torch.equal(one.ended_count, other.ended_count)
    torch.testing.assert_close(one.ended_score, other.ended_score, rtol=1e-5, atol=1e-5)
    there = other.ended_score > -float("inf")  # what is no hypothesis may be anything
    torch.testing.assert_close(one.ended_log_prob[there], other.ended_log_prob[there], rtol=1e-5, atol=1e-5)
    assert torch.equal(one.ended_tokens[there], other.ended_tokens[there])
    torch.testing.assert_close(one.log_prob, other.log_prob, rtol=1e-5, atol=1e-5)
    alive = other.log_prob > -float("inf")
    assert torch.equal(one.tokens[alive], other.tokens[alive])
    assert torch.equal(one.path[alive][:, : number + 2], other.path[alive][:, : number + 2])
    assert torch.equal(one.fixed.tokens.view_as(alive)[alive], other.fixed.tokens.view_as(alive)[alive])
    assert one.fixed.positions.tolist() == other.fixed.positions.tolist() == [number + 1] * len(LIMITS)
    if one.cells is not None:
        assert torch.equal(one.cells.squeeze(1)[alive], other.cells.squeeze(1)[alive])
        assert (one.cells == 0.0).any(-1).all(), "every row looks at something"
    answers = zip(one.results(), other.results(), strict=True)
    assert all([h.tokens for h in found] == [h.tokens for h in expected] for found, expected in answers)


@pytest.mark.parametrize("kind", BEAMS)
@pytest.mark.parametrize("vocabulary", [12, 64, 600])
@pytest.mark.parametrize("celled", [False, True])
def test_a_beam_by_kernels_writes_what_the_lines_write(kind, vocabulary, celled, monkeypatch):
    monkeypatch.setattr("saccade.generation.beam_kernel.PART", 256)  # 600 are read in three parts
    check(BEAMS[kind], vocabulary, torch.float32, vocabulary, celled=celled)


def test_a_vocabulary_of_several_parts_is_read_whole():
    check(BEAMS["three"], 9000, torch.float32, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_may_be_rounded(dtype):
    check(BEAMS["five"], 40, dtype, 3)


@settings(max_examples=8, deadline=None)
@given(kind=st.sampled_from(list(BEAMS)), seed=st.integers(0, 999), ending=st.sampled_from([0.0, 3.0, 8.0]))
def test_whatever_the_logits_both_find_the_same(kind, seed, ending):
    check(BEAMS[kind], 16, torch.float32, seed, ending=ending)


def test_where_nothing_may_be_written_nothing_is_at_any_chance():
    one, other = searches(BEAMS["three"], 12, tuple(range(12)))
    for number in range(2):
        logits = torch.randn(15, 12)
        by_kernel(one, logits)
        other.advance(logits)
        assert_alike(one, other, number)
    assert one.done.all()


def test_beams_that_do_not_fit_into_registers_go_by_lines():
    from saccade.generation import beam_kernel

    assert beam_kernel.suits(5, 32_000)
    assert beam_kernel.suits(10, 64_000)
    assert not beam_kernel.suits(64, 32_000)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [12, 1000, 32_000])
@pytest.mark.parametrize("kind", BEAMS)
def test_the_compiled_kernels_do_too(kind, vocabulary, dtype, monkeypatch):
    from saccade.models import norm_kernel

    if not norm_kernel.COMPILED:
        pytest.skip("Triton was told to interpret (TRITON_INTERPRET=0 compiles)")
    monkeypatch.setattr(fixed, "runs_triton", lambda device, dtype: False)
    check(BEAMS[kind], vocabulary, dtype, vocabulary, "cuda")


@pytest.mark.parametrize("kind", BEAMS)
@torch.inference_mode()
def test_captured_steps_by_the_kernels_find_what_those_by_lines_find(kind, monkeypatch):
    monkeypatch.setattr("saccade.models.transformer.lean", lambda layers: Lean(layers, on_gpu))
    for lengths, seed in (([5, 6, 2], 1), ([6], 3)):
        batch = collate([(s, []) for s in sentences(lengths, seed=seed)], range(len(lengths)))
        limits = torch.tensor([min(2 * n + 3, 33) for n in lengths])
        parts = batch.source, batch.source_mask, BEAMS[kind], limits, (*DEFAULT_RULES, forbid([7]))
        expected = replayed(make("transformer pre-norm").float(), *parts)
        with monkeypatch.context() as compiled:
            compiled.setattr(fixed, "runs_triton", lambda device, dtype: True)
            found = replayed(make("transformer pre-norm").float(), *parts)
        for one, other in zip(found, expected, strict=True):
            assert [h.tokens for h in one] == [h.tokens for h in other]
            assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-4)
