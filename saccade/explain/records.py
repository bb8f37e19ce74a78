"""What an experiment is given, and what it hands back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from saccade.display import Display
from saccade.looking.plots import Plot


@dataclass(frozen=True)
class Trial:
    """One run of an experiment."""

    seed: int
    steps: int  # of each training; 0 where nothing is trained
    display: Display

    def generator(self) -> torch.Generator:
        """A source of data, the same for everything that is to be compared."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True)
class Table:
    """Measured numbers, ready to be read."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Explanation:
    """What was found: in sentences, tables and a plot; `numbers` holds all of it for a program."""

    title: str
    paragraphs: tuple[str, ...]
    tables: tuple[Table, ...]
    plot: Plot
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Topic:
    """An experiment that can be asked for. `steps`: how long it trains; None: nothing is trained."""

    about: str
    run: Callable[[Trial], Explanation]
    steps: int | None = None
