"""Every model learns copy and reverse on the CPU in seconds."""

from collections.abc import Callable

import pytest
import torch
from models_under_test import CLASSIFIERS, MODELS, settings_of

from saccade.attention.scores import SCORES
from saccade.config import TrainingConfig
from saccade.data.batching import Batch, collate
from saccade.generation.loop import generate
from saccade.generation.search import Greedy
from saccade.models.build import build_model
from saccade.training.objectives import CrossEntropy
from saccade.training.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate

ROWS, LONGEST = 60, 5
TASKS: dict[str, Callable[[list[int]], list[int]]] = {"copy": list, "reverse": lambda s: s[::-1], "sort": sorted}
# By the start of its name: settings that make the tiny model of the suite large enough, a peak learning rate, and the
# most steps it is given. Nearly all have learned it long before.
ROOM = {
    "transformer post": (["model.width=32", "model.feed_forward=64"], 3e-3, 600),
    # Where only self-attention knows of order, cross-attention must be told through it.
    "transformer t5": (["model.width=32", "model.feed_forward=64"], 5e-3, 800),
    "transformer alibi": (["model.width=32", "model.feed_forward=64"], 5e-3, 800),
    # One stack must learn to find the source before it can learn to write.
    "transformer causal decoder-only": (["model.width=32", "model.feed_forward=64"], 5e-3, 900),
    "transformer prefix decoder-only, learned": (["model.width=32", "model.feed_forward=64"], 5e-3, 900),
    "transformer": (["model.width=32", "model.feed_forward=64"], 5e-3, 450),
    # It loops over time on both sides, but needs fewer steps.
    "rnn lstmn": (["model.embedding=32", "model.width=64"], 1e-2, 350),
    "lm": (["model.embedding=32", "model.width=96"], 1e-2, 600),
    "rnn": (["model.embedding=32", "model.width=64"], 1e-2, 550),
    "convs2s": (["model.embedding=32", "model.width=32"], 5e-3, 400),
    # A stack on a stack must carry the last word to the first place: that wants a wider reach and more patience.
    "bytenet": (
        ["model.embedding=64", "model.encoder_layers=6", "model.decoder_layers=6", "model.dilation_cycle=3"],
        3e-3,
        800,
    ),
}


def learn(name: str, task: str, *settings: str) -> float:
    """Train on random digits; the share of unseen sequences that the model then gets right."""
    bigger, peak, steps = next(room for start, room in ROOM.items() if name.startswith(start))
    torch.manual_seed(1)
    model = build_model(settings_of(name, *bigger, *settings, "model.dropout=0.0"), 10, 10)
    optimizer = make_optimizer(model, TrainingConfig())
    objective = CrossEntropy(model, 0.0)
    generator = torch.Generator().manual_seed(1)

    def batch(lengths: list[int]) -> Batch:
        source = [torch.randint(4, 10, (length,), generator=generator).tolist() for length in lengths]
        return collate([(s, TASKS[task](s)) for s in source], range(len(source)))

    def share_right(rows: int) -> float:
        """Of sequences that it never saw, the longest there are."""
        model.eval()
        unseen = batch([LONGEST] * rows)
        found = generate(model, unseen.source, unseen.source_mask, Greedy(), torch.full((rows,), LONGEST + 3))
        model.train()
        gold = [row[: row.index(2)] for row in unseen.gold.tolist()]
        return sum(f[0].tokens == g for f, g in zip(found, gold, strict=True)) / rows

    for step in range(1, steps + 1):
        set_learning_rate(optimizer, learning_rate(step, schedule="cosine", peak=peak, warmup=30, total=steps))
        loss = objective(batch([1 + row % LONGEST for row in range(ROWS)]))
        (loss.total / loss.tokens).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0 and loss.total < 0.05 * loss.tokens and share_right(200) >= 0.98:
            break
    return share_right(200)


@pytest.mark.parametrize("task", ["copy", "reverse"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in CLASSIFIERS])
def test_every_model_learns_copy_and_reverse(name, task):
    assert learn(name, task) > 0.9


# Bilinear and additive scores, and the window local-p, are among the models above.
@pytest.mark.parametrize("task", ["copy", "reverse"])
@pytest.mark.parametrize(
    "part",
    [
        *(f"model.score={name}" for name in SCORES if name not in ("bilinear", "additive")),
        "model.window=local-m",
    ],
)
def test_every_score_and_window_learns_copy_and_reverse(part, task):
    assert learn("rnn luong", task, part) > 0.9


@pytest.mark.parametrize("task", ["copy", "reverse"])
@pytest.mark.parametrize("block", ["model.activation=gelu", "model.activation=reglu", "model.normalisation=rms"])
def test_every_block_that_no_model_above_has_alone_learns_copy_and_reverse(block, task):
    assert learn("transformer pre-norm", task, block) > 0.9


def test_without_positions_a_transformer_learns_what_does_not_depend_on_order():
    """Its encoder sees a bag of digits: it cannot copy them, but sort; the causal decoder can tell how far it is."""
    assert learn("transformer pre-norm", "sort", "model.positions=none") > 0.9


@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_without_residuals_a_shallow_transformer_learns_copy_and_reverse(task):
    """One layer a side: with two, what a layer does not add to its input but puts in its place is lost at this size."""
    shallow = ["model.encoder_layers=1", "model.decoder_layers=1"]
    assert learn("transformer post-norm", task, "model.residual=false", *shallow) > 0.9
