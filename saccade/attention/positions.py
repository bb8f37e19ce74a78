"""Positions: what tells a Transformer the order of the words.

A scheme is called with a start and a length where all rows of a batch stand alike, and with `Places` where each has its
own.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import SaccadeError


class Places(NamedTuple):
    """Where each token stands, row by row."""

    positions: Tensor  # (B, L)
    bound: int  # all positions are below it: known without looking at them


def sinusoid(positions: Tensor, width: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/E)), PE(p, 2i+1) = cos(p / 10000^(2i/E))   (Vaswani et al. 2017, 3.5)."""
    frequencies = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-math.log(10_000.0) / width))
    angles = positions.unsqueeze(-1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]


class Sinusoidal(nn.Module):
    """Fixed waves, defined for any length; the first ones are kept in a table."""

    table: Tensor

    def __init__(self, width: int, kept: int = 512) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoid(torch.arange(kept), width), persistent=False)

    def forward(self, start: int, length: int) -> Tensor:
        """The encodings of positions start … start + length - 1, (length, E)."""
        if start + length <= self.table.size(0):
            return self.table[start : start + length]
        positions = torch.arange(start, start + length, device=self.table.device)
        return sinusoid(positions, self.width).to(self.table.dtype)

    def at(self, places: Places) -> Tensor:
        """The encodings of each row's own positions, (B, L, E)."""
        if places.bound <= self.table.size(0):
            return F.embedding(places.positions, self.table)
        return sinusoid(places.positions, self.width).to(self.table.dtype)


class Absent(nn.Module):
    """No positions: attention then treats a sentence as a bag of words."""

    nothing: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        # Where the model lies: what is captured on a GPU must not wait for a copy from the host.
        self.register_buffer("nothing", torch.zeros(width), persistent=False)

    def forward(self, start: int, length: int) -> Tensor:
        return self.nothing.expand(length, -1)

    def at(self, places: Places) -> Tensor:
        return self.nothing.view(1, 1, -1)


class Learned(nn.Module):
    """One learned vector a position (Gehring et al. 2017, 3.1); there is none beyond `max_positions`."""

    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_positions, width) * width**-0.5)

    def forward(self, start: int, length: int) -> Tensor:
        self._check(start + length)
        return self.table[start : start + length]

    def at(self, places: Places) -> Tensor:
        if places.bound > self.table.size(0):
            self._check(int(places.positions.max()) + 1)
        return F.embedding(places.positions, self.table)

    def _check(self, length: int) -> None:
        if length > self.table.size(0):
            raise SaccadeError(
                f"a sequence of {length} pieces is longer than the {self.table.size(0)} learned positions; "
                "split the text, or train with a larger model.max_positions or with model.positions=sinusoidal"
            )
