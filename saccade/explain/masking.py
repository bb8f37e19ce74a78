"""Masks: who may look at whom   (Vaswani et al. 2017, 3.2.3), beside what a stack of layers depends on."""

from typing import NamedTuple

import torch
from torch import Tensor

from saccade.attention.masks import causal, dependencies, prefix
from saccade.explain.leaking import BACK, FLOOR, LENGTH, LETTERS, Leak, stack, train_writer
from saccade.explain.records import Explanation, Table, Trial
from saccade.looking.plots import Curves, HeatMap, Plot, Series
from saccade.models.transformer import Shape

POSITIONS, LAYERS, PREFIX, RADIUS = 8, 2, 3, 1
ORDER = (3, 0, 6, 1, 7, 4, 2, 5)  # position 3 is written first, then 0, …
SHAPE = Shape(width=16, feed_forward=32, heads=4, key_heads=4, dropout=0.0)


def window(length: int, radius: int) -> Tensor:
    """Each position sees itself and `radius` neighbours on either side."""
    places = torch.arange(length)
    return (places - places.unsqueeze(1)).abs() <= radius


class Dependence(NamedTuple):
    """A mask, and what two layers under it do."""

    mask: Tensor  # (L, L)
    reach: Tensor  # (L, L): what the mask lets through in as many layers as there are
    gradient: Tensor  # (L, L): |∂output_i / ∂input_j|

    @property
    def leak(self) -> float:
        """The largest dependence on what cannot be reached."""
        return self.gradient[~self.reach].max().item() if not self.reach.all() else 0.0

    @property
    def weakest(self) -> float:
        """The smallest dependence on what can be."""
        return self.gradient[self.reach].min().item()


MASKS: dict[str, Tensor] = {
    "causal": causal(POSITIONS, POSITIONS),
    "prefix": prefix(torch.tensor([PREFIX]), POSITIONS, POSITIONS)[0, 0],
    "window": window(POSITIONS, RADIUS),
    "order": dependencies(permutation=torch.tensor(ORDER)),
}


def dependence(mask: Tensor) -> Dependence:
    """Differentiate every output of a stack of random layers by every input, in float64."""
    layers = stack(SHAPE, LAYERS).double().eval()

    def f(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x.unsqueeze(0), mask).squeeze(0)
        return x

    words = torch.randn(len(mask), SHAPE.width, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(f, words)  # (L, E, L, E)
    reach = torch.linalg.matrix_power(mask.double(), LAYERS) > 0
    return Dependence(mask, reach, jacobian.square().sum((1, 3)).sqrt())


def explain(trial: Trial) -> Explanation:
    """Four masks with what they let through, then a training with and without one."""
    found = {name: dependence(mask) for name, mask in MASKS.items()}
    masked, open_ = (train_writer(each, trial) for each in (True, False))
    wider = int(found["window"].reach.sum() - found["window"].mask.sum())
    paragraphs = (
        f"A mask says which positions each position may look at. For four of them: the mask, and the size of "
        f"∂output/∂input measured through {LAYERS} layers of self-attention and feed-forward with random weights. "
        f"Where nothing can pass, the dependence must be 0, not nearly 0: the largest is "
        f"{max(each.leak for each in found.values()):g}. Where something can, the smallest is "
        f"{min(each.weakest for each in found.values()):.2g}.",
        f"Causal, prefix and order masks hold for any depth: who is seen by what I see, I may see. A window is not "
        f"like that: after {LAYERS} layers, {wider} more pairs depend on each other than the mask names. This is how "
        "narrow windows see far.",
        f"And with no mask? A decoder of two layers learned to write texts of {LENGTH} letters. The first {BACK} are "
        f"random; each later one follows from the letter {BACK} before it by a secret code. Nobody can guess the first "
        f"{BACK}, so no honest loss is below {FLOOR:.2f} nats a token. After {trial.steps} steps the training loss is "
        f"{masked.loss:.2f} with the causal mask and {open_.loss:.2f} without it.",
        f"Given the whole text, the model without a mask names the next letter rightly in {open_.teacher_forced:.0%} "
        f"(with the mask: {masked.teacher_forced:.0%}): it stands there to be read. Given the first {BACK} letters and "
        f"left to write, {open_.written:.0%} of its letters are right, against {masked.written:.0%} with the mask "
        f"(guessing: {1 / LETTERS:.0%}). A loss below what the data allows is the sign of a leak.",
    )
    numbers = {
        "masks": {
            name: {
                "mask": each.mask.tolist(),
                "reach": each.reach.tolist(),
                "gradient": each.gradient.tolist(),
                "leak": each.leak,
                "weakest": each.weakest,
            }
            for name, each in found.items()
        },
        "floor": FLOOR,
        "with_mask": {**masked._asdict(), "loss": masked.loss},
        "without_mask": {**open_._asdict(), "loss": open_.loss},
    }
    tables = (_masks_table(found), _training_table(masked, open_, trial.steps))
    return Explanation("Who may look at whom", paragraphs, tables, _plot(found, masked, open_), numbers)


def _masks_table(found: dict[str, Dependence]) -> Table:
    rows = tuple(
        (name, str(int(each.mask.sum())), str(int(each.reach.sum())), f"{each.leak:g}", f"{each.weakest:.2g}")
        for name, each in found.items()
    )
    columns = ("mask", "pairs it allows", f"reached in {LAYERS} layers", "leak", "weakest dependence")
    return Table(f"of {POSITIONS**2} pairs of positions", columns, rows)


def _training_table(masked: Leak, open_: Leak, steps: int) -> Table:
    rows = tuple(
        (name, f"{each.loss:.2f}", f"{each.teacher_forced:.0%}", f"{each.written:.0%}", each.example)
        for name, each in (("causal", masked), ("none", open_))
    )
    rows += (("(truth)", f"{FLOOR:.2f}", "", "", masked.should_be),)
    columns = ("mask", "loss (nats)", "right if given", "right if written", "it writes")
    return Table(f"after {steps} steps", columns, rows)


def _plot(found: dict[str, Dependence], masked: Leak, open_: Leak) -> Plot:
    names = range(1, POSITIONS + 1)
    maps = []
    for name, each in found.items():
        strength = (each.gradient / each.gradient.max()).tolist()
        for title, values in ((f"{name}: mask", each.mask.double().tolist()), (f"{name}: measured", strength)):
            maps.append(HeatMap.of(title, ("output", "input"), values, names, names))
    steps = range(1, len(masked.losses) + 1)
    series = (
        Series.of("causal mask", steps, masked.losses),
        Series.of("no mask", steps, open_.losses),
        Series.of("lowest honest loss", (1, len(steps)), (FLOOR, FLOOR), theory=True),
    )
    return Plot("Who may look at whom", (*maps, Curves("training", "steps", "training loss (nats a token)", series)))
