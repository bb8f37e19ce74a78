"""Where the arithmetic happens, and how precise it is."""

import torch

from saccade.errors import SaccadeError


def device_for(name: str | None, setting: str = "training.device") -> torch.device:
    """The device that is asked for, or the best there is; one that cannot be used is refused by name."""
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name or best)
    except RuntimeError:
        raise SaccadeError(f"{setting}={name!r} is not a device; use cpu, cuda, cuda:0 or mps") from None
    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SaccadeError(f"{setting}={name!r} cannot be used ({reason}); here {best} can") from None
    return device


def describe_device(device: torch.device) -> str:
    """A device by the name on its box."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu, {torch.get_num_threads()} threads" if device.type == "cpu" else device.type


def autocast(device: torch.device, precision: str | None) -> torch.autocast:
    """The arithmetic of forward passes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
