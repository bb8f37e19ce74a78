"""Several heads look at several places at once; one head can only average them   (Vaswani et al. 2017, 3.2.2)."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.attention.multihead import Heads, SelfAttention, initialise
from saccade.attention.positions import Sinusoidal
from saccade.explain.fitting import fit
from saccade.explain.records import Explanation, Table, Trial
from saccade.looking.plots import Curves, HeatMap, Plot, Series
from saccade.models.build import count_parameters
from saccade.models.transformer import Embedding

WIDTH, WORDS, LENGTH, ROWS, PEAK = 64, 16, 12, 64, 1e-2
PLACES = (-1, 2)  # the word before, and the one after the next
JUDGED = slice(1, LENGTH - 2)  # positions that have both neighbours
OFFSETS = range(-4, 5)
LOOKS, UNSEEN = 20, 256  # how often accuracy is measured, on how many new sentences


class Neighbours(nn.Module):
    """One self-attention layer and a linear readout, which names two words for each position."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        table = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(table.weight, std=WIDTH**-0.5)
        self.embedding = Embedding(table, Sinusoidal(WIDTH), 0.0)
        self.attention = SelfAttention(Heads(WIDTH, heads, heads), 0.0)
        self.readout = nn.Linear(WIDTH, len(PLACES) * WORDS)
        initialise(self)

    def forward(self, words: Tensor) -> Tensor:
        """(B, L) → (B, L, 2, words)."""
        return self.readout(self.attention(self.embedding(words), None).context).unflatten(-1, (len(PLACES), WORDS))

    def weights(self, words: Tensor) -> Tensor:
        """(B, H, L, L)"""
        found = self.attention(self.embedding(words), None, need_weights=True).weights
        assert found is not None
        return found


class Learned(NamedTuple):
    """How a model learned, and where its heads look."""

    parameters: int
    steps: list[int]
    accuracy: list[float]  # both words right
    each: list[float]  # the share of each word at the end
    looks: Tensor  # (heads, offsets): mean weight


def explain(trial: Trial) -> Explanation:
    """A task that needs two places at once, by one head and by eight."""
    one, eight = (learn(heads, trial) for heads in (1, 8))
    before, after = PLACES
    paragraphs = (
        f"The task: for each word, name the word before it ({before:+d}) and the one after the next ({after:+d}). The "
        f"words are random, {WORDS} of them, so that nothing but looking helps. The model: one self-attention layer, "
        "then a linear readout.",
        f"One head of width {WIDTH} against eight of width {WIDTH // 8}: {one.parameters:,} and {eight.parameters:,} "
        f"parameters. After {trial.steps} steps, one head names both words rightly in {one.accuracy[-1]:.0%} of the "
        f"places, eight heads in {eight.accuracy[-1]:.0%} (guessing: {WORDS**-2:.1%}).",
        "A head gives one mixture of what it looks at. From a mixture of two words a linear readout can name the one "
        f"that weighs more, never the other: with one head, the word at {before:+d} is right in {one.each[0]:.0%} and "
        f"that at {after:+d} in {one.each[1]:.0%}; with eight, in {eight.each[0]:.0%} and {eight.each[1]:.0%}. The "
        "maps show the mean weight that each head gives to each distance.",
    )
    columns = ("heads", "parameters", "both right", f"word at {before:+d}", f"word at {after:+d}")
    rows = tuple(
        (str(number), f"{found.parameters:,}", *(f"{share:.1%}" for share in (found.accuracy[-1], *found.each)))
        for number, found in ((1, one), (8, eight))
    )
    table = Table(f"on {UNSEEN} unseen sentences, after {trial.steps} steps", columns, rows)
    numbers: dict[str, Any] = {"offsets": list(OFFSETS), "chance": WORDS**-2}
    for name, found in (("one", one), ("eight", eight)):
        numbers[name] = {**found._asdict(), "looks": found.looks.tolist()}
    return Explanation("One head against eight", paragraphs, (table,), _plot(one, eight), numbers)


def learn(heads: int, trial: Trial) -> Learned:
    """Train on random words; weights and data are drawn from the trial's seed, the same data for any heads."""
    torch.manual_seed(trial.seed)
    model, generator = Neighbours(heads), trial.generator()
    unseen = _words(UNSEEN, generator)
    marks = sorted({max(1, round(trial.steps * look / LOOKS)) for look in range(1, LOOKS + 1)})
    right: list[Tensor] = []

    def loss() -> Tensor:
        words = _words(ROWS, generator)
        return F.cross_entropy(model(words)[:, JUDGED].flatten(0, 2), _answers(words)[:, JUDGED].flatten())

    with trial.display.task(f"training {heads} {'head' if heads == 1 else 'heads'}", trial.steps) as progress:

        def after(step: int) -> None:
            progress(step)
            if step in marks:
                right.append(_right(model, unseen))

        fit(model, loss, steps=trial.steps, peak=PEAK, after=after)
    both = [found.all(-1).double().mean().item() for found in right]
    each = right[-1].double().mean((0, 1)).tolist()
    return Learned(count_parameters(model), marks, both, each, _looks(model, unseen))


def _words(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(WORDS, (rows, LENGTH), generator=generator)


def _answers(words: Tensor) -> Tensor:
    """(B, L, 2); positions near the ends wrap round and are not judged."""
    return torch.stack([words.roll(-place, dims=1) for place in PLACES], dim=-1)


@torch.no_grad()
def _right(model: Neighbours, words: Tensor) -> Tensor:
    return (model(words).argmax(-1) == _answers(words))[:, JUDGED]


@torch.no_grad()
def _looks(model: Neighbours, words: Tensor) -> Tensor:
    """The weight each head gives to each distance, over the positions from which that distance can be seen."""
    weights = model.weights(words).mean(0)  # (H, L, L)
    by_offset = [weights.diagonal(offset, dim1=-2, dim2=-1).mean(-1) for offset in OFFSETS]
    return torch.stack(by_offset, dim=-1)


def _plot(one: Learned, eight: Learned) -> Plot:
    series = (
        Series.of("one head of 64", one.steps, one.accuracy),
        Series.of("eight heads of 8", eight.steps, eight.accuracy),
    )
    maps = [
        HeatMap.of(
            title,
            ("head", "distance (words)"),
            found.looks.clamp(max=1.0),
            range(1, len(found.looks) + 1),
            [f"{offset:+d}" if offset else "0" for offset in OFFSETS],
            floor=0.1,
        )
        for title, found in (("one head", one), ("eight heads", eight))
    ]
    curves = Curves("both words right", "training steps", "accuracy (share of places)", series)
    return Plot("One head against eight of the same total width", (curves, *maps))
