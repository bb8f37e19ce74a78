"""An exponential moving average of the weights: smoother than any of them (Polyak & Juditsky 1992)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """θ̄_t = d_t θ̄_{t-1} + (1 - d_t) θ_t,   d_t = min(d, (1 + t) / (10 + t)),   in fp32 at least.

    The decay rises to d, so that the first weights, which know nothing, are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names, self.parameters = zip(*model.named_parameters(), strict=True)
        self.means: list[Tensor] = [
            parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            for parameter in self.parameters
        ]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        now = [parameter.detach().to(mean.dtype) for parameter, mean in zip(self.parameters, self.means, strict=True)]
        torch._foreach_lerp_(self.means, now, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While it lasts, the model has the mean weights; afterwards its own again, to the bit."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._fill(self.means)
        try:
            yield
        finally:
            self._fill(own)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it, and fills again."""
        return {f"ema/{name}": mean for name, mean in zip(self.names, self.means, strict=True)}

    @torch.no_grad()
    def _fill(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)
