"""AdamW and how its learning rate moves."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from saccade.config import TrainingConfig


def learning_rate(step: int, *, schedule: str, peak: float, warmup: int, total: int) -> float:
    """The rate of step 1, 2, …: up in a line over `warmup` steps, then down as the schedule says.

    inverse-sqrt:  peak · √(warmup / step)   (Vaswani et al. 2017, eq. 3, written with its peak)
    cosine, linear: to zero at `total`
    """
    if step < warmup:
        return peak * step / warmup
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / max(step, 1))
    if schedule == "constant":
        return peak
    left = max(0.0, (total - step) / max(1, total - warmup))
    return peak * (left if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * (1 - left))))


def make_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: biases and norms have nothing to shrink towards."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=parameters[0].device.type in ("cpu", "cuda"),
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` from the next step on."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # of a captured step, which reads it where it is
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most `limit` (0: leave them); returns the norm before."""
    return nn.utils.clip_grad_norm_(list(parameters), limit if limit > 0 else math.inf)
