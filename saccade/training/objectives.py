"""Objectives: a batch in, a loss and its counts out.

`make_objective` puts together what the settings ask for: label-smoothed cross-entropy, and beside it R-Drop, token
cutoff, SimCut and word dropout, each with or without the others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.config import TrainingConfig
from saccade.data.batching import Batch
from saccade.data.tokenizers import PAD, UNK
from saccade.devices import quick_products
from saccade.models.blocks import filled
from saccade.models.protocol import EncoderDecoder
from saccade.models.recompute import recompute_layers
from saccade.models.words import CUT, allow_cuts
from saccade.training.divergences import Pull, projected_divergences


class Loss(NamedTuple):
    """A loss summed over target tokens, and how many there were: divide at the end, never in between."""

    total: Tensor  # what is minimised
    nll: Tensor  # the negative log-likelihood, without smoothing
    tokens: int


class CrossEntropy(nn.Module):
    """Label-smoothed cross-entropy of the target given the source (Szegedy et al. 2016, 7).

    L = -Σ_t [(1 - ε) log p(y_t) + ε/V Σ_v log p(v)]

    Only positions that hold a target token reach the output matrix.

    An encoder in training may ask for a penalty P_b on each sentence (none is asked for in validation, and the NLL
    never holds it). The sum Σ_b P_b is added to the sum over tokens, and both are divided by the tokens of the whole
    step: a sentence's penalty stands beside that sentence's own cross-entropy, whatever shares its batch and however
    many batches make a step.
    """

    def __init__(self, model: EncoderDecoder, label_smoothing: float = 0.1) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> Loss:
        output = self.model(batch.source, batch.source_mask, batch.inputs)
        real = batch.gold != PAD
        total, nll = projected_cross_entropy(
            _as_products(output.hidden)[real], self.model.output_matrix, batch.gold[real], self.label_smoothing
        )
        if output.penalty is not None:
            total = total + output.penalty.sum()
        return Loss(total, nll, batch.target_tokens)


class Reading(NamedTuple):
    """One of the ways in which a batch is read."""

    cutoff: float  # the chance that a word is cut off
    share: float  # of its cross-entropy in the loss


class Consistency(nn.Module):
    """Cross-entropy of several readings of each pair, and their divergences: as `readings` puts them together.

    All readings are one batch, as many times as long; dropout differs from row to row, so it differs between them.
    The loss stays one a token, however many readings there are, and the NLL is that of the first.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        label_smoothing: float,
        readings: Sequence[Reading],
        pulls: Sequence[Pull] = (),
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.readings = tuple(readings)
        self.pulls = tuple(pulls)
        self.word_dropout = word_dropout
        allow_cuts(model)

    def forward(self, batch: Batch) -> Loss:
        k = len(self.readings)
        source, inputs = (
            torch.cat([self._read(tokens, reading) for reading in self.readings])
            for tokens in (batch.source, batch.inputs)
        )
        output = self.model(source, batch.source_mask.repeat(k, 1), inputs)
        real = batch.gold != PAD
        hidden = _as_products(output.hidden).unflatten(0, (k, -1))[:, real]  # (readings, N, E)
        shares = [reading.share for reading in self.readings]
        total, nll = projected_divergences(
            hidden, self.model.output_matrix, batch.gold[real], self.label_smoothing, shares, self.pulls
        )
        if output.penalty is not None:
            asked = output.penalty.unflatten(0, (k, -1)).sum(1)
            total = total + sum(share * penalty for share, penalty in zip(shares, asked, strict=True))
        return Loss(total, nll, batch.target_tokens)

    def _read(self, tokens: Tensor, reading: Reading) -> Tensor:
        if self.word_dropout:
            tokens = drop_words(tokens, self.word_dropout)
        return cut_off(tokens, reading.cutoff) if reading.cutoff else tokens


Objective = CrossEntropy | Consistency


def make_objective(model: EncoderDecoder, settings: TrainingConfig) -> Objective:
    """What the settings want minimised."""
    if settings.recompute:
        recompute_layers(model)
    readings, pulls = readings_of(settings)
    if len(readings) == 1 and not settings.word_dropout:
        return CrossEntropy(model, settings.label_smoothing)
    return Consistency(model, settings.label_smoothing, readings, pulls, settings.word_dropout)


def readings_of(settings: TrainingConfig) -> tuple[list[Reading], list[Pull]]:
    """How often a batch is read, in which ways, and which readings are drawn together.

    R-Drop (Liang et al. 2021, eq. 4), two readings that differ in dropout alone; half of the paper's, one loss a token:
        L = ½ (CE(P₁) + CE(P₂)) + α/4 (KL(P₁ ‖ P₂) + KL(P₂ ‖ P₁))
    Token cutoff (Shen et al. 2020, 3), a reading in which each word's embedding is zero with chance p_cut:
        L = CE(P) + γ CE(P_cut)
    SimCut (Gao et al. 2022, 3.1):
        L = CE(P) + α KL(P ‖ P_cut)
    Gradients go to both sides of the divergence, which the paper finds to matter (its "bidirectional backpropagation");
    `simcut_one_sided` stops them at P, as virtual adversarial training does (Sato et al. 2019).
    Together: the two readings of R-Drop, the first of which is also P, and the reading with words cut off.
    """
    readings, pulls = [Reading(0.0, 1.0)], []
    if settings.r_drop:
        readings = [Reading(0.0, 0.5), Reading(0.0, 0.5)]
        pulls = [Pull(0, 1, settings.r_drop / 4), Pull(1, 0, settings.r_drop / 4)]
    if settings.simcut or settings.cutoff_weight:
        readings.append(Reading(settings.cutoff, settings.cutoff_weight))
    if settings.simcut:
        pulls.append(Pull(0, len(readings) - 1, settings.simcut, settings.simcut_one_sided))
    return readings, pulls


def _as_products(hidden: Tensor) -> Tensor:
    """In the type that products are computed in: a norm that comes last leaves more than the output matrix reads."""
    kind = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else hidden


def cut_off(tokens: Tensor, chance: float) -> Tensor:
    """Token cutoff: each id becomes `CUT` with that chance, one by one."""
    return tokens.masked_fill(torch.rand(tokens.shape, device=tokens.device) < chance, CUT)


def drop_words(tokens: Tensor, chance: float) -> Tensor:
    """Word dropout: a word of a sentence becomes `CUT` with that chance, wherever it is in the sentence; ends and BOS
    stay   (Gal & Ghahramani 2016, 4.2; as in Sennrich et al. 2016, the others are not scaled up)."""
    first = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).byte().argmax(2)  # (B, T): where the word was met first
    dropped = (torch.rand(tokens.shape, device=tokens.device) < chance).gather(1, first)
    return tokens.masked_fill(dropped & (tokens > UNK), CUT)


def projected_cross_entropy(hidden: Tensor, weight: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed smoothed cross-entropy and summed NLL of softmax(hidden Wᵀ), the logits never stored whole.

    Equal to `cross_entropy(linear(hidden, weight), gold, label_smoothing=smoothing, reduction="sum")`, in blocks of
    rows: a block's logits become its gradient in place and are gone before the next block.
    """
    real = gold.numel()
    hidden, gold = filled(hidden, gold)
    with quick_products():
        total, nll = _ProjectedCrossEntropy.apply(hidden, weight, gold, smoothing, real)
    return total, nll


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The gradient is known as soon as the loss is: ∂L/∂z = p / Σp - [(1 - ε) onehot(y) + ε/V], p = exp(z - max z).

    What is large is gone through as seldom as can be: the logits' exponentials are taken once and never divided (Σp
    divides the rows of `hidden`), and ε/V, the same everywhere, joins at the end.
    """

    ROWS = 512  # on a CPU: large enough for a full-speed product, small enough to stay in cache
    DEVICE_ROWS = 8192  # elsewhere: few enough launches

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, gold: Tensor, smoothing: float, real: int
    ) -> tuple[Tensor, Tensor]:
        """`real`: rows that count; those behind them are zeros, and so are their gradients."""
        weight = weight.to(hidden.dtype)
        exact = torch.promote_types(hidden.dtype, torch.float32)
        learns = any(ctx.needs_input_grad[:2])
        normalisers, nll = hidden.new_zeros((), dtype=exact), hidden.new_zeros((), dtype=exact)
        grad_hidden = torch.empty_like(hidden) if learns else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if learns else None
        block = _ProjectedCrossEntropy.ROWS if hidden.device.type == "cpu" else _ProjectedCrossEntropy.DEVICE_ROWS
        for start in range(0, hidden.size(0), block):
            rows = slice(start, start + block)
            logits = (hidden[rows] @ weight.mT).to(exact)
            right = gold[rows].unsqueeze(1)
            of_gold, highest = logits.gather(1, right), logits.amax(1, keepdim=True)
            p = logits.sub_(highest).exp_()
            sums = p.sum(1, keepdim=True)
            normaliser = sums.log() + highest
            counted = max(0, real - start)
            normalisers += normaliser[:counted].sum()
            nll += (normaliser - of_gold)[:counted].sum()
            if grad_hidden is None or grad_weight is None:
                continue
            p.scatter_add_(1, right, (smoothing - 1) * sums)
            p, divided = p.to(hidden.dtype), (hidden[rows] / sums).to(hidden.dtype)
            torch.mm(p, weight, out=grad_hidden[rows]).div_(sums)
            if grad_weight.dtype == p.dtype:
                grad_weight.addmm_(p.mT, divided)
            else:
                grad_weight += p.mT @ divided
        total = (1 - smoothing) * nll
        if smoothing:
            mean_weight, all_hidden = weight.mean(0, dtype=exact), hidden.sum(0, dtype=exact)
            total += smoothing * (normalisers - mean_weight @ all_hidden)  # whose product is the sum of mean logits
            if grad_hidden is not None and grad_weight is not None:
                grad_hidden -= smoothing * mean_weight
                grad_weight -= smoothing / weight.size(0) * all_hidden
        if learns:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_total, grad_weight * grad_total, None, None, None
