"""Who takes part in a run. Alone, there is nobody to agree with and nothing to share: `World` does nothing at all.

The training loop is written once against these methods; `saccade.distributed.ranks` has them for many processes, and
`saccade.distributed.shards` for weights that are shared out as well.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from saccade.config import TrainingConfig
from saccade.errors import SaccadeError
from saccade.training import checkpoint

ModelT = TypeVar("ModelT", bound=nn.Module)
More = Mapping[str, Tensor] | None


class World:
    """A run of one process: rank 0 of 1."""

    rank = 0
    size = 1
    sharded = False  # whether each rank holds a part of the weights alone

    @property
    def is_first(self) -> bool:
        """Whether this process writes, validates and shows progress."""
        return self.rank == 0

    @property
    def restarted(self) -> bool:
        """Whether torchrun started this process in place of one that died."""
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

    def device(self, name: str | None) -> str | None:
        """The device of this process, where settings say `name`."""
        return name

    def threads(self) -> int:
        """CPU threads for this process, where settings say nothing."""
        return torch.get_num_threads()

    # What all ranks agree on

    def at(self, place: str) -> None:
        """Note for the watchdog where this process is; the next word will come from all ranks."""

    @contextmanager
    def alone(self, place: str) -> Iterator[None]:
        """Work that the others wait for, however long it takes: no hang as long as this process lives."""
        yield

    @contextmanager
    def first_alone(self, place: str) -> Iterator[None]:
        """The first rank does it, then all others; if it fails, the others end without a word."""
        yield

    def sum(self, number: int) -> int:
        """Of all ranks."""
        return number

    def total(self, number: float) -> float:
        """Of all ranks."""
        return number

    def most(self, number: int) -> int:
        """The largest of all ranks."""
        return number

    def agree(self, stop: bool, seconds: float) -> tuple[bool, float]:
        """Whether any rank wants to stop, and the first rank's clock."""
        return stop, seconds

    def from_first(self, facts: dict[str, Any]) -> dict[str, Any]:
        """What the first rank says (JSON)."""
        return facts

    def any_word(self, word: str) -> str:
        """What the first rank with something to say says."""
        return word

    def speaks(self) -> bool:
        """Whether it falls to this process to say why a run ends: one does, and the others give it time."""
        return True

    def seed(self, seed: int, step: int) -> None:
        """Give each rank random numbers of its own for a step, the same whenever it is taken."""

    # Weights and gradients

    def own(self, model: ModelT, device: torch.device) -> ModelT:
        """The model that learns, made of one that translates; the same object unless weights are shared out."""
        return model.to(device)

    def share_out(self, objective: nn.Module) -> None:
        """Leave each rank its part of the weights, if that is how it is done; before an optimizer sees them."""

    def learner(self, objective: nn.Module, unused: bool) -> Callable[..., Any]:
        """The objective, whose gradients are those of all ranks. `unused`: some weights get none."""
        return objective

    def learning(self, learner: Callable[..., Any], last: bool) -> AbstractContextManager[None]:
        """Around each forward and backward of a step; gradients travel with the last alone."""
        return nullcontext()

    def part(self, whole: Tensor, like: Tensor | None) -> Tensor:
        """This rank's part of a tensor, shared out as the weight `like` is."""
        return whole

    def plain(self, norm: Tensor) -> Tensor:
        """A norm of gradients as an ordinary tensor."""
        return norm

    def publish(self, model: nn.Module, shown: nn.Module) -> None:
        """Bring what `model` has learned into the first rank's `shown`, if it is another object."""

    # Checkpoints

    def save(
        self,
        resume: Path,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: dict[str, Any],
        more: More = None,
    ) -> None:
        """Write the checkpoint of a step; `more`: tensors beside the optimizer's."""
        checkpoint.save_checkpoint(resume, step, model, optimizer, progress, more)

    def load(
        self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, more: More = None
    ) -> dict[str, Any]:
        """Go to a checkpoint, whatever number of ranks wrote it; returns the progress."""
        return checkpoint.load_checkpoint(folder, model, optimizer, more)

    def close(self) -> None:
        """Wait for all, and part."""


@contextmanager
def join(settings: TrainingConfig) -> Iterator[World]:
    """The world that `torchrun` (or `saccade train --devices`) made for this process; by itself, one of its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    from saccade.distributed.ranks import Ranks

    world = Ranks.join(settings)
    try:
        yield world
    except (SaccadeError, OSError):
        if not world.speaks():
            raise SystemExit(2) from None
        raise
    finally:
        world.leave()
