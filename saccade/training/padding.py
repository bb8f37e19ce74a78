"""Whether a run can go without padding, and its steps be captured."""

import importlib.util

import torch

from saccade.attention.spans import HEAD_WIDTHS
from saccade.config import Config, known
from saccade.data.store import Store
from saccade.data.unpadded import fits
from saccade.devices import predates_bf16
from saccade.distributed.world import World
from saccade.errors import SaccadeError
from saccade.models.protocol import EncoderDecoder
from saccade.models.unpadded import head_widths, reads_unpadded


def choose_padding(
    config: Config, model: EncoderDecoder, store: Store, device: torch.device, world: World
) -> tuple[Config, list[str]]:
    """Fill in `training.unpadded`, and say why; what is asked for and cannot be had is refused by name."""
    given = config.training.unpadded
    obstacle = None if given is False else _obstacle(config, model, store, device, world)
    if given and obstacle:
        raise SaccadeError(
            f"training.unpadded=true: {obstacle}; leave it out (a run that was begun with it goes on with it alone, or "
            "anew with --restart, or as another from its weights, with --from and another --out)"
        )
    chosen = config.with_changes({"training": {"unpadded": given is not False and obstacle is None}})
    if given is not None or device.type != "cuda":
        return chosen, []
    said = "without padding, steps captured" if obstacle is None else f"padded ({obstacle})"
    return chosen, [f"batches: {said}"]


def _obstacle(config: Config, model: EncoderDecoder, store: Store, device: torch.device, world: World) -> str | None:
    training = config.training
    if device.type != "cuda":
        return f"steps are captured on an NVIDIA GPU, and the device is {device.type}"
    if predates_bf16(device):
        return "this GPU is older than what triton is made for, compute capability 8.0"
    if importlib.util.find_spec("triton") is None:
        return "attention without padding needs triton, which is not installed"
    if world.size > 1 or world.sharded:
        return "it is one process that captures its steps"
    if config.data.stream:
        return "data.stream=true has its own batches"
    for name in ("subword_dropout", "word_dropout", "recompute"):
        if getattr(training, name):
            return f"training.{name} is for padded batches"
    if not reads_unpadded(model):
        return "the model is no Transformer encoder–decoder, or its positions are a bias"
    widths = head_widths(model)
    if not widths <= set(HEAD_WIDTHS):
        known_widths = ", ".join(map(str, HEAD_WIDTHS))
        return f"heads are {max(widths)} wide, and the kernels know {known_widths}"
    if not fits(store, known(training.batch_tokens)):
        return "a sentence is longer than a whole batch"
    return None
