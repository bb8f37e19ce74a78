"""What `import saccade` gives; the command line calls the same functions."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.config import Config, is_override
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.folder import load
from saccade.training.run import train as _train
from saccade.translator import Translation, Translator

__all__ = ["Translation", "Translator", "load", "settings_from", "train"]

LANGUAGE = re.compile(r"[a-z]{2,3}")


def train(
    *arguments: str | Path,
    out: str | Path,
    config: str | Path | None = None,
    valid: Sequence[str | Path] = (),
    start_from: str | Path | None = None,
    clean: bool = True,
    restart: bool = False,
    quiet: bool = False,
    **sections: Mapping[str, Any],
) -> Translator:
    """Train a translator in the folder `out`, with the arguments of `saccade train`.

    >>> saccade.train("train.de", "train.en", out="runs/de-en", training={"max_steps": 60})

    `arguments` are corpus files and `section.key=value` settings; settings can also be given a section at a time, as
    keywords. No files: the built-in corpus.
    """
    settings = settings_from(
        [str(argument) for argument in arguments], config, [str(v) for v in valid], clean, sections
    )
    return _train(settings, out, start_from=start_from, restart=restart, display=Display(quiet=quiet))


def settings_from(
    arguments: Sequence[str],
    config: str | Path | None = None,
    valid: Sequence[str] = (),
    clean: bool = True,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Settings from a file, corpus files, `section.key=value` arguments and sections: what comes later wins."""
    files = [argument for argument in arguments if not is_override(argument)]
    overrides = [argument for argument in arguments if is_override(argument)]
    for file in files:
        if "=" in file and not Path(file).exists():
            name = file.partition("=")[0]
            raise SaccadeError(
                f"{file!r}: {name} is neither a setting nor a file; settings are written section.key=value"
            )
    read = Config.load(config, overrides)
    changes: dict[str, dict[str, Any]] = {name: dict(values) for name, values in (sections or {}).items()}
    unknown = [name for name in changes if name not in Config.model_fields]
    if unknown:
        raise SaccadeError(f"unknown section {unknown[0]!r}; sections are {', '.join(Config.model_fields)}")
    data = changes.setdefault("data", {})
    if files:
        data.setdefault("train", files)
        named = read.data.model_fields_set | data.keys()
        for side, language in zip(("source", "target"), _languages(files), strict=False):
            if side not in named:
                data[side] = language
    if valid:
        data.setdefault("valid", list(valid))
    if not clean:
        data["cleaning"] = read.data.cleaning.model_dump() | {"enabled": False}
    return read.with_changes(changes)


def _languages(files: Sequence[str]) -> list[str]:
    """Languages by the endings of the first two files, as in train.de train.en.gz; none where they do not tell."""
    endings = [Path(file.removesuffix(".gz")).suffix.removeprefix(".") for file in files[:2]]
    return endings if len(endings) == 2 and all(LANGUAGE.fullmatch(e) for e in endings) else []
