"""Objectives: a batch in, a loss and its counts out."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.batching import Batch
from saccade.data.tokenizers import PAD
from saccade.models.protocol import EncoderDecoder


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
            output.hidden[real], self.model.output_matrix, batch.gold[real], self.label_smoothing
        )
        if output.penalty is not None:
            total = total + output.penalty.sum()
        return Loss(total, nll, batch.target_tokens)


def projected_cross_entropy(hidden: Tensor, weight: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed smoothed cross-entropy and summed NLL of softmax(hidden Wᵀ), the logits never stored whole.

    Equal to `cross_entropy(linear(hidden, weight), gold, label_smoothing=smoothing, reduction="sum")`, in blocks of
    rows: a block's logits become its gradient in place and are gone before the next block.
    """
    total, nll = _ProjectedCrossEntropy.apply(hidden, weight, gold, smoothing)
    return total, nll


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The gradient is known as soon as the loss is: ∂L/∂z = p / Σp - [(1 - ε) onehot(y) + ε/V], p = exp(z - max z).

    What is large is gone through as seldom as can be: the logits' exponentials are taken once and never divided (Σp
    divides the rows of `hidden`), and ε/V, the same everywhere, joins at the end.
    """

    ROWS = 512  # on a CPU: large enough for a full-speed product, small enough to stay in cache
    DEVICE_ROWS = 8192  # elsewhere: few enough launches

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
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
            normalisers += normaliser.sum()
            nll += (normaliser - of_gold).sum()
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
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_total, grad_weight * grad_total, None, None
