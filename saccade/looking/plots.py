"""A plot as a record: curves and heat maps with their names, labels and units, and no word on how they are drawn.

`saccade.looking.charts` draws it in a terminal, `saccade.looking.figures` by matplotlib.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from saccade.errors import SaccadeError

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One curve. `theory` is drawn dashed and without markers: it was not measured."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    theory: bool = False

    @classmethod
    def of(cls, name: str, x: Sequence[float], y: Sequence[float], theory: bool = False) -> "Series":
        if len(x) != len(y):
            raise SaccadeError(f"series {name!r} has {len(x)} x and {len(y)} y; give as many of each")
        return cls(name, tuple(map(float, x)), tuple(map(float, y)), theory)


@dataclass(frozen=True)
class Curves:
    """Series on common axes. On a logarithmic axis what is not above zero is left out."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False

    def points(self, series: Series) -> tuple[Values, Values]:
        """The points of a series that these axes can hold."""
        x, y = np.array(series.x), np.array(series.y)
        held = np.isfinite(x) & np.isfinite(y) & ((x > 0) | (not self.log_x)) & ((y > 0) | (not self.log_y))
        return x[held], y[held]

    def scales(self) -> "tuple[Scale, Scale]":
        """The two axes, wide enough for every point."""
        points = [self.points(series) for series in self.series]
        if not any(len(x) for x, _ in points):
            raise SaccadeError(f"plot {self.title!r}: no point can be drawn; give finite values, above 0 on a log axis")
        x, y = (np.concatenate(each) for each in zip(*points, strict=True))
        return Scale.over(x, self.log_x), Scale.over(y, self.log_y)


@dataclass(frozen=True)
class HeatMap:
    """values[row][column] between 0 and 1. What is at most `floor` is drawn as nothing: by default 0 alone."""

    title: str
    row_label: str
    column_label: str
    values: tuple[tuple[float, ...], ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    floor: float = 0.0

    @classmethod
    def of(
        cls,
        title: str,
        labels: tuple[str, str],
        values: npt.ArrayLike,
        rows: Sequence[object],
        columns: Sequence[object],
        floor: float = 0.0,
    ) -> "HeatMap":
        """`labels`: what the rows are, what the columns are."""
        array = np.asarray(values, dtype=np.float64)
        if array.shape != (len(rows), len(columns)):
            raise SaccadeError(
                f"heat map {title!r} is {array.shape}, but there are {len(rows)} row and {len(columns)} column names"
            )
        if not ((array >= 0) & (array <= 1 + 1e-6)).all():
            raise SaccadeError(f"heat map {title!r} holds values outside 0 … 1; divide by the largest first")
        cells = tuple(tuple(map(float, row)) for row in array)
        return cls(title, *labels, cells, tuple(map(str, rows)), tuple(map(str, columns)), floor)


Panel = Curves | HeatMap


@dataclass(frozen=True)
class Plot:
    """Panels that belong together."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Scale:
    """An axis: from values to a share of its length."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Values, log: bool) -> "Scale":
        low, high = float(values.min()), float(values.max())
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        return cls(low, high, log)

    def share(self, values: Values) -> Values:
        """0 at the low end, 1 at the high."""
        low, high = self._turned(self.low), self._turned(self.high)
        return ((np.log10(values) if self.log else values) - low) / (high - low)

    def ticks(self, most: int) -> list[float]:
        """At most so many round numbers on the axis."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last > first:
                stride = math.ceil((last - first + 1) / most)
                return [10.0**power for power in range(first, last + 1, stride)]
        span = self.high - self.low
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next((power * times for times in (1, 2, 5, 10) if span / (power * times) <= most - 1), power * 20)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{count * step:.12g}") for count in range(first, last + 1)]

    def _turned(self, value: float) -> float:
        return math.log10(value) if self.log else value
