"""Layers that forget: what they computed is computed again when its gradient is asked for (Chen et al. 2016).

Memory for activations then grows with the width of one layer and the number of layers, not with all that is inside
them, for about one more forward pass.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from saccade.errors import SaccadeError


class Recomputable(nn.Module):
    """A layer that keeps only its inputs while it trains, if `recompute` is set. Dropout falls the same both times."""

    recompute = False

    def __call__(self, *inputs: Any) -> Any:
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(super().__call__, *inputs, use_reentrant=False)
        return super().__call__(*inputs)


def recompute_layers(model: nn.Module) -> None:
    """Let every layer that can forget do so."""
    layers = [module for module in model.modules() if isinstance(module, Recomputable)]
    if not layers:
        raise SaccadeError(
            "training.recompute=true: this model has no layers that could be computed again (Transformers and ConvS2S "
            "have); leave it out, or lower training.batch_tokens"
        )
    for layer in layers:
        layer.recompute = True
