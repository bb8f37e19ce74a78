"""When numbers break: which tensor was first."""

from typing import Any

import torch
from torch import Tensor, nn

from saccade.data.batching import Batch
from saccade.training.objectives import Objective


def first_bad_tensor(objective: Objective, batch: Batch) -> str:
    """Run a batch again and name the first tensor with NaN or infinite values: a weight, an output, or a gradient.

    Empty, if all went well this time.
    """
    for name, parameter in objective.model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weight {name} has NaN or infinite values"
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and any(not torch.isfinite(tensor).all() for tensor in _tensors(output)):
                found.append(f"the output of {name} ({type(module).__name__}) is the first with NaN or infinite values")

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in objective.model.named_modules() if name]
    try:
        loss = objective(batch)
        (loss.total / max(1, loss.tokens)).backward()  # a rank's share may be empty
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    # Gradients flow from the output to the input: the last weight with a bad one saw it first.
    bad = [
        name
        for name, parameter in objective.model.named_parameters()
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
    ]
    objective.zero_grad(set_to_none=True)
    if bad:
        return f"the gradient of {bad[-1]} is the first with NaN or infinite values"
    return ""


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, tuple | list):
        return [tensor for part in output for tensor in _tensors(part)]
    return []
