"""The old corpus in fine-tuning: what is replayed, and what is found to be forgotten."""

import json
import shutil
from collections import Counter
from itertools import islice

import numpy as np
import pytest

import saccade
from saccade.config import Config
from saccade.data import builtin
from saccade.data.replay import StoredPairs, choose_replay, old_validation
from saccade.errors import SaccadeError
from saccade.training.forgetting import loss_change


def settings(**data):
    return Config.of({"data": data})


def never():
    raise AssertionError("no files were named")


@pytest.mark.parametrize(("pairs", "share"), [(100, 0.2), (300, 0.5), (7, 0.01), (2000, 0.4)])
def test_the_replayed_pairs_are_the_share_that_was_asked_for(trained, pairs, share):
    replay = choose_replay(settings(replay_share=share), trained, pairs, never)
    drawn = list(replay)
    assert len(drawn) == len(replay)
    assert abs(len(drawn) / (len(drawn) + pairs) - share) < 1 / (pairs + 1)
    times = Counter(drawn)
    old = set(StoredPairs(trained / "resume" / "data" / "train"))
    assert times.keys() <= old
    assert max(times.values()) - min(times[pair] for pair in old) <= 1


def test_the_same_pairs_are_drawn_again_and_others_with_another_seed(trained):
    drawn = [list(choose_replay(settings(replay_share=0.2, seed=seed), trained, 100, never)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_the_old_folder_is_judged_by_is_never_replayed(trained):
    judged = old_validation(settings(), trained).pairs
    trained_on = list(StoredPairs(trained / "resume" / "data" / "train"))
    replay = choose_replay(settings(replay=["named"]), trained, 4000, lambda: [*judged, *trained_on, *judged])
    assert len(judged) == 20
    assert set(replay) == set(trained_on)


def test_without_files_and_without_a_store_there_is_nothing_to_replay(tmp_path, trained):
    for name in ("config.yaml", "model.safetensors"):
        shutil.copy(trained / name, tmp_path)
    with pytest.raises(SaccadeError, match=r"data\.replay_share=0\.2: .* no longer has the pairs.*data\.replay="):
        choose_replay(settings(replay_share=0.2), tmp_path, 100, never)
    assert old_validation(settings(), tmp_path) is None


def test_the_old_validation_files_may_be_named(tmp_path, trained):
    (tmp_path / "old.tsv").write_text("one\teins\ntwo\tzwei\n")
    named = old_validation(settings(old_valid=[str(tmp_path / "old.tsv")]), trained)
    assert named.pairs == [("one", "eins"), ("two", "zwei")]


def test_a_model_that_is_the_same_has_forgotten_nothing():
    change = loss_change([-3.0, -5.0, -4.0], [-3.0, -5.0, -4.0], [1, 2, 1])
    assert (change.before, change.after, change.p_value) == (3.0, 3.0, 1.0)
    assert not change.significant


def test_the_bootstrap_tells_a_real_change_from_a_lucky_one():
    noise = np.random.default_rng(1)
    before, pieces = -noise.gamma(9, size=400), noise.integers(1, 9, 400)
    shuffled = before + noise.normal(0, 1, 400)
    worse = loss_change(before, before + noise.normal(-0.5, 1, 400), pieces)
    same = loss_change(before, shuffled - (shuffled - before).mean(), pieces)
    assert worse.significant
    assert 0 < worse.low < worse.after - worse.before < worse.high
    assert not same.significant
    back = loss_change(before + 1, before, pieces)
    forth = loss_change(before, before + 1, pieces)
    assert back.after - back.before == pytest.approx(forth.before - forth.after)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Pairs of another kind than the trained folder has seen."""
    place = tmp_path_factory.mktemp("other")
    pairs = list(islice(builtin.pairs("en", "hu", seed=1, split="train"), 150))
    (place / "other.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return place / "other.tsv"


def test_training_on_other_pairs_forgets_and_a_replay_forgets_less(trained, tiny, corpus, tmp_path):
    steps = ("training.max_steps=30", "training.batch_tokens=512", "training.learning_rate=0.005")
    told = {}
    for share in (0, 0.5):
        folder = tmp_path / str(share)
        arguments = [corpus, *tiny, *steps, "training.validate_every=30", "training.average=1", "search.beam=1"]
        saccade.train(*arguments, f"data.replay_share={share}", out=folder, start_from=trained, quiet=True)
        told[share] = json.loads((folder / "record.json").read_text())["forgetting"]
    assert told[0]["worse"]
    assert told[0]["loss"]["before"] == told[0.5]["loss"]["before"]
    gained = [told[share]["loss"]["after"] - told[share]["loss"]["before"] for share in (0, 0.5)]
    assert gained[1] < 0.5 * gained[0]


@pytest.mark.parametrize("how", ["a stream", "a mixture"])
def test_what_helps_against_forgetting_is_something_the_run_can_do(how, trained, tiny, corpus, tmp_path, command):
    steps = ("training.max_steps=30", "training.learning_rate=0.005", "search.beam=1")
    two = f"[{{train: [{corpus}], tag: <a>}}, {{train: [{corpus}], tag: <b>}}]"
    data = (corpus, "data.stream=true") if how == "a stream" else (f"data.mixture={two}",)
    done = command("train", *data, *tiny, *steps, "--from", trained, "--out", tmp_path / "run")
    assert done.status == 0, done.err
    assert "something was forgotten: mix more of the old corpus in (as one of data.mixture), or lower" in done.err


def test_a_run_that_hardly_moves_has_forgotten_nothing_and_says_what_it_measured(
    trained, tiny, corpus, tmp_path, command
):
    done = command(
        *("train", corpus, *tiny, "training.max_steps=1", "training.learning_rate=1e-9", "search.beam=1"),
        *("--from", trained, "--out", tmp_path / "still"),
    )
    assert done.status == 0, done.err
    told = json.loads((tmp_path / "still" / "record.json").read_text())["forgetting"]
    assert not told["worse"]
    assert told["loss"]["after"] == pytest.approx(told["loss"]["before"], abs=1e-3)
    assert "forgetting: 20 pairs of the validation set of" in done.err
    assert "something was forgotten" not in done.err
    assert "Adam's moments: begun anew" in done.err


def test_without_an_old_validation_set_the_report_says_that_nothing_was_measured(
    trained, tiny, corpus, tmp_path, command
):
    base = tmp_path / "moved"
    base.mkdir()
    for path in trained.iterdir():
        if path.is_file():
            shutil.copy(path, base)
    done = command("train", corpus, *tiny, "training.max_steps=1", "--from", base, "--out", tmp_path / "run")
    assert done.status == 0, done.err
    assert "forgetting: not measured" in done.err
    assert "data.old_valid" in done.err
    assert "Adam's moments: begun anew" in done.err
    assert "forgetting" not in json.loads((tmp_path / "run" / "record.json").read_text())
