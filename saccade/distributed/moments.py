"""An optimizer's moments in many safetensors files, one a rank, by `torch.distributed.checkpoint`.

Its own format has an index that is pickled; that of `HuggingFaceStorageWriter` has safetensors files alone, whose
headers hold the offsets of their parts as JSON.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from saccade.errors import SaccadeError


def write_sharded(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write what this rank has of `tensors`, together with all others."""
    # A number has no part to be cut from, and the reader cuts everything: numbers travel as rows of one.
    rows = {name: tensor if tensor.dim() else tensor.reshape(1) for name, tensor in tensors.items()}
    try:
        save(rows, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        for failure in error.failures.values():
            if isinstance(failure[0], OSError):
                raise failure[0] from None
        raise RuntimeError(str(error)) from error


def read_sharded(folder: Path, like: Callable[[str], Tensor | None] = lambda name: None) -> dict[str, Tensor]:
    """Read all tensors of a folder: whole, or of the parts that `like(name)` has if it is of the same shape."""
    try:
        reader = HuggingFaceStorageReader(str(folder))
        found = {
            name: kind
            for name, kind in reader.read_metadata().state_dict_metadata.items()
            if isinstance(kind, TensorStorageMetadata)
        }
        tensors: dict[str, Tensor] = {}
        for name, kind in found.items():
            model = like(name)
            if model is not None and model.shape == kind.size:
                tensors[name] = torch.zeros_like(model, dtype=kind.properties.dtype)
            else:
                tensors[name] = torch.zeros(kind.size, dtype=kind.properties.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is what is meant
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=not dist.is_initialized())
    except (CheckpointException, SafetensorError, OSError, ValueError, KeyError) as error:
        raise SaccadeError(
            f"{folder}: cannot be read as sharded moments ({error}); a file is missing or damaged: copy the folder "
            f"again, or remove {folder.parent} to go one checkpoint back"
        ) from None
    return {name: tensor.reshape(()) if name.endswith("/step") else tensor for name, tensor in tensors.items()}
