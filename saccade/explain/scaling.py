"""Scaled dot products: softmax(q kᵀ / √d)   (Vaswani et al. 2017, 3.2.1 and its footnote 4)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.attention.core import softmax
from saccade.attention.scores import Dot, ScaledDot, Score
from saccade.explain.records import Explanation, Table, Trial
from saccade.looking.plots import Curves, Plot, Series

WIDTHS = tuple(2**power for power in range(2, 13))  # 4 … 4096
KEYS, QUERIES = 32, 1024
SCORES: dict[str, Score] = {"unscaled": Dot(), "scaled": ScaledDot()}
_AT_ONCE = 1 << 22  # numbers drawn at once: 16 MB

Measured = dict[str, dict[str, list[float]]]  # by score, by what was measured, one number a width


def explain(trial: Trial) -> Explanation:
    """Scores, weights and gradients over widths from 4 to 4,096, with and without the root."""
    measured = measure(trial)
    plain, scaled = measured["unscaled"], measured["scaled"]
    last = WIDTHS[-1]
    paragraphs = (
        f"A query and a key of d independent numbers with mean 0 and variance 1: q·k adds up d products of variance 1, "
        f"so its variance is d. Measured over {QUERIES * KEYS:,} dot products: {plain['variance'][0]:.2f} at d = "
        f"{WIDTHS[0]}, {plain['variance'][-1]:,.0f} at d = {last:,}.",
        f"Softmax over {KEYS} keys turns such scores into weights. The largest weight goes from "
        f"{plain['largest'][0]:.2f} to {plain['largest'][-1]:.2f} (mean), the entropy from {plain['entropy'][0]:.2f} "
        f"to {plain['entropy'][-1]:.2f} bits of {math.log2(KEYS):.0f} that are possible, and the gradient that comes "
        f"back through the softmax from {plain['gradient'][0]:.2g} to {plain['gradient'][-1]:.2g} (median): what is "
        "saturated does not learn.",
        f"Divided by √d the variance is {_span(scaled['variance'])} at every width from {WIDTHS[0]} to {last:,}, the "
        f"largest weight {_span(scaled['largest'])}, the entropy {_span(scaled['entropy'])} bits, the gradient "
        f"{_span(scaled['gradient'], 3)}.",
    )
    rows = tuple(
        (
            f"{width:,}",
            f"{plain['variance'][i]:,.4g}",
            f"{scaled['variance'][i]:.2f}",
            f"{plain['largest'][i]:.2f}",
            f"{scaled['largest'][i]:.2f}",
            f"{plain['entropy'][i]:.2f}",
            f"{scaled['entropy'][i]:.2f}",
            f"{plain['gradient'][i]:.2g}",
            f"{scaled['gradient'][i]:.2g}",
        )
        for i, width in enumerate(WIDTHS)
    )
    columns = ("d", "var q·k", "/√d", "largest", "/√d", "entropy", "/√d", "gradient", "/√d")
    table = Table(f"softmax over {KEYS} keys, of q·k and of q·k / √d", columns, rows)
    numbers = {"widths": list(WIDTHS), "keys": KEYS, "queries": QUERIES, **measured}
    return Explanation("Why divide by √d", paragraphs, (table,), _plot(measured), numbers)


def measure(trial: Trial) -> Measured:
    """Variance of the scores, mean largest weight, mean entropy (bits), median gradient norm."""
    generator = trial.generator()
    found: Measured = {name: {} for name in SCORES}
    with trial.display.task("measuring widths", len(WIDTHS)) as progress:
        for done, width in enumerate(WIDTHS, start=1):
            for name, scores in _draw(width, generator).items():
                for what, value in _saturation(scores, trial.generator()).items():
                    found[name].setdefault(what, []).append(value)
            progress(done)
    return found


def _draw(width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The same queries and keys under each score, (queries, keys)."""
    made: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    rows = max(1, min(QUERIES, _AT_ONCE // (width * (KEYS + 1))))
    for start in range(0, QUERIES, rows):
        drawn = torch.randn(min(rows, QUERIES - start), 1, KEYS + 1, width, generator=generator)
        for name, score in SCORES.items():
            made[name].append(score(drawn[:, :, :1], drawn[:, :, 1:])[:, 0, 0])
    return {name: torch.cat(parts).double() for name, parts in made.items()}


def _saturation(scores: Tensor, generator: torch.Generator) -> dict[str, float]:
    """`gradient`: the norm of what is left, after softmax's backward pass, of a random gradient of norm 1."""
    scores = scores.requires_grad_()
    weights = softmax(scores, None)
    coming = torch.randn(weights.shape, generator=generator, dtype=weights.dtype)
    (left,) = torch.autograd.grad(weights, scores, coming / coming.norm(dim=-1, keepdim=True))
    entropy = -torch.special.xlogy(weights, weights).sum(-1) / math.log(2)
    return {
        "variance": scores.var().item(),
        "largest": weights.amax(-1).mean().item(),
        "entropy": entropy.mean().item(),
        "gradient": left.norm(dim=-1).median().item(),
    }


def _plot(measured: Measured) -> Plot:
    def curves(what: str) -> list[Series]:
        labels = {"unscaled": "q·k", "scaled": "q·k / √d"}
        return [Series.of(labels[name], WIDTHS, values[what]) for name, values in measured.items()]

    x = "width d of query and key"
    theory = Series.of("theory: d", WIDTHS, WIDTHS, theory=True)
    return Plot(
        "Why divide by √d",
        (
            Curves("scores spread", x, "variance of the scores", (*curves("variance"), theory), log_x=True, log_y=True),
            Curves("softmax saturates", x, "entropy of the weights (bits)", tuple(curves("entropy")), log_x=True),
            Curves("gradients vanish", x, "gradient norm (median)", tuple(curves("gradient")), log_x=True, log_y=True),
        ),
    )


def _span(values: Sequence[float], digits: int = 2) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
