"""What is refused before a run starts, so that it is not refused after an hour."""

import errno
from pathlib import Path

import numpy as np
import torch

from saccade.config import Config
from saccade.data.provenance import files_of
from saccade.data.store import Store
from saccade.data.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import CONFIG, RECORD, WEIGHTS, require
from saccade.models.build import build_model, in_one_sequence, longest_sequence, with_shape, without_use
from saccade.training import checkpoint

# Settings of training that may change when a run goes on: how long it may take, how it is watched, and what helps
# when it broke.
FREE = {"max_steps", "max_minutes", "patience", "keep", "average", "log_every", "tensorboard", "threads"}
FREE |= {"validate_every", "checkpoint_every", "validate_bleu_pairs"}
FREE |= {"learning_rate", "warmup_steps", "precision", "recompute", "clip_norm", "device"}
FREE |= {"sharding", "hang_timeout", "stream_workers"}


def check_folder(folder: Path, config: Config, restart: bool, base: Path | None) -> None:
    """Refuse a folder that holds what training would destroy."""
    if base is not None:
        require(base)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file is in its place", str(folder))
    ours = (folder / "resume").exists() or (folder / CONFIG).exists()
    if restart:
        if not ours:
            raise SaccadeError(
                f"{folder}: is not a folder that Saccade made; --restart would throw it away; empty it first"
            )
        if base is not None and base.resolve().is_relative_to(folder.resolve()):
            raise SaccadeError(f"--from {base} --restart would throw away what it starts from; choose another --out")
        for name in [*files_of(config.data), *config.data.old_valid]:
            if Path(name).is_file() and Path(name).resolve().is_relative_to(folder.resolve()):
                raise SaccadeError(f"{name}: lies in {folder}, which --restart would throw away; move it out of there")
        return
    if not ours:
        raise SaccadeError(f"{folder}: holds files that are not Saccade's; choose another --out")
    resume = folder / "resume"
    # A run that was killed between its first validation and its first checkpoint begins again.
    begun = (resume / checkpoint.BEST).exists() and not (folder / RECORD).exists()
    begun = begun and not checkpoint.checkpoints(resume)
    if (folder / WEIGHTS).exists() and checkpoint.latest(resume) is None and not begun:
        raise SaccadeError(
            f"{folder}: holds a trained model and no checkpoint to go on from; choose another --out "
            f"(fine-tune it with --from {folder}), or --restart to throw it away"
        )
    if (folder / RECORD).exists() and config.training.max_steps is None:
        raise SaccadeError(
            f"{folder}: is trained already; choose another --out, go on with a larger training.max_steps=… (and "
            "training.patience=…, if it stopped early), or --restart to throw it away"
        )


def check_together(config: Config) -> None:
    """Refuse settings that cannot work together, before anything is read."""
    if (idle := without_use(config.model)) is not None:
        raise SaccadeError(f"{idle}; leave it out")
    joint = config.tokenizer.joint is not False
    with torch.device("meta"):  # shapes without storage: building it is free
        model = build_model(config.model_copy(update={"model": with_shape(config.model, joint)}), 300, 300)
    training, search = config.training, config.search
    if training.subword_dropout and config.tokenizer.kind != "bpe":
        raise SaccadeError(
            f"training.subword_dropout={training.subword_dropout} needs tokenizer.kind=bpe, "
            f"not {config.tokenizer.kind}; set it to 0"
        )
    if training.validate_by == "bleu" and not training.validate_bleu_pairs:
        raise SaccadeError(
            "training.validate_by=bleu needs pairs to translate; set training.validate_bleu_pairs above 0"
        )
    if config.data.monolingual and training.validate_by == "bleu":
        raise SaccadeError(
            "training.validate_by=bleu needs sources to translate, and data.monolingual=true has none; use loss"
        )
    if config.data.monolingual and config.tokenizer.joint is False:
        raise SaccadeError(
            "tokenizer.joint=false wants two sides to learn from, and data.monolingual=true has one; leave it out"
        )
    both = training.bidirectional_steps
    if both and training.max_steps is not None and training.max_steps <= both:
        raise SaccadeError(
            f"training.bidirectional_steps={both} leaves nothing of training.max_steps={training.max_steps} for the "
            "direction that is wanted; raise max_steps, which counts both, or lower it"
        )
    if both and config.data.monolingual:
        raise SaccadeError(
            f"training.bidirectional_steps={both} needs two sides, and data.monolingual=true has one; set it to 0"
        )
    if search.n_best > search.beam:
        raise SaccadeError(f"search.n_best={search.n_best} is more than search.beam={search.beam}; widen the beam")
    if search.coverage_penalty and not model.attends:
        raise SaccadeError(
            f"search.coverage_penalty={search.coverage_penalty} needs a model with attention; set it to 0"
        )


def check_tuning(config: Config, base: Path | None) -> None:
    """Refuse settings of fine-tuning where nothing is fine-tuned."""
    if base is not None:
        return
    data, tokenizer, training = config.data, config.tokenizer, config.training
    given = {
        "data.replay": data.replay,
        "data.replay_share": data.replay_share,
        "data.old_valid": data.old_valid,
        "tokenizer.new_pieces": tokenizer.new_pieces,
        "training.keep_moments": training.keep_moments,
    }
    for name, value in given.items():
        if value:
            raise SaccadeError(f"{name}={value!r} is for fine-tuning; name the old folder with --from, or leave it out")


def check_lengths(config: Config, *stores: Store) -> None:
    """Refuse pairs that are longer than the model's positions, before the first step rather than at one of them."""
    limit = longest_sequence(config.model)
    if limit is None:
        return
    for store in stores:
        source, target = store.source_lengths, store.target_lengths
        if in_one_sequence(config.model):
            longest = 2 + int(np.add(source, target, dtype=np.int64).max())
            what = f"pair has {longest:,} pieces with its ends, both sides together"
        else:
            longest = 1 + int(max(source.max(), target.max()))
            what = f"sentence has {longest:,} pieces with its end"
        if longest > limit:
            raise SaccadeError(
                f"model.max_positions={limit}: the longest {what}; raise "
                "model.max_positions, or drop long pairs with a smaller data.cleaning.max_characters"
            )


def check_directions(config: Config, given: Tokenizers | None) -> None:
    """Refuse to train both directions where each side has a vocabulary of its own; `given`: that of another folder."""
    joint = config.tokenizer.joint if given is None else given.joint
    if config.training.bidirectional_steps and joint is False:
        raise SaccadeError(
            f"training.bidirectional_steps={config.training.bidirectional_steps} needs one vocabulary for both sides; "
            "set tokenizer.joint=true, or it to 0"
        )


def tuned_from(config: Config, base: Config, folder: Path) -> Config:
    """Settings with the model of the folder that is fine-tuned; only its dropout may be another."""
    kept, given = base.model.model_dump(), config.model.model_dump(exclude_unset=True)
    unsaid = {"family": Config().model.family}
    for key, value in given.items():
        if value is None or value in (kept.get(key), unsaid.get(key)):
            continue
        if not key.endswith("dropout"):
            raise SaccadeError(
                f"model.{key}={value!r} cannot be had with --from {folder}, whose model has {kept.get(key)!r}; "
                "leave it out"
            )
        kept[key] = value
    return Config.of(config.model_dump() | {"model": kept})


def resumable(config: Config, folder: Path, tuned: bool) -> Config:
    """The settings to go on with: those of the run that was started, but for what may change.

    What is left open keeps the value it had. `tuned`: the run began from another folder, whose tokenizer and model it
    has.
    """
    if not (folder / CONFIG).exists() or checkpoint.latest(folder / "resume") is None:
        return config
    before, now = Config.load(folder / CONFIG).model_dump(), config.model_dump()
    if before["training"]["r_drop"] is None:  # begun before there was R-Drop to choose
        before["training"]["r_drop"] = 0.0
    if before["training"].get("unpadded") is None:  # … and before batches could go without padding
        before["training"]["unpadded"] = False
    if tuned:
        now["model"] = tuned_from(config, Config.of(before), folder).model.model_dump()
    for section in ("data", "model", "training") if tuned else ("data", "tokenizer", "model", "training"):
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
