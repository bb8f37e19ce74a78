"""How far the readings of one batch are from the truth and from each other, the logits never stored whole.

A batch is read several times: with other dropout, or with words cut off. Each reading is a distribution over the
vocabulary at every target position, P_i = softmax(h_i Wᵀ); the loss is a weighted sum

    L = Σ_i c_i · CE(P_i, y) + Σ_(t,s) w_ts · KL(P_t ‖ P_s)

of label-smoothed cross-entropies and of divergences between readings. Every objective of `objectives` is of this form.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.devices import quick_products
from saccade.models.blocks import filled


class Pull(NamedTuple):
    """w · KL(P_teacher ‖ P_student): both are drawn together, or the student alone."""

    teacher: int
    student: int
    weight: float
    stopped: bool = False  # no gradient to the teacher


def projected_divergences(
    hidden: Tensor, weight: Tensor, gold: Tensor, smoothing: float, shares: Sequence[float], pulls: Sequence[Pull]
) -> tuple[Tensor, Tensor]:
    """The loss above, summed over positions, and the summed NLL of the first reading.

    `hidden` (readings, N, E), `weight` (V, E), `gold` (N,), `shares`: c_i of each reading.
    """
    real = gold.numel()
    hidden, gold = filled(hidden, gold)
    with quick_products():
        total, nll = _ProjectedDivergences.apply(hidden, weight, gold, smoothing, tuple(shares), tuple(pulls), real)
    return total, nll


class _ProjectedDivergences(torch.autograd.Function):
    """As for cross-entropy alone, gradients are known as soon as the loss is: a block of rows is read by all readings,
    its logits become gradients, and are gone before the next block. With z = h Wᵀ:

    ∂CE(P_i)/∂z_i = P_i - [(1 - ε) onehot(y) + ε/V]
    ∂KL(P_t ‖ P_s)/∂z_s = P_s - P_t
    ∂KL(P_t ‖ P_s)/∂z_t = P_t ∘ (log P_t - log P_s - KL(P_t ‖ P_s))
    """

    ROWS = 512  # on a CPU, as for cross-entropy
    DEVICE_ROWS = 4096  # elsewhere: there are several readings of each

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        gold: Tensor,
        smoothing: float,
        shares: tuple[float, ...],
        pulls: tuple[Pull, ...],
        real: int,
    ) -> tuple[Tensor, Tensor]:
        """`real`: rows that count; those behind them are zeros, and do not diverge."""
        weight = weight.to(hidden.dtype)
        exact = torch.promote_types(hidden.dtype, torch.float32)
        learns = any(ctx.needs_input_grad[:2])
        total, nll = hidden.new_zeros((), dtype=exact), hidden.new_zeros((), dtype=exact)
        grad_hidden = torch.empty_like(hidden) if learns else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if learns else None
        own = _ProjectedDivergences
        block = own.ROWS if hidden.device.type == "cpu" else own.DEVICE_ROWS
        for start in range(0, hidden.size(1), block):
            rows = slice(start, start + block)
            right = gold[rows].unsqueeze(1)
            log_p = [_log_softmax((one[rows] @ weight.mT).to(exact)) for one in hidden]
            p = [one.exp() for one in log_p]
            gradients: list[Tensor] = []
            counted = max(0, real - start)
            nll -= log_p[0].gather(1, right)[:counted].sum()
            for share, log_p_i, p_i in zip(shares, log_p, p, strict=True):
                gradient = share * p_i
                if share:
                    of_gold = log_p_i.gather(1, right)[:counted].sum()
                    total -= share * ((1 - smoothing) * of_gold + smoothing * log_p_i.mean(1)[:counted].sum())
                    gradient -= share * smoothing / weight.size(0)
                    gradient.scatter_add_(1, right, torch.full_like(right, share * (smoothing - 1), dtype=exact))
                gradients.append(gradient)
            for t, s, w, stopped in pulls:
                ratio = log_p[t] - log_p[s]
                apart = (p[t] * ratio).sum(1, keepdim=True)
                total += w * apart.sum()
                gradients[s].add_(p[s], alpha=w).sub_(p[t], alpha=w)
                if not stopped:
                    gradients[t].addcmul_(p[t], ratio.sub_(apart), value=w)
            if grad_hidden is None or grad_weight is None:
                continue
            for i, gradient in enumerate(gradients):
                gradient = gradient.to(hidden.dtype)
                torch.mm(gradient, weight, out=grad_hidden[i, rows])
                grad_weight += gradient.mT @ hidden[i, rows]
        if learns:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_total, grad_weight * grad_total, None, None, None, None, None


def _log_softmax(logits: Tensor) -> Tensor:
    """In place."""
    return logits.sub_(logits.logsumexp(1, keepdim=True))
