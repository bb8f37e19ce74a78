"""Where memory is short, batches without padding go in pieces, which add up to the same step."""

import contextlib
import copy
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from unpadded_under_test import both, corpora, learning, sentences_of, some_pairs, stored, trained

from saccade.config import TrainingConfig
from saccade.data.unpadded import UnpaddedBatcher, collate_unpadded
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.models.unpadded import plainly
from saccade.training.captured import CapturedSteps
from saccade.training.memory import MicroBatches
from saccade.training.optim import make_optimizer
from saccade.training.unpadded import Unpadded


def short_of_memory(monkeypatch, *times):
    """Memory runs out at those of all readings of a batch, counted from 1; returns the rows of each that was tried."""
    tried = []
    read = Unpadded.forward

    def limited(self, batch):
        tried.append(batch.target.size(1))
        if len(tried) in times:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return read(self, batch)

    monkeypatch.setattr(Unpadded, "forward", limited)
    return tried


class Saying(Display):
    """Remembers what is said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, line):
        self.lines.append(line)


@settings(deadline=None, max_examples=40)
@given(corpora, st.integers(64, 700), st.sampled_from([2, 3, 4, 8]))
def test_pieces_hold_the_sentences_of_their_batch_in_one_smaller_shape(pairs, tokens, number):
    with tempfile.TemporaryDirectory() as folder:
        batcher = UnpaddedBatcher(stored(pairs, Path(folder) / "store"), batch_tokens=tokens, seed=0)
        batch = next(batcher.stream())[1]
    pieces = batch.pieces(number)
    assert {(piece.source.size(1), piece.target.size(1)) for piece in pieces} == {batch.room(number)}
    assert all(rows % 64 == 0 and rows <= whole for rows, whole in zip(batch.room(number), batcher.rows, strict=True))
    assert [pair for piece in pieces for pair in sentences_of(piece)] == sentences_of(batch)
    assert torch.equal(torch.cat([piece.indices for piece in pieces]), batch.indices)
    assert sum(piece.target_tokens for piece in pieces) == batch.target_tokens
    assert batch.room(batch.most_pieces) == batch.room(8 * batch.most_pieces)
    for piece in pieces:
        empty = piece.target[4] == 0
        assert not piece.target[:, empty].any()
        assert piece.across.mask()[~empty].any(1).all()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_pieces_give_the_loss_the_gradients_and_the_weights_of_the_whole(accumulate):
    training = TrainingConfig(r_drop=3.0, clip_norm=0.5, weight_decay=0.1)
    batches = [collate_unpadded(some_pairs(60, i), np.arange(60), (512, 576), (10, 10)) for i in range(2 * accumulate)]
    model = learning("transformer pre-norm")
    found = {}
    for number in (1, 2, 4):
        learner = copy.deepcopy(model)
        steps = CapturedSteps(learner, training, make_optimizer(learner, training), Display(quiet=True))
        steps.micro.pieces = number
        said = []
        for taken in (batches[:accumulate], batches[accumulate:]):
            said += steps.take(taken, sum(batch.target_tokens for batch in taken), 0.01)
            said += [weight.grad.clone() for weight in learner.parameters()]
        assert len(steps.captures) == (1 if number == accumulate == 1 else 2)
        found[number] = [*said, *learner.parameters()]
    for number in (2, 4):
        for one, other in zip(found[number], found[1], strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("times", [(1,), (1, 2), (7,)], ids=["at the first", "and again", "later"])
def test_a_run_short_of_memory_goes_on_in_smaller_pieces_and_says_so(tmp_path, monkeypatch, times):
    store = stored(some_pairs(400), tmp_path / "store")
    tried, display = short_of_memory(monkeypatch, *times), Saying()
    trained(tmp_path / "run", store, 8, batch_tokens=640, display=display)
    (line, *more) = [line for line in display.lines if line.startswith("memory:")]
    assert line.startswith("memory: a batch does not fit at once; from now on it goes in 2 pieces, whose gradients add")
    assert len(more) == len(times) - 1
    assert tried[: times[0]] == [640] * times[0]
    assert tried[times[-1] :] == [tried[-1]] * len(tried[times[-1] :])
    assert tried[-1] == {1: 320, 2: 192}[len(times)]


def test_a_run_whose_batches_go_in_pieces_goes_on_so_to_the_very_weights_of_the_other(tmp_path, monkeypatch):
    store = stored(some_pairs(400), tmp_path / "store")
    with monkeypatch.context() as short:
        short_of_memory(short, 1)
        whole = trained(tmp_path / "whole", store, 12, batch_tokens=640)
    with monkeypatch.context() as short:
        short_of_memory(short, 1)
        trained(tmp_path / "stopped", store, 8, batch_tokens=640)
    display = Saying()
    resumed = trained(tmp_path / "stopped", store, 12, batch_tokens=640, display=display)
    assert display.lines[0] == "memory: a batch goes in 2 pieces, as before the run was stopped"
    for own, other in zip(resumed, whole, strict=True):
        assert torch.equal(own, other)


def test_where_the_smallest_piece_does_not_fit_the_run_ends_with_what_can_be_done(monkeypatch):
    short_of_memory(monkeypatch, *range(1, 9))
    training = TrainingConfig(r_drop=0.0, batch_tokens=128)
    model, display = learning("transformer pre-norm"), Saying()
    steps = CapturedSteps(
        model, training, make_optimizer(model, training), display, MicroBatches(Path(), display, True)
    )
    _, batch = both(some_pairs())
    before = [parameter.clone() for parameter in model.parameters()]
    message = (
        r"training\.batch_tokens=128: memory is too short for the smallest piece of a batch, 64 \+ 64 tokens "
        r"\(the longest sentences have 10 and 10\); leave the GPU more free memory.* training\.unpadded=false"
    )
    with pytest.raises(SaccadeError, match=message):
        steps.take([batch], batch.target_tokens, 0.01)
    assert len(display.lines) == 1
    for own, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(own, old)


def test_on_a_gpu_what_was_captured_is_let_go_of_before_the_next_try(monkeypatch):
    """Graphs and their pool are played here by what is written, which runs on any device."""
    done = []

    def captured(work, pool):
        done.append(("captured", pool))
        if pool == 1 and len(done) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work

    for name, stand_in in (
        ("warm", lambda work: done.append(("tried", None))),
        ("captured", captured),
        ("Kept", lambda *_: contextlib.nullcontext()),
        ("Compiled", lambda: plainly),
    ):
        monkeypatch.setattr(f"saccade.training.captured.{name}", stand_in)
    pools = iter((1, 2))
    for name, stand_in in (
        ("graph_pool_handle", lambda: next(pools)),
        ("synchronize", lambda device: None),
        ("max_memory_allocated", lambda device: 7),
        ("reset_peak_memory_stats", lambda device: None),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    training, display = TrainingConfig(r_drop=0.0), Saying()
    model = learning("transformer pre-norm")
    steps = CapturedSteps(model, training, make_optimizer(model, training), display)
    steps.on_gpu, steps.pool = True, torch.cuda.graph_pool_handle()
    batch = collate_unpadded(some_pairs(60), np.arange(60), (512, 576), (10, 10))
    steps.take([batch], batch.target_tokens, 0.01)
    whole, pieces = [("tried", None)] * 2, [("tried", None)] * 3
    assert done == [*whole, ("captured", 1), *pieces, *[("captured", 2)] * 3]
    assert {shape.target for shape in steps.captures} == {(7, 320)}
    assert steps.foreseen[1] == 7
