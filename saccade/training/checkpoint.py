"""Checkpoints: tensors in safetensors, numbers in JSON, a folder that appears whole or not at all.

runs/x/model.safetensors        the best weights so far
runs/x/resume/step-00001200/    model.safetensors, state.json and, in the newest two, optimizer.safetensors
                                (optimizer/, a file a rank, where weights are shared out: saccade.distributed.shards)
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.files import remove_folder, written_atomically

BEST = "best.safetensors"  # in resume/: the best single checkpoint, whatever the folder ends up with
SHARDED = "optimizer"  # the folder with the moments of a run that shares its weights out
STEP = re.compile(r"step-(\d{8})")


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Each weight once, under its first name: tied embeddings are one tensor."""
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights, atomically."""
    with written_atomically(path) as part:
        _save(dict(weights), part, {"format": "pt"})


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        # The library hides the number that says why behind a text of its own.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def load_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Tensors of a safetensors file; a damaged one is named."""
    try:
        return load_file(path, device=str(device))
    except (SafetensorError, OSError) as error:
        raise SaccadeError(
            f"{path}: cannot be read as a safetensors file ({error}); it is missing, truncated or not one: "
            "copy the folder again or go back to an earlier checkpoint"
        ) from None


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from a file that must hold just its weights."""
    fill(model, load_tensors(path), path)


def fill(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy `weights` (read from `path`) into a model of the same names and shapes."""
    own = dict(model.named_parameters())
    check_fit(own, weights, path)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def check_fit(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights of other names or shapes than a model's own."""
    for name in [*own, *weights]:
        if name not in weights or name not in own:
            where = "the file" if name not in weights else "the model"
            raise SaccadeError(
                f"{path}: weight {name} is not in {where}; config.yaml and weights do not belong together"
            )
        if own[name].shape != weights[name].shape:
            raise SaccadeError(
                f"{path}: weight {name} has shape {tuple(weights[name].shape)}, "
                f"the model wants {tuple(own[name].shape)}; "
                "config.yaml and weights do not belong together"
            )


def save_checkpoint(
    resume: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Mapping[str, Any],
    more: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the checkpoint of `step` with all that the next step depends on; `more`: tensors beside the optimizer's."""
    folder = resume / f"step-{step:08d}"
    if folder.exists():
        return folder
    with written_atomically(folder) as part:
        part.mkdir()
        _save(weights_of(model), part / "model.safetensors")
        _save(optimizer_tensors(model, optimizer) | dict(more or {}), part / "optimizer.safetensors")
        (part / "state.json").write_text(json.dumps(progress, indent=1), encoding="utf-8")
    return folder


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    more: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Put model, optimizer, generators and the tensors of `more` back to where `save_checkpoint` found them; returns
    the progress."""
    load_weights(model, folder / "model.safetensors")
    tensors = load_moments(folder)
    set_moments(model, optimizer, tensors)
    set_more(more, tensors, folder)
    return read_progress(folder)


def load_moments(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint beside the weights, whole, however many ranks wrote them."""
    if not (folder / SHARDED).is_dir():
        return load_tensors(folder / "optimizer.safetensors")
    from saccade.distributed.moments import read_sharded  # a second of imports that most runs need not wait for

    return read_sharded(folder / SHARDED)


def set_more(more: Mapping[str, Tensor] | None, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Fill the tensors of `more` with what a checkpoint kept of them."""
    for name, tensor in (more or {}).items():
        if name not in tensors:
            raise SaccadeError(f"{folder}: {name} is not there; remove {folder} to go one back")
        tensor.copy_(tensors[name])


def set_moments(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put an optimizer and the generators back to where `optimizer_tensors` found them."""
    for name, parameter in model.named_parameters():
        moments = {
            key.rpartition("/")[2]: tensor
            for key, tensor in tensors.items()
            if key.rpartition("/")[0] == f"adam/{name}"
        }
        if moments:
            optimizer.state[parameter] = {
                key: tensor.to(parameter.device) if tensor.dim() or parameter.is_cuda else tensor
                for key, tensor in moments.items()
            }
    torch.set_rng_state(tensors["generator/cpu"])
    if torch.cuda.is_available() and "generator/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["generator/cuda"])


def read_progress(folder: Path) -> dict[str, Any]:
    """What a checkpoint keeps beside tensors."""
    try:
        return dict(json.loads((folder / "state.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SaccadeError(
            f"{folder / 'state.json'}: cannot be read ({error}); remove {folder} to go one back"
        ) from None


def checkpoints(resume: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    if not resume.is_dir():
        return []
    return sorted(folder for folder in resume.iterdir() if STEP.fullmatch(folder.name))


def latest(resume: Path) -> Path | None:
    """The newest checkpoint that can be resumed from."""
    moments = ("optimizer.safetensors", SHARDED)
    whole = [folder for folder in checkpoints(resume) if any((folder / name).exists() for name in moments)]
    return whole[-1] if whole else None


def prune(resume: Path, keep: int) -> None:
    """Keep the newest `keep` checkpoints, and the optimizer's state only in the newest two (one may be damaged).

    What an interruption saved between two checkpoints goes as soon as it is not the newest: it must not be averaged.
    """
    for folder in checkpoints(resume)[:-1]:
        if _is_extra(folder):
            remove_folder(folder)
    every = checkpoints(resume)
    for folder in every[:-keep]:
        remove_folder(folder)
    for folder in every[-keep:-2]:
        (folder / "optimizer.safetensors").unlink(missing_ok=True)
        if (folder / SHARDED).exists():
            remove_folder(folder / SHARDED)


def to_average(resume: Path) -> list[Path]:
    """Checkpoints at their regular steps, oldest first: not what an interruption saved in between."""
    return [folder for folder in checkpoints(resume) if not _is_extra(folder)]


def _is_extra(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "state.json").read_text(encoding="utf-8")).get("extra"))
    except (OSError, ValueError):
        return False  # damaged: whoever resumes from it says so


def average(files: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several files, added up in float64."""
    if not files:
        raise SaccadeError("nothing to average: name at least one checkpoint or a run that has some in resume/")
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in files:
        weights = load_tensors(path)
        if total and weights.keys() != total.keys():
            odd = sorted(weights.keys() ^ total.keys())[0]
            raise SaccadeError(
                f"{path}: weight {odd} is not in both it and {files[0]}; average checkpoints of one model"
            )
        for name, tensor in weights.items():
            if name in total and total[name].shape != tensor.shape:
                raise SaccadeError(
                    f"{path}: weight {name} differs in shape from {files[0]}; average checkpoints of one model"
                )
            kinds[name] = tensor.dtype
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(files)).to(kinds[name]) for name, tensor in total.items()}


def parameters_in(path: Path) -> int:
    """How many numbers a weights file holds, without reading them."""
    try:
        with safe_open(path, framework="pt") as file:
            return sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise SaccadeError(f"{path}: cannot be read as a safetensors file ({error})") from None


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All that the next step depends on beside the weights: moments and generators."""
    named: Iterable[tuple[str, nn.Parameter]] = model.named_parameters()
    return {
        f"adam/{name}/{key}": tensor.contiguous()
        for name, parameter in named
        for key, tensor in optimizer.state.get(parameter, {}).items()
    } | _generator_states()


def _generator_states() -> dict[str, Tensor]:
    states = {"generator/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["generator/cuda"] = torch.cuda.get_rng_state()
    return states
