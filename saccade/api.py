"""What `import saccade` gives; the command line calls the same functions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.config import Config, merge_settings, names_of, read_settings, split_arguments
from saccade.data.prepare import Prepared
from saccade.display import Display
from saccade.distributed.on_ray import RayMapper
from saccade.errors import SaccadeError
from saccade.folder import load
from saccade.languages import languages_of
from saccade.training.run import prepare_folder
from saccade.training.run import train as _train
from saccade.translator import Translation, Translator

__all__ = ["Translation", "Translator", "load", "prepare", "settings_from", "train"]


def train(
    *arguments: str | Path,
    out: str | Path,
    config: str | Path | None = None,
    valid: Sequence[str | Path] = (),
    start_from: str | Path | None = None,
    clean: bool = True,
    restart: bool = False,
    quiet: bool = False,
    ray: str | None = None,
    **sections: Mapping[str, Any],
) -> Translator:
    """Train a translator in the folder `out`, with the arguments of `saccade train`.

    >>> saccade.train("train.de", "train.en", out="runs/de-en", training={"max_steps": 60})

    `arguments` are corpus files and `section.key=value` settings; settings can also be given a section at a time, as
    keywords. No files: the built-in corpus. `ray`: the address of a cluster that prepares the corpus (`local`: this
    machine).
    """
    settings = settings_from(
        [str(argument) for argument in arguments], config, [str(v) for v in valid], clean, sections
    )
    return _train(
        settings,
        out,
        start_from=start_from,
        restart=restart,
        display=Display(quiet=quiet),
        mapper=None if ray is None else RayMapper(ray),
    )


def prepare(
    *arguments: str | Path,
    out: str | Path,
    config: str | Path | None = None,
    valid: Sequence[str | Path] = (),
    start_from: str | Path | None = None,
    clean: bool = True,
    restart: bool = False,
    quiet: bool = False,
    ray: str | None = None,
    **sections: Mapping[str, Any],
) -> Prepared:
    """Prepare the corpus of a run in the folder `out` and do not train, with the arguments of `saccade train`."""
    settings = settings_from(
        [str(argument) for argument in arguments], config, [str(v) for v in valid], clean, sections
    )
    display = Display(quiet=quiet)
    prepared = prepare_folder(
        settings,
        out,
        start_from=start_from,
        restart=restart,
        display=display,
        mapper=None if ray is None else RayMapper(ray),
    )
    for line in prepared.reasons:
        display.say(line)
    display.say(
        f"{out}: {prepared.pairs:,} pairs are prepared; saccade train with the same arguments goes on from here"
    )
    return prepared


def settings_from(
    arguments: Sequence[str],
    config: str | Path | None = None,
    valid: Sequence[str] = (),
    clean: bool = True,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Settings from a file, corpus files, `section.key=value` arguments and sections: what comes later wins."""
    files, overrides = split_arguments(arguments)
    settings = read_settings(config, overrides)
    unknown = [name for name in sections or {} if name not in Config.model_fields]
    if unknown:
        raise SaccadeError(f"unknown section {unknown[0]!r}; sections are {', '.join(Config.model_fields)}")
    merge_settings(settings, sections or {})
    data: dict[str, Any] = {}
    if files:
        data["train"] = files
    if valid:
        data["valid"] = list(valid)
    if not clean:
        data["cleaning"] = {"enabled": False}
    merge_settings(settings, {"data": data} if data else {})
    given = settings.get("data") or {}
    mixture = given.get("mixture")
    first = mixture[0] if isinstance(mixture, list) and mixture and isinstance(mixture[0], Mapping) else {}
    if trained := given.get("train") or first.get("train"):
        source, target = languages_of(trained)
        settings["data"] = {"source": source, "target": target} | settings["data"]
    return Config.of(settings, "settings" if config is None else str(config), names_of(overrides))
