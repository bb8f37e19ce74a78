"""Many processes, each with a part of the weights, gradients and moments: FSDP2, for models that do not fit.

Checkpoints keep their form but for the moments, which each rank writes as its own safetensors file in `optimizer/`, by
`torch.distributed.checkpoint`. The files say in their headers which part of each tensor they hold, so that any number
of ranks reads them, and nothing is pickled.
"""

import copy
import json
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from saccade.distributed.moments import read_sharded, write_sharded
from saccade.distributed.ranks import Ranks
from saccade.distributed.world import ModelT, More
from saccade.files import written_atomically
from saccade.models.build.units import units
from saccade.training import checkpoint


class Shards(Ranks):
    """As `Ranks`, with a sharded copy of the model beside the plain one that the first rank translates with."""

    sharded = True

    @classmethod
    def of(cls, ranks: Ranks) -> "Shards":
        return cls(ranks.rank, ranks.size, ranks.local_rank, ranks.local_size, ranks.watchdog)

    def own(self, model: ModelT, device: torch.device) -> ModelT:
        self.mesh: DeviceMesh = init_device_mesh(device.type, (self.size,))
        copied = copy.deepcopy(model)
        if self.is_first:
            model.to(device)
        return copied

    def share_out(self, objective: nn.Module) -> None:
        # Attention's output is a view, which nobody here changes in place.
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view tensor")
        for unit, methods in units(objective):
            fully_shard(unit, mesh=self.mesh)  # moves it to the mesh's device, a unit at a time
            for method in methods:
                register_fsdp_forward_method(unit, method)
        fully_shard(objective, mesh=self.mesh, reshard_after_forward=False)

    def learner(self, objective: nn.Module, unused: bool) -> Callable[..., Any]:
        return objective

    def learning(self, learner: Callable[..., Any], last: bool) -> AbstractContextManager[None]:
        assert isinstance(learner, FSDPModule)
        learner.set_requires_gradient_sync(last)
        return nullcontext()

    def plain(self, norm: Tensor) -> Tensor:
        return _whole(norm)

    @torch.no_grad()
    def publish(self, model: nn.Module, shown: nn.Module) -> None:
        for parameter, place in zip(model.parameters(), shown.parameters(), strict=True):
            whole = _whole(parameter)
            if self.is_first:
                place.copy_(whole)

    def save(
        self,
        resume: Path,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: dict[str, Any],
        more: More = None,
    ) -> None:
        folder = resume / f"step-{step:08d}"
        if self.from_first({"there": folder.exists()})["there"]:
            return
        if not self.is_first:
            part = Path(self.from_first({})["part"])
            self._save_weights(model, part)
            write_sharded(checkpoint.optimizer_tensors(model, optimizer) | dict(more or {}), part / checkpoint.SHARDED)
            return
        with written_atomically(folder) as part:
            part.mkdir()
            self.from_first({"part": str(part)})
            self._save_weights(model, part)
            write_sharded(checkpoint.optimizer_tensors(model, optimizer) | dict(more or {}), part / checkpoint.SHARDED)
            (part / "state.json").write_text(json.dumps(progress, indent=1), encoding="utf-8")

    def _save_weights(self, model: nn.Module, part: Path) -> None:
        """Whole, in one file: what is averaged, and what any folder can translate with."""
        whole: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            tensor = _whole(parameter.detach())  # all ranks take part
            if self.is_first:
                whole[name] = tensor.cpu()
        if self.is_first:
            checkpoint.save_weights(whole, part / "model.safetensors")

    @torch.no_grad()
    def load(
        self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, more: More = None
    ) -> dict[str, Any]:
        weights = checkpoint.load_tensors(folder / "model.safetensors")
        parameters = dict(model.named_parameters())
        checkpoint.check_fit(parameters, weights, folder / "model.safetensors")
        for name, parameter in parameters.items():
            parameter.copy_(self.part(weights[name], parameter))
        del weights
        if (folder / checkpoint.SHARDED).is_dir():
            moments = read_sharded(folder / checkpoint.SHARDED, lambda key: parameters.get(_parameter_of(key)))
        else:
            tensors = checkpoint.load_tensors(folder / "optimizer.safetensors")
            moments = {key: self.part(tensor, parameters.get(_parameter_of(key))) for key, tensor in tensors.items()}
        checkpoint.set_moments(model, optimizer, moments)
        checkpoint.set_more(more, moments, folder)
        return checkpoint.read_progress(folder)

    def part(self, whole: Tensor, like: Tensor | None) -> Tensor:
        if not isinstance(like, DTensor) or like.shape != whole.shape:
            return whole
        placed = whole.to(like.device)  # what is not of its shape, such as a count of steps, stays whole
        return distribute_tensor(placed, self.mesh, like.placements, src_data_rank=None)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _parameter_of(key: str) -> str:
    """`adam/encoder.weight/exp_avg` → `encoder.weight`, `ema/encoder.weight` too."""
    if key.startswith("ema/"):
        return key.removeprefix("ema/")
    return key.removeprefix("adam/").rpartition("/")[0]
