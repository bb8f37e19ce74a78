"""How far the readings of one batch are from the truth and from each other, the logits never stored whole.

A batch is read several times: with other dropout, or with words cut off. Each reading is a distribution over the
vocabulary at every target position, P_i = softmax(h_i Wᵀ); the loss is a weighted sum

    L = Σ_i c_i · CE(P_i, y) + Σ_(t,s) w_ts · KL(P_t ‖ P_s)

of label-smoothed cross-entropies and of divergences between readings. Every objective of `objectives` is of this form.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.data.tokenizers import PAD
from saccade.devices import quick_products
from saccade.models.blocks import filled


class Pull(NamedTuple):
    """w · KL(P_teacher ‖ P_student): both are drawn together, or the student alone."""

    teacher: int
    student: int
    weight: float
    stopped: bool = False  # no gradient to the teacher


Call = Callable[..., Any]  # calls its first argument with the others: as it is, or compiled


def projected_divergences(
    hidden: Tensor,
    weight: Tensor,
    gold: Tensor,
    smoothing: float,
    shares: Sequence[float],
    pulls: Sequence[Pull],
    call: Call | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss above, summed over positions, and the summed NLL of the first reading.

    `hidden` (readings, N, E), `weight` (V, E), `gold` (N,), where PAD counts nothing, `shares`: c_i of each reading.
    `call`: who does the work of a block of logits.
    """
    hidden, gold = filled(hidden, gold)
    with quick_products():
        total, nll = _ProjectedDivergences.apply(hidden, weight, gold, smoothing, tuple(shares), tuple(pulls), call)
    return total, nll


class _ProjectedDivergences(torch.autograd.Function):
    """As for cross-entropy alone, gradients are known as soon as the loss is: a block of rows is read by all readings,
    its logits become gradients, and are gone before the next block."""

    ROWS = 512  # on a CPU, as for cross-entropy
    DEVICE_ROWS = 8192  # elsewhere, all readings together

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        gold: Tensor,
        smoothing: float,
        shares: tuple[float, ...],
        pulls: tuple[Pull, ...],
        call: Call | None,
    ) -> tuple[Tensor, Tensor]:
        learnt, weight = weight.dtype, weight.to(hidden.dtype)
        exact = torch.promote_types(hidden.dtype, torch.float32)
        learns = any(ctx.needs_input_grad[:2])
        total, nll = hidden.new_zeros((), dtype=exact), hidden.new_zeros((), dtype=exact)
        grad_hidden = torch.empty_like(hidden) if learns else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if learns else None
        for rows in _ProjectedDivergences.blocks(hidden):
            logits = tuple(one[rows] @ weight.mT for one in hidden)
            given = logits, gold[rows], smoothing, shares, pulls
            if call is None:
                of_loss, of_nll, gradients = _settle(*given)
            elif hidden.is_cuda and len(logits) == 1:
                of_loss, of_nll, gradients = _settle_by_kernel(*given)
            else:
                of_loss, of_nll, gradients = call(_settle, *given)
            total += of_loss
            nll += of_nll
            del logits, given
            if grad_hidden is None or grad_weight is None:
                continue
            for i, gradient in enumerate(gradients):
                torch.mm(gradient, weight, out=grad_hidden[i, rows])
                grad_weight += gradient.mT @ hidden[i, rows]
        if learns:
            assert grad_weight is not None
            ctx.save_for_backward(grad_hidden, grad_weight.to(learnt))
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_total, grad_weight * grad_total, None, None, None, None, None

    @staticmethod
    def blocks(hidden: Tensor) -> list[slice]:
        """Of the rows of all readings; on a device of one size where that can be, so that they are one program."""
        readings, N = hidden.shape[:2]
        size = _ProjectedDivergences.ROWS
        if hidden.device.type != "cpu":
            least = -(-N * readings // _ProjectedDivergences.DEVICE_ROWS)
            number = next((n for n in range(least, 2 * least + 1) if N % n == 0), least)
            size = -(-N // number)
        return [slice(start, start + size) for start in range(0, N, size)]


def _settle(
    logits: tuple[Tensor, ...], gold: Tensor, smoothing: float, shares: tuple[float, ...], pulls: tuple[Pull, ...]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The loss of a block of rows, its NLL, and the gradients of its logits. With z = h Wᵀ:

    ∂CE(P_i)/∂z_i = P_i - [(1 - ε) onehot(y) + ε/V]
    ∂KL(P_t ‖ P_s)/∂z_s = P_s - P_t
    ∂KL(P_t ‖ P_s)/∂z_t = P_t ∘ (log P_t - log P_s - KL(P_t ‖ P_s))

    Rows of PAD have no part in the loss, and their gradients are zeros.
    """
    kind, V = logits[0].dtype, logits[0].size(1)
    exact = torch.promote_types(kind, torch.float32)
    right, counted = gold.long().unsqueeze(1), (gold != PAD).unsqueeze(1)
    log_p = [_log_softmax(one.to(exact)) for one in logits]
    p = [one.exp() for one in log_p]
    nll = -(log_p[0].gather(1, right) * counted).sum()
    total = torch.zeros_like(nll)
    gradients: list[Tensor] = []
    for share, log_p_i, p_i in zip(shares, log_p, p, strict=True):
        counts = share * counted.to(exact)  # (N, 1)
        gradient = counts * p_i
        if share:
            likely = (1 - smoothing) * log_p_i.gather(1, right) + smoothing * log_p_i.mean(1, keepdim=True)
            total = total - (counts * likely).sum()
            gradient -= counts * (smoothing / V)
            if gradient.is_cpu:
                gradient.scatter_add_(1, right, counts * (smoothing - 1))
            else:  # joins the other passes over the logits when it is compiled
                is_gold = torch.arange(V, device=gold.device) == right
                gradient = gradient - torch.where(is_gold, counts * (1 - smoothing), 0.0)
        gradients.append(gradient)
    for t, s, w, stopped in pulls:
        counts = w * counted.to(exact)
        ratio = log_p[t] - log_p[s]
        apart = (p[t] * ratio).sum(1, keepdim=True)
        total = total + (counts * apart).sum()
        gradients[s].addcmul_(p[s], counts).addcmul_(p[t], counts, value=-1)
        if not stopped:
            gradients[t].addcmul_(p[t], ratio.sub_(apart).mul_(counts))
    return total, nll, [gradient.to(kind) for gradient in gradients]


def _settle_by_kernel(
    logits: tuple[Tensor, ...], gold: Tensor, smoothing: float, shares: tuple[float, ...], pulls: tuple[Pull, ...]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """`_settle` of one reading, whose logits become the gradient (proved equal in tests/test_loss_kernel.py)."""
    assert not pulls, "one reading is drawn to no other"
    from saccade.training import loss_kernel  # Triton comes with torch for CUDA, not for a CPU

    return *loss_kernel.settle(logits[0], gold, smoothing, shares[0]), list(logits)


def _log_softmax(logits: Tensor) -> Tensor:
    return logits - logits.logsumexp(1, keepdim=True)
