"""What is chosen for the user, and what is said before a run starts."""

import copy

import pytest
import torch

from saccade.config import Config
from saccade.data.batching import Batcher
from saccade.data.store import Store, StoreWriter
from saccade.models.build import build_model
from saccade.planning import choose_model, choose_training, estimate, spell_time
from saccade.training.checkpoint import weights_of

CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path):
    with StoreWriter(tmp_path / "store", source_vocabulary=50, target_vocabulary=50) as writer:
        writer.extend([([5 + i % 40] * (3 + i % 9), [6 + i % 40] * (2 + i % 11)) for i in range(600)])
    return Store(tmp_path / "store")


def test_larger_corpora_get_larger_models_and_weaker_dropout():
    widths, dropouts = [], []
    for pairs in (5_000, 30_000, 200_000, 2_000_000):
        config, _ = choose_model(Config(), pairs, True, torch.device("meta"))
        widths.append(config.model.width)
        dropouts.append(config.model.dropout)
    assert widths == sorted(widths)
    assert dropouts == sorted(dropouts, reverse=True)
    assert widths[0] < widths[-1]
    assert dropouts[0] > dropouts[-1]


def test_what_is_given_is_never_changed(store):
    given = [
        "model.width=48",
        "model.heads=3",
        "model.dropout=0.05",
        "training.max_steps=7",
        "training.batch_tokens=99",
    ]
    config, _ = choose_model(Config.load(None, given), 1000, True, CPU)
    config, _ = choose_training(config, store, CPU)
    assert (config.model.width, config.model.heads, config.model.dropout) == (48, 3, 0.05)
    assert (config.training.max_steps, config.training.batch_tokens) == (7, 99)


def test_nothing_is_left_open_and_choices_are_explained(store):
    config, reasons = choose_model(Config(), len(store), True, CPU)
    config, more = choose_training(config, store, CPU)
    open_settings = {
        name
        for section in (config.model, config.training)
        for name, value in section.model_dump().items()
        if value is None
    }
    assert open_settings <= {"max_minutes", "tensorboard"}
    said = "\n".join(reasons + more)
    for word in ("model: transformer tiny", "600 pairs", "dropout", "steps: at most", "learning rate"):
        assert word in said


def test_an_estimate_leaves_model_and_generator_as_they_were(store):
    config, _ = choose_model(Config.load(None, ["model.width=16", "model.heads=2"]), len(store), True, CPU)
    config, _ = choose_training(config, store, CPU)
    model = build_model(config, 50, 50)
    before, generator = copy.deepcopy(weights_of(model)), torch.get_rng_state()
    found = estimate(config, model, Batcher(store, batch_tokens=256, seed=1), CPU)
    assert torch.equal(torch.get_rng_state(), generator)
    for name, weight in weights_of(model).items():
        assert torch.equal(weight, before[name])
    assert found.tokens_per_second > 0
    assert found.seconds > 0
    weights = sum(4 * p.numel() for p in model.parameters())
    assert found.memory > 4 * weights, "weights, gradients, two moments, and activations on top"


def test_a_run_that_may_not_fit_is_warned_of():
    from saccade.planning import Estimate

    tight = Estimate(1000.0, 60.0, memory=95, available=100)
    roomy = Estimate(1000.0, 60.0, memory=50, available=100)
    assert "training.batch_tokens" in tight.lines()[-1]
    assert len(roomy.lines()) == 1


@pytest.mark.parametrize(("seconds", "said"), [(5, "5 seconds"), (600, "10 minutes"), (7200, "2.0 hours")])
def test_times_are_said_as_people_say_them(seconds, said):
    assert spell_time(seconds) == said
