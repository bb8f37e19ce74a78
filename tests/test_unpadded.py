"""Batches without padding: they hold every pair, and what is learned from them is what is learned from padded ones."""

import copy
import io
import json
import tempfile
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, settings_of
from rich.console import Console
from unpadded_under_test import SIZE, both, corpora, learning, sentences_of, side, some_pairs, stored, trained

from saccade.config import Config, TrainingConfig
from saccade.data.batching import Position
from saccade.data.both_ways import BothWays
from saccade.data.mixture import Part
from saccade.data.tokenizers import PAD
from saccade.data.unpadded import UnpaddedBatcher, collate_unpadded, cut, fits
from saccade.display import Display
from saccade.distributed.world import World
from saccade.errors import SaccadeError
from saccade.models.build import build_model
from saccade.models.unpadded import hidden_of, reads_unpadded
from saccade.planning import choose_model, choose_training
from saccade.training.captured import CapturedSteps, Compiled, captured, warm
from saccade.training.loop import Trainer, Validation
from saccade.training.objectives import make_objective
from saccade.training.optim import clip_gradients, make_optimizer, set_learning_rate
from saccade.training.padding import choose_padding
from saccade.training.unpadded import Unpadded

READERS = [name for name in MODELS if reads_unpadded(make(name))]


@settings(deadline=None, max_examples=40)
@given(corpora, st.integers(64, 200), st.integers(0, 3))
def test_an_epoch_holds_every_pair_once_and_each_batch_has_the_same_rows(pairs, tokens, seed):
    with tempfile.TemporaryDirectory() as folder:
        store = stored(pairs, Path(folder) / "store")
        batcher = UnpaddedBatcher(store, batch_tokens=tokens, seed=seed)
        batches = [batch for _, batch in islice(batcher.stream(), batcher.batches_in(0))]
    assert {(batch.source.size(1), batch.target.size(1)) for batch in batches} == {batcher.rows}
    held = [pair for batch in batches for pair in sentences_of(batch)]
    assert sorted(held) == sorted((tuple(source), tuple(target)) for source, target in pairs)
    words = sum(len(source) + len(target) + 2 for source, target in pairs)
    assert batcher.waste() == pytest.approx(1 - words / (len(batches) * sum(batcher.rows)))
    assert sum(batch.target_tokens for batch in batches) == sum(len(target) + 1 for _, target in pairs)


def test_a_stream_goes_on_where_it_was_stopped_and_epochs_differ(tmp_path):
    batcher = UnpaddedBatcher(stored(some_pairs(90), tmp_path / "store"), batch_tokens=128, seed=3)
    assert batcher.batches_in(0) > 3
    whole = list(islice(batcher.stream(), 3 * batcher.batches_in(0)))
    for number in (0, 2, batcher.batches_in(0) - 1, batcher.batches_in(0) + 1):
        again = UnpaddedBatcher(batcher.store, batch_tokens=128, seed=3).stream(whole[number][0])
        for (place, batch), (expected_place, expected) in zip(again, whole[number + 1 :], strict=False):
            assert place == expected_place
            assert torch.equal(batch.source, expected.source)
            assert torch.equal(batch.target, expected.target)
    assert not torch.equal(whole[0][1].source, whole[batcher.batches_in(0)][1].source)


@settings(deadline=None, max_examples=40)
@given(corpora, st.integers(64, 200), st.integers(0, 3), st.integers(0, 2), st.booleans())
def test_a_plan_made_in_stretches_is_the_permutation_cut_at_once(pairs, tokens, seed, epoch, mixed):
    mixture = [Part(1, 2), Part(len(pairs) - 1, len(pairs))] if mixed and len(pairs) > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        store = stored(pairs, Path(folder) / "store")
        batcher = UnpaddedBatcher(store, batch_tokens=tokens, seed=seed, mixture=mixture)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("saccade.data.unpadded.STRETCH", 1)  # two batches at least, if each word were a sentence
            members, cuts = batcher._plan(epoch)
    everyone = [np.arange(len(pairs), dtype=np.int64)]
    if mixture:  # the first pair twice an epoch, and one more than all others, walk after walk
        walks = [np.random.default_rng([seed, 1, walk]).permutation(len(pairs) - 1) + 1 for walk in range(epoch + 4)]
        everyone = [[0, 0], np.concatenate(walks)[epoch * len(pairs) : (epoch + 1) * len(pairs)]]
    expected = np.random.default_rng([seed, epoch]).permutation(np.concatenate(everyone))
    assert members.dtype == np.uint32
    assert members.tolist() == expected.tolist()
    lengths = np.array([[len(source) + 1, len(target) + 1] for source, target in pairs]).T[:, expected]
    assert cuts.tolist() == cut(lengths, batcher.rows).tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(side, side), min_size=7, max_size=60), st.integers(0, 5))
def test_the_last_two_batches_of_an_epoch_share_what_is_left(pairs, seed):
    with tempfile.TemporaryDirectory() as folder:
        batcher = UnpaddedBatcher(stored(pairs, Path(folder) / "store"), batch_tokens=64, seed=seed)
        batches = [batch for _, batch in islice(batcher.stream(), batcher.batches_in(0))]
        cuts = batcher._plan(0)[1]
    words = [sum(len(source) + len(target) + 2 for source, target in sentences_of(batch)) for batch in batches]
    assert [len(batch.indices) for batch in batches[:-2]] == np.diff(cuts)[:-2].tolist()
    # But for a pair of 20 words at most; where half would not fit, one side of the last is full but for a pair.
    assert len(batches) == 1 or words[-1] >= min(sum(words[-2:]) / 2, 64) - 20


@pytest.mark.parametrize("place", [Position(0, 2), Position(3, 0)], ids=["within an epoch", "at its end"])
def test_a_run_begun_before_last_batches_were_shared_goes_on_as_it_was(tmp_path, place):
    batcher = UnpaddedBatcher(stored(some_pairs(90), tmp_path / "store"), batch_tokens=128, seed=3)
    taken = list(islice(batcher.stream(place), 2 * batcher.batches_in(0)))
    epoch, number = place.epoch, place.batch
    for after, batch in taken:
        members, cuts = batcher._plan(epoch)
        assert batch.indices.tolist() == members[cuts[number] : cuts[number + 1]].tolist()
        number += 1
        if number == len(cuts) - 1:
            epoch, number = epoch + 1, 0
        assert after == Position(epoch, number)
    assert next(batcher.stream())[0] == Position(0, 1, {"end": "shared"})


def test_a_place_beyond_an_epoch_is_refused(tmp_path):
    batcher = UnpaddedBatcher(stored(some_pairs(), tmp_path / "store"), batch_tokens=128, seed=3)
    with pytest.raises(SaccadeError, match="batch 99 of epoch 0: this epoch has"):
        next(batcher.stream(Position(0, 99)))


def test_both_directions_are_read_alike(tmp_path):
    pairs = some_pairs(30)
    store = BothWays(stored(pairs, tmp_path / "store"))
    batcher = UnpaddedBatcher(store, batch_tokens=128, seed=1)
    held = [pair for _, batch in islice(batcher.stream(), batcher.batches_in(0)) for pair in sentences_of(batch)]
    one_way = [(tuple(source), tuple(target)) for source, target in pairs]
    assert sorted(held) == sorted(one_way + [(target, source) for source, target in one_way])


def test_cuts_leave_no_room_for_the_next_pair():
    lengths = np.array([[3, 3, 9, 1, 5], [1, 8, 2, 2, 2]])
    assert cut(lengths, (10, 10)).tolist() == [0, 2, 4, 5]


def test_a_pair_that_fits_in_no_batch_is_not_cut_for_ever():
    with pytest.raises(ValueError, match=r"a pair of 30 \+ 2 tokens does not fit in 10 \+ 10 rows"):
        cut(np.array([[3, 30, 9], [1, 2, 2]]), (10, 10))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(side, side), min_size=1, max_size=8))
def test_spans_are_the_masks_of_padded_batches(pairs):
    _, batch = both(pairs)
    target, source = batch.target, batch.source
    own = target[3].unsqueeze(1) == target[3].unsqueeze(0)
    there = (target[4] > 0).unsqueeze(1) & (target[4] > 0).unsqueeze(0)
    within = own & there
    T = target.size(1)
    assert torch.equal(batch.within_target.mask(), within & torch.ones(T, T, dtype=torch.bool).tril())
    across = (target[5].unsqueeze(1) == source[2].unsqueeze(0)) & (target[4] > 0).unsqueeze(1) & (source[3] > 0)
    assert torch.equal(batch.across.mask(), across)
    for spans in (batch.within_source, batch.within_target, batch.across):
        first, end = spans.of_keys.unsqueeze(2)
        queries = torch.arange(spans.of_queries.size(1))
        assert torch.equal(spans.mask(), ((queries >= first) & (queries < end)).T)


@pytest.mark.parametrize("name", READERS)
def test_padding_never_mattered(name):
    model = make(name)
    padded, unpadded = both(some_pairs())
    expected = model(padded.source, padded.source_mask, padded.inputs).hidden[padded.gold != PAD]
    for times in (1, 3):
        found = hidden_of(model, unpadded.repeated(times)).unflatten(0, (times, -1))
        for one in found:
            torch.testing.assert_close(one[unpadded.gold != PAD], expected)


def test_relative_biases_keep_their_padding():
    kept = {name for name in MODELS if name.startswith("transformer")} - set(READERS)
    assert kept == {name for name in kept if any(word in name for word in ("shaw", "t5", "alibi", "decoder-only"))}
    assert not reads_unpadded(make("convs2s"))


OBJECTIVES = {
    "cross-entropy": {"r_drop": 0.0},
    "r-drop": {"r_drop": 5.0},
    "simcut": {"simcut": 3.0, "cutoff": 0.0},
    "all": {"r_drop": 2.0, "simcut": 1.5, "simcut_one_sided": True, "cutoff": 0.0, "cutoff_weight": 0.3},
}


@pytest.mark.parametrize("asked", OBJECTIVES.values(), ids=OBJECTIVES)
def test_losses_and_gradients_are_those_of_padded_batches(asked):
    padded, unpadded = both(some_pairs())
    training, model = TrainingConfig(**asked), make("transformer pre-norm")
    expected = make_objective(model, training)(padded)
    expected.total.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    found = Unpadded(model, training)(unpadded)
    assert found.tokens == expected.tokens
    torch.testing.assert_close(found.total, expected.total)
    torch.testing.assert_close(found.nll, expected.nll)
    found.total.backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_words_that_are_cut_off_are_those_of_the_second_reading_alone():
    _, unpadded = both(some_pairs())
    model = learning("transformer pre-norm")
    torch.manual_seed(0)
    cut_off = Unpadded(model, TrainingConfig(simcut=3.0, cutoff=0.4))(unpadded)
    plain = Unpadded(model, TrainingConfig(r_drop=0.0))(unpadded)
    torch.testing.assert_close(cut_off.nll, plain.nll)
    assert cut_off.total > plain.total


def steps_by_hand(model, training, batches, rate):
    """Accumulated gradients, clipped, and AdamW: what `CapturedSteps.take` stands for."""
    optimizer = make_optimizer(model, training)
    set_learning_rate(optimizer, rate)
    losses = []
    for taken in batches:
        tokens = sum(batch.target_tokens for batch in taken)
        found = [make_objective(model, training)(batch) for batch in taken]
        (sum(loss.total for loss in found) / tokens).backward()
        norm = clip_gradients(model.parameters(), training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((sum(loss.nll for loss in found) / tokens, norm))
    return losses


@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_steps_learn_what_plain_steps_learn(accumulate):
    training = TrainingConfig(r_drop=3.0, clip_norm=0.5, weight_decay=0.1)
    pairs = [[both(some_pairs(seed=10 * step + i)) for i in range(accumulate)] for step in range(4)]
    plain = learning("transformer post-norm")
    learner = copy.deepcopy(plain)
    expected = steps_by_hand(plain, training, [[padded for padded, _ in step] for step in pairs], 0.01)
    steps = CapturedSteps(learner, training, make_optimizer(learner, training), Display(quiet=True))
    for step, (nll, norm) in zip(pairs, expected, strict=True):
        batches = [unpadded for _, unpadded in step]
        found = steps.take(batches, sum(batch.target_tokens for batch in batches), 0.01)
        torch.testing.assert_close(found[0], nll.detach())
        torch.testing.assert_close(found[1], norm)
    for own, other in zip(learner.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_trying_a_capture_leaves_no_gradients_behind(monkeypatch):
    """On a GPU what is captured is done a few times before."""
    whole = CapturedSteps._captured

    def tried(self, batch, first):
        capture = whole(self, batch, first)
        capture.replay()
        return capture

    training, batches = TrainingConfig(r_drop=0.0), [both(some_pairs(seed=i))[1] for i in range(3)]
    norms = []
    for way in (whole, tried):
        monkeypatch.setattr(CapturedSteps, "_captured", way)
        model = learning("transformer pre-norm")
        steps = CapturedSteps(model, training, make_optimizer(model, training), Display(quiet=True))
        norms.append(steps.take(batches, sum(batch.target_tokens for batch in batches), 0.01)[1])
    assert torch.equal(*norms)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_step_is_captured_while_the_next_batches_are_pinned():
    x, over = torch.ones(8, device="cuda"), threading.Event()

    def work():
        x.mul_(2)
        time.sleep(0.3)

    def pin():
        kept = []
        while not over.is_set() and len(kept) < 100:
            kept.append(torch.ones(1 << 20).pin_memory())
            time.sleep(0.02)

    warm(work)
    pinning = threading.Thread(target=pin)
    pinning.start()
    try:
        replay = captured(work, torch.cuda.graph_pool_handle())
    finally:
        over.set()
        pinning.join()
    x.fill_(1)
    replay()
    assert x.tolist() == [2.0] * 8


def test_the_twelfth_model_of_a_process_is_compiled_like_the_first(monkeypatch):
    made = []
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=lambda graph, _: made.append(graph) or graph))
    pairs = some_pairs()
    counts = []
    for number in range(12):
        batch = collate_unpadded(pairs, np.arange(len(pairs)), (96 + number, 128), (10, 10))
        model = learning("transformer pre-norm")
        Unpadded(model, TrainingConfig(r_drop=0.0), Compiled())(batch)
        counts.append(len(made))
        made.clear()
    assert counts[0] > 0
    assert counts == [counts[0]] * 12


def test_a_capture_may_show_that_it_lasts_below_the_bar_of_the_run():
    display = Display(console=Console(file=io.StringIO(), force_terminal=True))
    with display.training(10, 0), display.task("compiling and capturing a step"):
        pass
    assert "compiling and capturing a step" in display.console.file.getvalue()


def test_a_run_that_was_stopped_ends_with_the_very_weights_of_the_other(tmp_path):
    store = stored(some_pairs(60), tmp_path / "store")
    whole = trained(tmp_path / "whole", store, 12)
    trained(tmp_path / "stopped", store, 8)
    for own, other in zip(trained(tmp_path / "stopped", store, 12), whole, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("stops", [(5,), (1, 2, 3, 4, 5)], ids=["at once", "step by step"])
def test_as_many_steps_train_both_directions_as_are_asked_for(tmp_path, monkeypatch, stops):
    store = stored([([5] * 3, [6] * 9), *some_pairs(40)], tmp_path / "store")
    both_ways, one_way = (UnpaddedBatcher(each, batch_tokens=128, seed=1) for each in (BothWays(store), store))
    taken = []
    take = CapturedSteps.take
    monkeypatch.setattr(
        CapturedSteps, "take", lambda self, batches, *rest: taken.append(batches[0]) or take(self, batches, *rest)
    )
    (tmp_path / "run").mkdir()
    for stop in stops:
        training = TrainingConfig(
            max_steps=stop, learning_rate=0.01, warmup_steps=2, validate_every=9, batch_tokens=128,
            accumulate=2, tensorboard=False, checkpoint_every=9, bidirectional_steps=3,
        )  # fmt: skip
        validate = partial(Validation, 1.0, None)
        arguments = training, make("transformer pre-norm"), one_way, validate, tmp_path / "run", Display(quiet=True)
        trainer = Trainer(*arguments, both_ways)
        trainer.restore()
        trainer.fit()
    backwards = [bool((batch.indices >= len(store)).any()) for batch in taken]
    assert backwards == [True, True, True, False, False]


def test_a_step_with_infinite_gradients_changes_nothing():
    training = TrainingConfig(r_drop=0.0)
    model = learning("transformer pre-norm")
    steps = CapturedSteps(model, training, make_optimizer(model, training), Display(quiet=True))
    _, batch = both(some_pairs())
    steps.take([batch], batch.target_tokens, 0.01)
    before = [parameter.clone() for parameter in model.parameters()]
    with torch.no_grad():
        steps.copies[0].fill_(float("inf"))
    _, norm = steps.take([batch], batch.target_tokens, 0.01)
    assert not torch.isfinite(norm)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_what_cannot_be_had_is_refused_by_name(tmp_path):
    model, store = make("transformer pre-norm"), stored(some_pairs(), tmp_path / "store")
    asked = Config.load(None, ["training.unpadded=true", "training.batch_tokens=128"])
    refused = r"training\.unpadded=true: steps are captured on an NVIDIA GPU, .* is cpu; leave it out .* with --from"
    with pytest.raises(SaccadeError, match=refused):
        choose_padding(asked, model, store, torch.device("cpu"), World())
    left_open = Config.load(None, ["training.batch_tokens=128"])
    chosen, said = choose_padding(left_open, model, store, torch.device("cpu"), World())
    assert chosen.training.unpadded is False
    assert said == []


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("training.subword_dropout=0.1", "training.subword_dropout is for padded batches"),
        ("training.recompute=true", "training.recompute is for padded batches"),
        ("model.heads=2", "heads are 8 wide, and the kernels know 16, 32, 64, 128"),
        ("training.batch_tokens=4", "a sentence is longer than a whole batch"),
        ("training.batch_tokens=128", "without padding, steps captured"),
    ],
)
def test_a_gpu_is_told_why_batches_are_padded_or_not(tmp_path, setting, reason):
    """The device is only looked at by its type."""
    pairs = [([5] * 90, [6] * 90), *some_pairs()]
    store = stored(pairs, tmp_path / "store")
    config = Config.load(None, ["training.batch_tokens=128", setting])
    of_model = [setting] if setting.startswith("model.") else ["model.heads=1"]
    model = build_model(settings_of("transformer pre-norm", *of_model), SIZE, SIZE)
    chosen, said = choose_padding(config, model, store, torch.device("cuda"), World())
    assert chosen.training.unpadded is (setting == "training.batch_tokens=128")
    assert reason in said[0]


def test_a_gpu_without_units_for_bf16_trains_in_single_precision_and_padded(tmp_path, monkeypatch):
    """torch says of a GPU from before 2020 that it can do bf16, which it does at a crawl."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    store, model, device = stored(some_pairs(), tmp_path / "store"), make("transformer pre-norm"), torch.device("cuda")
    for capability, precision in (((7, 5), "fp32"), ((8, 0), "bf16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        config, _ = choose_model(Config(), len(store), True, device)
        config, _ = choose_training(config, store, device)
        assert config.training.precision == precision
        _, said = choose_padding(config, model, store, device, World())
        assert ("older than what triton is made for" in said[0]) is (precision == "fp32")


def test_a_pair_that_fits_in_no_batch_is_found_before(tmp_path):
    store = stored([([5] * 200, [6]), ([5], [6])], tmp_path / "store")
    assert not fits(store, 128)
    assert fits(store, 256)


def test_the_log_says_how_long_a_run_waited_for_its_batches(tmp_path, monkeypatch):
    stream = UnpaddedBatcher.stream

    def slow(self, *start):
        for each in stream(self, *start):
            time.sleep(0.05)
            yield each

    monkeypatch.setattr(UnpaddedBatcher, "stream", slow)
    trained(tmp_path / "run", stored(some_pairs(60), tmp_path / "store"), 4)
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    shares = [row["waiting"] for row in rows if "waiting" in row]
    assert len(shares) == 2
    assert 0 < shares[0] < 1  # the first batch at least is made while the step waits
    assert 0 <= shares[1] < 1
