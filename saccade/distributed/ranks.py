"""Many processes with the same weights: each has its share of every batch, gradients are summed (DDP).

Small words (counts, a wish to stop) go between CPUs by gloo, also where gradients go between GPUs by NCCL: asking how
many tokens a step has must not make a GPU wait.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from saccade.config import TrainingConfig
from saccade.distributed.watchdog import Watchdog
from saccade.distributed.world import More, World
from saccade.errors import SaccadeError
from saccade.training import checkpoint

# Hangs are the watchdog's to see, which knows that a rank at work alone is not one: the library's own limit stays away.
FOR_EVER = timedelta(days=30)
HEARD = 1.0  # seconds in which a process has said why the run ends


class Ranks(World):
    """This process as one of several, as torchrun's environment says."""

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, watchdog: Watchdog) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.watchdog = watchdog

    @classmethod
    def join(cls, settings: TrainingConfig) -> "Ranks":
        """Find the others."""
        on_gpu = (settings.device or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        if on_gpu:
            _check_gpus(local_rank, local_size)
            torch.cuda.set_device(local_rank)
        store, _, _ = next(iter(rendezvous("env://", timeout=timedelta(minutes=15))))
        # torchrun's store outlives its workers: those of another attempt must not be heard.
        store = PrefixStore(f"saccade/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=FOR_EVER
        )
        own_client = store.clone()  # type: ignore[attr-defined]  # the main thread may hold the other one's lock
        watchdog = Watchdog(own_client, rank, size, settings.hang_timeout)
        watchdog.start()
        return cls(rank, size, local_rank, local_size, watchdog)

    def device(self, name: str | None) -> str | None:
        if name not in (None, "cpu", "cuda"):
            raise SaccadeError(
                f"training.device={name!r} is one device, and {self.size} processes take part; use cuda (each process "
                "takes its own) or cpu"
            )
        if name == "cuda" or (name is None and torch.cuda.is_available()):
            return f"cuda:{self.local_rank}"
        return "cpu"

    def threads(self) -> int:
        return max(1, (os.cpu_count() or 1) // self.local_size)

    def at(self, place: str) -> None:
        self.watchdog.at(place)

    @contextmanager
    def alone(self, place: str) -> Iterator[None]:
        with self.watchdog.alone(place):
            yield

    @contextmanager
    def first_alone(self, place: str) -> Iterator[None]:
        self.at(place if self.is_first else f"waiting for rank 0: {place}")
        if not self.is_first:
            if not self.from_first({})["well"]:
                raise SystemExit(2)  # the first rank has said why
            yield
            return
        try:
            with self.alone(place):
                yield
        except BaseException:
            with suppress(RuntimeError):  # the others have been ended already
                self.from_first({"well": False})
            raise
        self.from_first({"well": True})

    def sum(self, number: int) -> int:
        return int(self._reduced([number], torch.int64)[0])

    def total(self, number: float) -> float:
        return float(self._reduced([number], torch.float64)[0])

    def most(self, number: int) -> int:
        return int(self._reduced([number], torch.int64, dist.ReduceOp.MAX)[0])

    def agree(self, stop: bool, seconds: float) -> tuple[bool, float]:
        wishes, clock = self._reduced([float(stop), seconds if self.is_first else 0.0], torch.float64).tolist()
        return wishes > 0, clock

    def from_first(self, facts: dict[str, Any]) -> dict[str, Any]:
        return self._said_by(0, facts)

    def any_word(self, word: str) -> str:
        # Of ranks with nothing to say, the first says that.
        speaker = (self.size - self.most(self.size - self.rank if word else 0)) % self.size
        return str(self._said_by(speaker, {"word": word})["word"])

    def speaks(self) -> bool:
        with suppress(RuntimeError):  # the store is gone, and who kept it
            if self.watchdog.store.add("speakers", 1) > 1:
                time.sleep(HEARD)  # torchrun ends the others as soon as one has ended
                return False
        return True

    def seed(self, seed: int, step: int) -> None:
        # Odd multipliers keep (seed, step, rank) apart; a resumed step draws what it drew, on the same number of ranks.
        torch.manual_seed((seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + self.rank) % 2**63)

    def learner(self, objective: nn.Module, unused: bool) -> Callable[..., Any]:
        with warnings.catch_warnings():
            # A new name is asked for that earlier versions do not know.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(
                objective, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=unused
            )

    def learning(self, learner: Callable[..., Any], last: bool) -> AbstractContextManager[None]:
        assert isinstance(learner, DistributedDataParallel)
        return nullcontext() if last else learner.no_sync()

    def save(
        self,
        resume: Path,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: dict[str, Any],
        more: More = None,
    ) -> None:
        if self.is_first:
            checkpoint.save_checkpoint(resume, step, model, optimizer, progress, more)

    def close(self) -> None:
        self.at("the end")
        self.sum(0)  # a barrier that needs no GPU

    def leave(self) -> None:
        """Stop watching and listening, whatever happened."""
        self.watchdog.stop()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _said_by(self, rank: int, facts: dict[str, Any]) -> dict[str, Any]:
        said = list(json.dumps(facts).encode()) if self.rank == rank else []
        length = torch.tensor([len(said)])
        dist.broadcast(length, rank)
        letters = torch.tensor(said or [0] * int(length), dtype=torch.uint8)
        dist.broadcast(letters, rank)
        return dict(json.loads(bytes(letters.tolist())))

    def _reduced(self, numbers: list[Any], kind: torch.dtype, how: Any = dist.ReduceOp.SUM) -> Tensor:
        tensor = torch.tensor(numbers, dtype=kind)
        dist.all_reduce(tensor, how)
        return tensor


def _check_gpus(local_rank: int, local_size: int) -> None:
    """Refuse more processes than the machine has GPUs: all of them find it out, and the first says it."""
    there = torch.cuda.device_count()
    if local_size <= there:
        return
    if local_rank > 0:
        raise SystemExit(2)
    raise SaccadeError(
        f"{local_size} processes on this machine are to have a GPU each, and it has "
        f"{there or 'none that torch can use'}; start no more than that (--devices, of torchrun --nproc-per-node), or "
        "set training.device=cpu"
    )
