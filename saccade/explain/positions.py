"""Order: self-attention has none of its own   (Vaswani et al. 2017, 3.5)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.attention.multihead import Heads, SelfAttention, initialise
from saccade.attention.positions import Absent, Learned, Sinusoidal, sinusoid
from saccade.attention.relative import RELATIVE
from saccade.explain.records import Explanation, Table, Trial
from saccade.looking.plots import Curves, Plot, Series

WIDTH, HEADS, LENGTH, ORDERS = 64, 4, 12, 20
SCHEMES = ("none", "sinusoidal", "learned", "shaw", "t5", "alibi", "rotary")
STEPS_AHEAD, SEEN, TABLE = (1, 5, 20), 128, 512
REACH, PLACES = 60, (100, 400)


class Order(NamedTuple):
    """What shuffled words do to a layer's outputs."""

    change: float  # max |f(Px) - P f(x)|
    size: float  # max |f(x)|


def explain(trial: Trial) -> Explanation:
    """What a change of order does under each scheme, and what sinusoids have besides."""
    orders = {scheme: order_matters(scheme, trial) for scheme in SCHEMES}
    changes = {scheme: found.change for scheme, found in orders.items()}
    residuals = {steps: linear_residuals(steps, trial) for steps in STEPS_AHEAD}
    far = residuals[STEPS_AHEAD[-1]]
    broken = [changes[scheme] for scheme in SCHEMES[1:]]
    curves = dot_products(trial)
    first, second, _ = curves.values()
    apart = max(abs(a - b) for a, b in zip(first, second, strict=True))
    paragraphs = (
        f"Shuffle the words that self-attention reads and its outputs are shuffled in the same way, and are otherwise "
        f"what they were: f(Px) = P f(x). Saccade's layer without positions, in float64, over {ORDERS} random orders "
        f"of {LENGTH} words: the largest difference is {changes['none']:.1e}, which is rounding. To it a sentence is a "
        "bag of words.",
        f"Each scheme of positions breaks this, with weights as they are before any training: the differences "
        f"are {min(broken):.2g} to {max(broken):.2g}, where the outputs go up to "
        f"{max(found.size for found in orders.values()):.2g}.",
        f"Sinusoidal encodings have a further property: PE(t + k) = M_k PE(t), with one matrix M_k for all t, made of "
        f"a rotation for each frequency. With k = {STEPS_AHEAD[-1]}, the worst error of these rotations at positions "
        f"{SEEN} to {TABLE - 1} is {far['rotation']:.1e}. Fitted by least squares to positions 0 to {SEEN - 1}, "
        f"frequency by frequency, M_k errs there by {far['fitted']:.1e}. For a table of learned positions, "
        f"before training, the best whole matrix errs by {far['learned']:.2g}: there is no such M_k.",
        f"It follows that PE(t)·PE(t + k) depends on k alone: the curves from t = {PLACES[0]} and from t = "
        f"{PLACES[1]} differ by at most {apart:.1e}.",
    )
    tables = (
        Table(
            "how much a change of order changes, beyond the order",
            ("positions", "max |f(Px) - P f(x)|", "max |f(x)|"),
            tuple((scheme, f"{found.change:.2g}", f"{found.size:.2g}") for scheme, found in orders.items()),
        ),
        Table(
            f"worst error of PE(t + k) = M_k PE(t) for t in {SEEN} … {TABLE - 1}, none of which was fitted",
            ("k", "rotations (derived)", "fitted", "fitted, learned table"),
            tuple(
                (str(k), f"{found['rotation']:.1e}", f"{found['fitted']:.1e}", f"{found['learned']:.2g}")
                for k, found in residuals.items()
            ),
        ),
    )
    numbers = {
        "order_change": changes,
        "output_size": {scheme: found.size for scheme, found in orders.items()},
        "linear_residual": {str(k): found for k, found in residuals.items()},
        "distances": list(range(-REACH, REACH + 1)),
        "dot_products": curves,
        "dot_product_difference": apart,
    }
    return Explanation("What attention knows of order", paragraphs, tables, _plot(curves), numbers)


@torch.no_grad()
def order_matters(scheme: str, trial: Trial) -> Order:
    """f(Px) against P f(x) for a self-attention layer with that scheme, words and orders drawn at random."""
    torch.manual_seed(trial.seed)
    relative = RELATIVE[scheme](HEADS, WIDTH // HEADS, False) if scheme in RELATIVE else None
    layer = SelfAttention(Heads(WIDTH, HEADS, HEADS), 0.0, relative)
    initialise(layer)
    absolute = _absolute(scheme).double()
    layer = layer.double().eval()
    words = torch.randn(1, LENGTH, WIDTH, generator=trial.generator(), dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return layer(x + absolute(0, LENGTH), None).context

    straight, worst = f(words), 0.0
    for _ in range(ORDERS):
        order = torch.randperm(LENGTH)
        worst = max(worst, (f(words[:, order]) - straight[:, order]).abs().max().item())
    return Order(worst, straight.abs().max().item())


def _absolute(scheme: str) -> nn.Module:
    if scheme == "learned":
        return Learned(WIDTH, LENGTH)
    return Sinusoidal(WIDTH) if scheme == "sinusoidal" else Absent(WIDTH)


@torch.no_grad()
def linear_residuals(steps: int, trial: Trial) -> dict[str, float]:
    """Worst error of PE(t + steps) = M PE(t) over positions that M was not fitted to."""
    waves = sinusoid(torch.arange(TABLE + steps).double(), WIDTH)
    rows = torch.randn(TABLE + steps, WIDTH, generator=trial.generator(), dtype=torch.float64) * WIDTH**-0.5

    def error(table: Tensor, M: Tensor) -> float:
        return (table[SEEN:TABLE] @ M - table[SEEN + steps :]).abs().max().item()

    def fitted(table: Tensor) -> Tensor:
        return torch.linalg.lstsq(table[:SEEN], table[steps : SEEN + steps]).solution

    pairs = waves.split(2, dim=1)  # all at once the slow waves, alike over so few positions, could not be told apart
    return {
        "rotation": error(waves, rotations(steps)),
        "fitted": error(waves, torch.block_diag(*map(fitted, pairs))),
        "learned": error(rows, fitted(rows)),
    }


def rotations(steps: int) -> Tensor:
    """M with PE(t) M = PE(t + steps): each pair (sin, cos) is turned by steps · 10000^(-2i/E)."""
    sin, cos = sinusoid(torch.tensor([steps]).double(), WIDTH)[0].unflatten(0, (-1, 2)).unbind(-1)
    # sin(a + b) = sin a cos b + cos a sin b,  cos(a + b) = cos a cos b - sin a sin b
    return torch.block_diag(*torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], dim=1))


@torch.no_grad()
def dot_products(trial: Trial) -> dict[str, list[float]]:
    """PE(t)·PE(t + k) for k = -REACH … REACH, as a share of PE(t)·PE(t)."""
    waves = sinusoid(torch.arange(TABLE).double(), WIDTH)
    torch.manual_seed(trial.seed)
    table = Learned(WIDTH, TABLE).double().table
    found = {}
    for name, rows, place in [
        *((f"sinusoidal, from t = {place}", waves, place) for place in PLACES),
        (f"learned, untrained, from t = {PLACES[0]}", table, PLACES[0]),
    ]:
        near = rows[place - REACH : place + REACH + 1] @ rows[place]
        found[name] = (near / near[REACH]).tolist()
    return found


def _plot(curves: dict[str, list[float]]) -> Plot:
    distances = range(-REACH, REACH + 1)
    series = tuple(Series.of(name, distances, values) for name, values in curves.items())
    title = "How alike two positions are"
    return Plot(title, (Curves("dot products", "distance k (words)", "PE(t)·PE(t+k) / |PE(t)|²", series),))
