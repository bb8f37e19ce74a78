"""The longest batch goes first: what does not fit is known at once, not in an hour."""

import torch
from torch import nn

from saccade.data.batching import Batch
from saccade.devices import autocast
from saccade.training.memory import MicroBatches


def try_longest(
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    micro: MicroBatches,
    *,
    precision: str | None,
    device: torch.device,
    sharded: bool,
) -> bool:
    """Forward and backward of a batch, in as few pieces as fit; generators and weights stay as they were.

    Returns whether every weight got a gradient. `sharded`: ranks wait for each other inside, so that none can try again
    by itself.
    """
    generators = torch.get_rng_state(), torch.cuda.get_rng_state() if device.type == "cuda" else None
    objective.train()

    def attempt(pieces: int) -> None:
        # Before the first step the moments are not there yet, and will need their room.
        room = [] if optimizer.state else [torch.empty_like(p) for p in objective.parameters() for _ in range(2)]
        for piece in batch.pieces(pieces, exactly=sharded)[:2]:  # the second adds to the gradients of the first
            with autocast(device, precision):
                loss = objective(piece.to(device))
            loss.total.backward()
        del room

    micro.spared(attempt, len(batch.indices), optimizer.zero_grad, alone=not sharded)
    complete = all(parameter.grad is not None for parameter in objective.parameters())
    optimizer.zero_grad()
    torch.set_rng_state(generators[0])
    if generators[1] is not None:
        torch.cuda.set_rng_state(generators[1])
    return complete
