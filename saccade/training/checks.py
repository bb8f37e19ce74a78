"""What is refused before a run starts, so that it is not refused after an hour."""

from pathlib import Path

import torch

from saccade.config import Config
from saccade.errors import SaccadeError
from saccade.folder import CONFIG
from saccade.models.build import build_model, with_shape
from saccade.training import checkpoint

# Settings of training that may change when a run goes on: how long it may take, how it is watched, and what helps
# when it broke.
FREE = {"max_steps", "max_minutes", "patience", "keep", "average", "log_every", "tensorboard", "threads"}
FREE |= {"validate_every", "checkpoint_every", "validate_bleu_pairs"}
FREE |= {"learning_rate", "warmup_steps", "precision", "clip_norm"}


def check_together(config: Config) -> None:
    """Refuse settings that cannot work together, before anything is read."""
    joint = config.tokenizer.joint is not False
    with torch.device("meta"):  # shapes without storage: building it is free
        build_model(config.model_copy(update={"model": with_shape(config.model, joint)}), 300, 300)
    if config.training.subword_dropout and config.tokenizer.kind != "bpe":
        raise SaccadeError(
            f"training.subword_dropout={config.training.subword_dropout} needs tokenizer.kind=bpe, "
            f"not {config.tokenizer.kind}; set it to 0"
        )


def resumable(config: Config, folder: Path, tuned: bool) -> Config:
    """The settings to go on with: those of the run that was started, but for what may change.

    What is left open keeps the value it had. `tuned`: the run began from another folder, whose tokenizer and model it
    has.
    """
    if not (folder / CONFIG).exists() or checkpoint.latest(folder / "resume") is None:
        return config
    before, now = Config.load(folder / CONFIG).model_dump(), config.model_dump()
    for section in ("data", "training") if tuned else ("data", "tokenizer", "model", "training"):
        for key, value in now[section].items():
            known = before[section].get(key)
            if value is None:
                if section in ("model", "training"):
                    now[section][key] = known
            elif known != value and not (section == "training" and key in FREE):
                raise SaccadeError(
                    f"{folder}: was started with {section}.{key}={known!r}, now it is {value!r}; "
                    "give the old value to go on, choose another --out, or --restart"
                )
    return Config.of(now)
