"""All settings of a run, checked together; what is wrong is said in one sentence each."""

import copy
import difflib
import types
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import Field, ValidationError

from saccade.config.data import DataConfig, TokenizerConfig
from saccade.config.models import FAMILIES, FAMILY_DEFAULTS, ModelConfig, TransformerConfig
from saccade.config.reading import merge_settings, read_settings
from saccade.config.search import SearchConfig
from saccade.config.section import Section
from saccade.config.training import TrainingConfig
from saccade.errors import SaccadeError
from saccade.files import write_text


class Config(Section):
    """All settings of a run."""

    data: DataConfig = Field(default_factory=DataConfig, description="Where the pairs come from.")
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig, description="How text becomes pieces.")
    model: ModelConfig = Field(default_factory=TransformerConfig, description="What is trained.")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="How it is trained.")
    search: SearchConfig = Field(default_factory=SearchConfig, description="How it translates.")

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> "Config":
        """Read a YAML file (none: the defaults) and apply `section.key=value` overrides."""
        overrides = list(overrides)
        return cls.of(read_settings(path, overrides), "settings" if path is None else str(path), names_of(overrides))

    @classmethod
    def of(cls, settings: Mapping[str, Any], where: str = "settings", beside: Collection[str] = ()) -> "Config":
        """Check nested settings; what is wrong is said in one sentence each, with the nearest known name.

        `where` they were read, but for those named in `beside`, which came with the command.
        """
        settings = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
        model = settings.get("model")
        if isinstance(model, dict):
            model.setdefault("family", "transformer")
            settings = _in_family(settings, str(model["family"]))
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise SaccadeError("\n".join(_explain(problem, where, beside) for problem in error.errors())) from None

    def with_changes(self, changes: Mapping[str, Mapping[str, Any]]) -> "Config":
        """A copy with `changes[section][key]` in place, checked again."""
        settings = self.model_dump()
        for section, values in changes.items():
            settings[section].update(values)
        return Config.of(settings)

    def in_family_of(self, base: "Config") -> "Config":
        """The same settings, where what was not given has the defaults of `base`'s family."""
        return Config.of(_in_family(self.model_dump(exclude_unset=True), base.model.family))

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        write_text(path, self.to_yaml())


def _in_family(settings: Mapping[str, Any], family: str) -> dict[str, Any]:
    """The settings laid over the defaults of a family."""
    merged: dict[str, Any] = copy.deepcopy(FAMILY_DEFAULTS.get(family, {}))
    merge_settings(merged, settings)
    return merged


def is_override(argument: str) -> bool:
    """True for `section.key=value`, as opposed to a file name."""
    name, equals, _ = argument.partition("=")
    return bool(equals) and name.split(".")[0] in Config.model_fields and not Path(argument).exists()


def split_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names of files, and `section.key=value`; what looks like a setting and is none is refused."""
    files: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        (overrides if is_override(argument) else files).append(argument)
    for file in files:
        if "=" in file and not Path(file).exists():
            name = file.partition("=")[0]
            raise SaccadeError(
                f"{file!r}: {name or 'this'} is neither a setting nor a file; settings are written "
                f"section.key=value, without spaces{_meant(file)}"
            )
    return files, overrides


def _meant(argument: str) -> str:
    """The nearest thing to `max_steps=60` or `trainin.max_steps=60` that is a setting."""
    section, _, rest = argument.partition(".")
    near = [f"{name}.{argument}" for name in Config.model_fields if argument.partition("=")[0] in fields_of([name])]
    near += [f"{name}.{rest}" for name in difflib.get_close_matches(section, Config.model_fields, n=1)]
    return f"; did you mean {near[0]}?" if near else ""


def names_of(overrides: Iterable[str]) -> set[str]:
    """Of `section.key=value`."""
    return {override.partition("=")[0] for override in overrides}


def _explain(problem: Any, where: str, beside: Collection[str]) -> str:
    location = [str(part) for part in problem["loc"] if part not in FAMILIES]
    name = ".".join(location)
    where = "settings" if name in beside else where
    if problem["type"] == "extra_forbidden":
        families = {part for part in problem["loc"] if part in FAMILIES}
        known = fields_of([*location[:-1]], families)
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        remedy = f"did you mean {'.'.join([*location[:-1], near[0]])}?" if near else f"known here: {', '.join(known)}"
        return f"{where}: unknown setting {name}; {remedy}"
    if problem["type"] == "union_tag_invalid":
        return f"{where}: model.family={problem['input'].get('family')!r} is not known; use {', '.join(FAMILIES)}"
    return f"{where}: {name}={problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def fields_of(path: list[str], families: Collection[Any] = ()) -> list[str]:
    """Names of the settings in the section at `path`."""
    section: Any = Config
    for key in path:
        if key.isdigit():  # a place in a list
            continue
        field = getattr(section, "model_fields", {}).get(key)
        if field is None:
            return []
        section = field.annotation
        if get_origin(section) is list:
            section = get_args(section)[0]
        if get_origin(section) in (Union, types.UnionType):
            section = next(
                (kind for kind in get_args(section) if kind.model_fields["family"].annotation in _tags(families)),
                TransformerConfig,
            )
    return list(getattr(section, "model_fields", ()))


def _tags(families: Collection[Any]) -> list[Any]:
    return [Literal[family] for family in families]
