"""What a run writes while it goes: one JSON line a log step, and TensorBoard scalars."""

import importlib.util
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saccade.config import TrainingConfig
from saccade.distributed.world import World
from saccade.errors import SaccadeError
from saccade.files import write_text
from saccade.folder import LOG

if TYPE_CHECKING:
    from saccade.training.loop import Progress


class Log:
    """Gathers tensors without waiting for the device, and writes them out every `log_every` steps (the first rank)."""

    def __init__(self, folder: Path, settings: TrainingConfig, step: int, world: World) -> None:
        self.world = world
        self.path = folder / LOG if world.is_first else Path(os.devnull)
        if world.is_first:
            self._forget_after(step)
        self.board = _tensorboard(folder, settings.tensorboard, step) if world.is_first else None
        self._clear()

    def __enter__(self) -> "Log":
        self.file = open(self.path, "a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()

    def add(self, loss: Tensor, norm: Tensor, tokens: int, waited: float) -> None:
        """Take note of a step; `waited`: the seconds until its batches were there."""
        self.waited += waited
        self.losses.append(loss.detach() * tokens)
        self.norms.append(norm)
        self.tokens += tokens

    def flush(self, progress: "Progress", rate: float, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write what has been gathered since the last time, and `more`, and return it."""
        seconds = time.perf_counter() - self.since
        row = {
            "step": progress.step,
            "loss": self.world.total(torch.stack(self.losses).sum().item()) / self.tokens,
            "gradient_norm": torch.stack(self.norms).mean().item(),
            "learning_rate": rate,
            "tokens_per_second": self.tokens / seconds,
            "waiting": round(self.waited / seconds, 4),  # for batches, of all the time
            "epoch": progress.epoch,
            "target_tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
        } | dict(more or {})
        self._write(row, "train")
        self._clear()
        return row

    def largest_norm(self) -> Tensor:
        """Of the gradients since the last flush; NaN if any was."""
        return torch.stack(self.norms).max()

    def validation(self, row: dict[str, Any], seconds: float) -> None:
        """Write a validation; the time it took is not training time."""
        self._write(row, "valid")
        self.since += seconds

    def _write(self, row: dict[str, Any], group: str) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self.board.add_scalar(f"{group}/{name}", value, row["step"])

    def _clear(self) -> None:
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.tokens, self.waited = 0, 0.0
        self.since = time.perf_counter()

    def _forget_after(self, step: int) -> None:
        """Drop lines of steps that will be taken again (a run killed after its last checkpoint wrote some)."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError):
                continue  # the line that was being written when the run was killed
        write_text(self.path, "".join(kept))


def _tensorboard(folder: Path, wanted: bool | None, step: int) -> Any:
    installed = importlib.util.find_spec("tensorboard") is not None
    if wanted and not installed:
        raise SaccadeError(
            "training.tensorboard=true, but tensorboard is not installed: pip install 'saccade[tensorboard]'"
        )
    if wanted is False or not installed:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
