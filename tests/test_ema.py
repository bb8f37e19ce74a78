"""The moving average of the weights: its equation, its place in validation, and that a run with it can be stopped."""

import contextlib
import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from conftest import Start
from safetensors.torch import load_file
from test_resume import SHORT, Interrupting, assert_equal_tensors, assert_same_run, wait_for_steps

from saccade import SaccadeError, api
from saccade.config import Config
from saccade.display import Display
from saccade.folder import read_record
from saccade.training import checkpoint
from saccade.training.ema import MovingAverage
from saccade.training.run import train

KILLS = 4
EVERYTHING = ["training.ema=0.9", "training.simcut=1", "training.r_drop=2", "training.word_dropout=0.1"]
EVERYTHING += ["training.bidirectional_steps=6", "training.accumulate=2"]
LONG = ["training.max_steps=40", "training.checkpoint_every=3", "training.validate_every=10", "training.log_every=1"]
LONG += ["training.batch_tokens=256", "training.patience=0", "training.average=1", "training.bidirectional_steps=14"]


def test_it_is_the_weighted_sum_of_all_weights_so_far():
    model = torch.nn.Linear(3, 2)
    average = MovingAverage(model, 0.5)
    expected = model.weight.detach().double()
    for step in range(1, 30):
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight))
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    torch.testing.assert_close(average.means[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_half_precision_weights_have_a_mean_in_single():
    model = torch.nn.Linear(3, 2).bfloat16()
    average = MovingAverage(model, 0.9999)
    assert {mean.dtype for mean in average.means} == {torch.float32}
    before = average.means[0].clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    average.update(100_000)
    torch.testing.assert_close(average.means[0] - before, torch.full((2, 3), 1e-4), rtol=0.05, atol=0)


def test_while_it_is_in_place_the_model_has_the_mean_and_then_its_own_weights_to_the_bit():
    model = torch.nn.Linear(3, 2)
    average = MovingAverage(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    own = model.weight.detach().clone()
    with average.in_place():
        torch.testing.assert_close(model.weight.detach(), own - 1.0)
    assert torch.equal(model.weight, own)
    with contextlib.suppress(KeyboardInterrupt), average.in_place():
        raise KeyboardInterrupt
    assert torch.equal(model.weight, own)


def test_the_best_weights_are_the_mean_and_the_run_goes_on_with_its_own(tmp_path: Path, tiny: list[str]) -> None:
    settings = [*tiny, *SHORT, "training.learning_rate=0.01"]
    api.train(*settings, out=tmp_path / "without", quiet=True)
    api.train(*settings, "training.ema=0.9", out=tmp_path / "with", quiet=True)
    last, same = (checkpoint.latest(tmp_path / name / "resume") for name in ("without", "with"))
    assert last is not None
    assert same is not None
    assert_equal_tensors(load_file(last / "model.safetensors"), load_file(same / "model.safetensors"))
    kept = load_file(same / "optimizer.safetensors")
    means = {name.removeprefix("ema/"): tensor for name, tensor in kept.items() if name.startswith("ema/")}
    assert json.loads((same / "state.json").read_text())["best_step"] == 10
    assert_equal_tensors(load_file(tmp_path / "with" / "model.safetensors"), means)
    assert "moving average of decay 0.9" in read_record(tmp_path / "with")["chosen"]


@pytest.mark.parametrize("at", [3, 6, 8], ids=["in both directions", "at the change", "in one direction"])
def test_a_run_with_everything_interrupted_anywhere_goes_on_bit_for_bit(
    tmp_path: Path, tiny: list[str], everything: Path, at: int
) -> None:
    config = Config.load(None, [*tiny, *SHORT, *EVERYTHING])
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", display=Interrupting(at=at))
    train(config, tmp_path / "stopped", display=Display(quiet=True))
    assert_same_run(everything, tmp_path / "stopped")


def test_a_run_killed_again_and_again_ends_with_the_weights_and_the_mean_of_the_undisturbed_run(
    tmp_path: Path, tiny: list[str], start: Start
) -> None:
    settings = [*tiny, *EVERYTHING, *LONG]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = start(api.train, *settings, out=whole, quiet=True)
    chance = random.Random(3)
    hits = 0
    for _ in range(KILLS):
        run = start(api.train, *settings, out=killed, quiet=True)
        wait_for_steps(chance.randint(3, 7), killed, run)
        time.sleep(chance.uniform(0.0, 0.03))
        hits += run.is_alive()
        run.kill()
        run.join()
        assert run.exitcode in (0, -signal.SIGKILL), "the killed run could not go on"
    last = start(api.train, *settings, out=killed, quiet=True)
    for run in (last, undisturbed):
        run.join()
        assert run.exitcode == 0
    assert hits >= KILLS - 1
    assert_same_run(whole, killed)
    rows = [json.loads(line) for line in (killed / "log.jsonl").read_text().splitlines()]
    directions = [row["directions"] for row in rows if "directions" in row]
    assert directions == [2] * 14 + [1] * 26, "what was trained when"


def test_a_checkpoint_without_the_mean_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    place = checkpoint.save_checkpoint(tmp_path, 1, model, optimizer, {"step": 1})
    with pytest.raises(SaccadeError, match="ema/weight is not there"):
        checkpoint.load_checkpoint(place, model, optimizer, MovingAverage(model, 0.9).tensors())


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, tiny: list[str]) -> Path:
    """A short run with every objective, both directions first, and a moving average."""
    folder = tmp_path_factory.mktemp("everything") / "run"
    api.train(*tiny, *SHORT, *EVERYTHING, out=folder, quiet=True)
    return folder
