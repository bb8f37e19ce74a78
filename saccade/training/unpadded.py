"""The objectives over batches without padding: the same losses, of rows that never change in number."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from saccade.config import TrainingConfig
from saccade.data.unpadded import UnpaddedBatch
from saccade.models.protocol import EncoderDecoder
from saccade.models.unpadded import hidden_of, plainly
from saccade.models.words import allow_cuts
from saccade.training.divergences import projected_divergences
from saccade.training.objectives import Loss, cut_off, readings_of


class Unpadded(nn.Module):
    """What `make_objective` makes, for batches without padding; word dropout is not among it.

    `call` does the work of a layer, and of a block of logits: as it is written, or compiled.
    """

    def __init__(self, model: EncoderDecoder, settings: TrainingConfig, call: Callable[..., Any] = plainly) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = settings.label_smoothing
        self.readings, self.pulls = readings_of(settings)
        self.call = call
        if any(reading.cutoff for reading in self.readings):
            allow_cuts(model)

    def forward(self, batch: UnpaddedBatch) -> Loss:
        k = len(self.readings)
        read = batch
        if k > 1:
            tokens, inputs = (
                torch.cat([cut_off(side, r.cutoff) if r.cutoff else side for r in self.readings], dim=1)
                for side in (batch.tokens, batch.inputs)
            )
            read = batch.repeated(k).with_tokens(tokens, inputs)
        hidden = hidden_of(self.model, read, self.call).unflatten(0, (k, -1))
        shares = [reading.share for reading in self.readings]
        total, nll = projected_divergences(
            hidden, self.model.output_matrix, batch.gold, self.label_smoothing, shares, self.pulls, self.call
        )
        return Loss(total, nll, batch.target_tokens)
