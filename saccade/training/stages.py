"""Bidirectional pre-training: both directions first, then the one that is wanted (Ding et al. 2021, Gao et al. 2022).

For `training.bidirectional_steps` steps the corpus is D = {(x, y)} ∪ {(y, x)}, after them it is {(x, y)}. Each stage
has the learning rate's schedule to itself; weights and moments go on. A place in a stage is a place in that stage's
batches, so a run that is stopped goes on in the stage it was in.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

from saccade.config import TrainingConfig, known
from saccade.data.batching import START, Position


class Stage(NamedTuple):
    """Where a step is."""

    directions: int
    step: int  # counted from the first of the stage
    steps: int  # that the stage has


def stage_of(step: int, settings: TrainingConfig) -> Stage:
    """The stage of step 1, 2, …"""
    before, total = settings.bidirectional_steps, known(settings.max_steps)
    return Stage(2, step, before) if step <= before else Stage(1, step - before, total - before)


class Streams(Protocol):
    """Whatever has batches without end."""

    def stream(self, start: Position = START) -> Generator[tuple[Position, Any], None, None]: ...


def staged(both: Streams | None, one: Streams, batches: int, start: Position) -> Iterator[tuple[Position, Any]]:
    """So many `batches` of both directions, then those of one, from its beginning; `start` is in whichever is first."""
    if both is not None and batches > 0:
        for number, (position, batch) in enumerate(islice(both.stream(start), batches), start=1):
            yield (START if number == batches else position), batch
        start = START
    yield from one.stream(start)
