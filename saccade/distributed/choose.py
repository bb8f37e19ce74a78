"""Whether every rank holds all weights, or a part of them."""

import torch
from torch import nn

from saccade.config import TrainingConfig
from saccade.distributed.world import World

BYTES = 16  # of each weight in training: itself, its gradient, two moments, four bytes each
ROOM = 0.8  # of the free memory: the rest is for activations


def choose_sharding(
    settings: TrainingConfig, model: nn.Module, device: torch.device, world: World
) -> tuple[World, list[str]]:
    """The world to train in, and why."""
    if world.size == 1:
        alone = "sharding: none (training.sharding=fsdp, but there is one process: nobody to share weights with)"
        return world, [alone] if settings.sharding == "fsdp" else []
    from saccade.distributed.ranks import Ranks
    from saccade.distributed.shards import Shards
    from saccade.planning import free_memory

    assert isinstance(world, Ranks)
    weights = sum(parameter.numel() for parameter in model.parameters())
    free = free_memory(device) // (1 if device.type == "cuda" else world.local_size)
    # One rank short of memory is enough: all must do the same.
    tight = bool(world.most(int(BYTES * weights > ROOM * free)))
    need = f"{BYTES * weights / 2**20:,.0f} MB of weights, gradients and moments, {free / 2**20:,.0f} MB free"
    if settings.sharding == "fsdp" or (settings.sharding == "auto" and tight):
        return Shards.of(world), [f"ranks: {world.size}, each with a part of the weights (FSDP2; {need})"]
    return world, [f"ranks: {world.size}, each with all weights and its share of every batch (DDP; {need})"]
