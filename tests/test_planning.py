"""What is chosen for the user, and what is said before a run starts."""

import copy

import numpy as np
import pytest
import torch

from saccade.config import Config
from saccade.data.batching import Batcher
from saccade.data.store import Store, StoreWriter
from saccade.data.vocabulary import vocabulary_for
from saccade.display import spell_time
from saccade.models.build import build_model
from saccade.planning import choose_model, choose_training, estimate
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


SIZES = (5_000, 30_000, 200_000, 2_000_000)
GPU = torch.device("meta")  # any device that is not a CPU


class Pairs:
    """A store of so many pairs of twenty pieces, of which nothing but lengths is asked."""

    def __init__(self, pairs: int) -> None:
        self.source_lengths = self.target_lengths = np.full(pairs, 20, np.int32)
        self.tokens = (20 * pairs, 20 * pairs)

    def __len__(self) -> int:
        return len(self.source_lengths)


def planned(pairs: int, device: torch.device, *given: str) -> tuple[Config, str]:
    config, reasons = choose_model(Config.load(None, list(given)), pairs, True, device)
    config, more = choose_training(config, Pairs(pairs), device)
    return config, "\n".join(reasons + more)


@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
def test_what_is_chosen_moves_one_way_with_the_number_of_pairs(device):
    plans = [planned(pairs, device)[0] for pairs in SIZES]

    def rising(values):
        values = list(values)
        return values == sorted(values)

    assert rising(plan.model.width for plan in plans)
    assert rising(plan.model.encoder_layers for plan in plans)
    assert rising(plan.training.batch_tokens for plan in plans)
    assert rising(plan.training.max_steps for plan in plans)
    assert rising(vocabulary_for(pairs) for pairs in SIZES)
    assert rising(-plan.model.dropout for plan in plans)
    assert rising(-plan.training.r_drop for plan in plans)
    # Many epochs of few pairs, few of many.
    tokens = [plan.training.max_steps * plan.training.batch_tokens for plan in plans]
    assert rising(pairs / seen for pairs, seen in zip(SIZES, tokens, strict=True))


def test_few_pairs_get_what_few_pairs_want():
    """5,000: narrow and shallow, a small vocabulary. 30,000: what Multi30k was found to want (docs/lab-log.md)."""
    five, thirty, two_hundred, millions = (planned(pairs, GPU)[0] for pairs in SIZES)
    assert (five.model.width, five.model.encoder_layers, five.model.dropout) == (128, 2, 0.3)
    assert vocabulary_for(5_000) == 2_000
    assert (thirty.model.width, thirty.model.dropout, thirty.training.r_drop) == (256, 0.3, 5.0)
    assert thirty.training.batch_tokens == 8192
    assert 4_000 <= thirty.training.max_steps <= 9_000
    assert (two_hundred.model.width, two_hundred.model.dropout, two_hundred.training.r_drop) == (512, 0.3, 5.0)
    assert (millions.model.width, millions.model.dropout, millions.training.r_drop) == (512, 0.1, 0.0)


def test_the_rate_of_a_narrow_model_is_the_one_that_was_measured():
    narrow = planned(30_000, GPU, "model.width=128")[0]
    assert narrow.training.learning_rate == pytest.approx(4e-3, rel=0.05)
    rates = [planned(30_000, GPU, f"model.width={width}")[0].training.learning_rate for width in (128, 256, 512, 1024)]
    assert rates == sorted(rates, reverse=True)
    assert rates[2] == pytest.approx(7e-4)
    small_batch = planned(30_000, GPU, "model.width=128", "training.batch_tokens=2048")[0]
    assert small_batch.training.learning_rate == pytest.approx(2e-3, rel=0.05)


@pytest.mark.parametrize(
    ("pairs", "device", "given", "weight", "why"),
    [
        (30_000, GPU, [], 5.0, "R-Drop: α 5: each batch is read twice (30,000 pairs are few)"),
        (30_000, CPU, [], 0.0, "R-Drop: off (a CPU would take twice as long; training.r_drop=5 turns it on)"),
        (2_000_000, GPU, [], 0.0, "R-Drop: off (2,000,000 pairs are enough without"),
        (30_000, GPU, ["training.simcut=3"], 0.0, "R-Drop: off (SimCut draws predictions together already)"),
        (30_000, CPU, ["training.r_drop=2"], 2.0, ""),
    ],
)
def test_r_drop_is_chosen_where_it_pays_and_says_why(pairs, device, given, weight, why):
    config, said = planned(pairs, device, *given)
    assert config.training.r_drop == weight
    assert why in said
    assert ("R-Drop" in said) == bool(why)


def test_both_directions_come_on_top_of_the_steps_that_are_chosen(store):
    plain, _ = choose_training(choose_model(Config(), 600, True, CPU)[0], store, CPU)
    both = Config.load(None, ["training.bidirectional_steps=50"])
    config, _ = choose_training(choose_model(both, 600, True, CPU)[0], store, CPU)
    assert config.training.max_steps == plain.training.max_steps + 50


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


@pytest.mark.parametrize(("device", "where"), [(CPU, "a CPU"), (GPU, "a GPU")], ids=["cpu", "gpu"])
def test_the_kind_of_machine_is_said_in_words(device, where):
    _, (size, *_) = choose_model(Config(), 30_000, True, device)
    assert size.endswith(f"30,000 pairs on {where}")


def test_nothing_is_left_open_and_choices_are_explained(store):
    config, reasons = choose_model(Config(), len(store), True, CPU)
    config, more = choose_training(config, store, CPU)
    open_settings = {
        name
        for section in (config.model, config.training)
        for name, value in section.model_dump().items()
        if value is None
    }
    # What is left open there means: no limit, as installed, all heads, as the old folder has it, as the model allows.
    assert open_settings <= {"max_minutes", "tensorboard", "heads_left", "keep_moments", "unpadded"}
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


def test_threads_that_hold_each_other_up_are_warned_of():
    from saccade.planning import Estimate

    held_up = Estimate(1000.0, 60.0, memory=50, available=100, by_one_thread=1800.0)
    helped = Estimate(1000.0, 60.0, memory=50, available=100, by_one_thread=600.0)
    assert "1,800" in held_up.lines()[-1]
    assert "training.threads=1" in held_up.lines()[-1]
    assert len(helped.lines()) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_an_estimate_leaves_the_number_of_threads_as_it_was(store, threads):
    config, _ = choose_model(Config.load(None, ["model.width=16", "model.heads=2"]), len(store), True, CPU)
    config, _ = choose_training(config, store, CPU)
    model = build_model(config, 50, 50)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = estimate(config, model, Batcher(store, batch_tokens=256, seed=1), CPU)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert (found.by_one_thread > 0) == (threads > 1), "one thread is tried where there are more"


@pytest.mark.parametrize(
    ("seconds", "said"), [(5, "5 seconds"), (0.7, "1 second"), (600, "10 minutes"), (7200, "2.0 hours")]
)
def test_times_are_said_as_people_say_them(seconds, said):
    assert spell_time(seconds) == said
