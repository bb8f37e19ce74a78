"""Settings as they are written: files that extend each other, and overrides. Nothing is checked here."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from saccade.errors import SaccadeError


def read_settings(path: str | Path | None = None, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The settings of a file with overrides applied, as they were written: nothing checked, nothing filled in."""
    settings = {} if path is None else _read_extended(Path(path))
    for override in overrides:
        _apply_override(settings, override)
    return settings


def merge_settings(settings: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Lay `more` over `settings`, section into section."""
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(settings.get(name), dict):
            merge_settings(settings[name], value)
        else:
            settings[name] = dict(value) if isinstance(value, Mapping) else value


def _read_extended(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's settings, laid over those of the file that it `extends` (a path relative to its own)."""
    if path.resolve() in seen:
        raise SaccadeError(f"{path}: extends itself, by way of {' → '.join(map(str, seen))}; break the circle")
    settings = _read_yaml(path)
    base = settings.pop("extends", None)
    if base is None:
        return settings
    if not isinstance(base, str):
        raise SaccadeError(f"{path}: extends={base!r} is not the path of a YAML file")
    if not (path.parent / base).is_file():
        raise SaccadeError(f"{path}: extends={base!r}: there is no such file beside it; correct the path")
    extended = _read_extended(path.parent / base, (*seen, path.resolve()))
    merge_settings(extended, settings)
    return extended


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SaccadeError(f"{path}: cannot read the configuration: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SaccadeError(f"{path}: the configuration is not UTF-8 text; save it as UTF-8") from None
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SaccadeError(f"{path}: not valid YAML: {error}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise SaccadeError(
            f"{path}: expected sections such as `model:` and `training:`, found {type(settings).__name__}"
        )
    return settings


def _apply_override(settings: dict[str, Any], override: str) -> None:
    name, equals, value = override.partition("=")
    keys = name.split(".")
    if not equals or len(keys) < 2:
        raise SaccadeError(f"{override!r} is not a setting; write section.key=value, e.g. training.max_steps=60")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    if isinstance(parsed, bool) and value.strip().lower() not in ("true", "false"):
        parsed = value.strip()  # `data.target=no` is Norwegian; where a truth is meant, "no" is read as one later
    if isinstance(parsed, str):
        try:  # YAML reads 1e-3 as text; nobody who writes it means text
            parsed = float(parsed)
        except ValueError:
            parsed = value.strip()
    section = settings
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise SaccadeError(f"{override!r}: {key} is a value, not a section")
    section[keys[-1]] = parsed
