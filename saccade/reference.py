"""The reference page of all settings, written from the settings themselves."""

import difflib
import inspect
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from saccade.config import (
    ClassifierConfig,
    CleaningConfig,
    Config,
    ConvConfig,
    CorpusConfig,
    DataConfig,
    LMConfig,
    RNNConfig,
    SearchConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from saccade.errors import SaccadeError

SECTIONS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("data", "data", DataConfig),
    ("data.cleaning", "data.cleaning", CleaningConfig),
    ("data.mixture", "data.mixture", CorpusConfig),
    ("tokenizer", "tokenizer", TokenizerConfig),
    ("model (family: transformer)", "model", TransformerConfig),
    ("model (family: rnn)", "model", RNNConfig),
    ("model (family: conv)", "model", ConvConfig),
    ("model (family: lm)", "model", LMConfig),
    ("model (family: classifier)", "model", ClassifierConfig),
    ("training", "training", TrainingConfig),
    ("search", "search", SearchConfig),
)


def reference_page(only: str | None = None) -> str:
    """Every setting (of one section, or one alone: only those): name, kind, default, what it does."""
    parts = [
        "# Settings\n",
        "Every choice is a setting of a YAML file (`--config`) and a `section.key=value` argument. *chosen* means that",
        "Saccade picks a value from the corpus and the machine and says so; the value is then in the folder's",
        "`config.yaml`. An unknown name is refused with the nearest known one. `saccade settings` prints this page,",
        "`saccade settings --schema` a JSON schema for editors.\n",
    ]
    intro, known = len(parts), []
    for title, prefix, section in SECTIONS:
        rows = {
            f"{prefix}.{name}": f"{_kind(field.annotation)} | {_default(field)} | {field.description}"
            for name, field in section.model_fields.items()
            if field.description and not _is_section(field)
        }
        known += list(rows)
        shown = {name: row for name, row in rows.items() if only is None or f"{name}.".startswith(f"{only}.")}
        if not shown:
            continue
        parts.append(f"## {title}\n")
        if len(shown) == len(rows):
            parts.append(f"{inspect.cleandoc(section.__doc__ or '')}\n")
        parts += ["| setting | kind | default | |", "|---|---|---|---|"]
        parts += [*(f"| `{name}` | {row} |" for name, row in shown.items()), ""]
    if len(parts) == intro:
        near = difflib.get_close_matches(str(only), [*Config.model_fields, *known], n=1)
        remedy = f"did you mean {near[0]}?" if near else f"sections are {', '.join(Config.model_fields)}"
        raise SaccadeError(f"{only!r} is neither a setting nor a section; {remedy}")
    return "\n".join(parts)


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return "*chosen*"
    value = field.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined else f"`{_spelled(value)}`"


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is list:
        return "list"
    if get_args(annotation):
        kinds = [_kind(part) for part in get_args(annotation) if part is not type(None) and _is_kind(part)]
        return ", ".join(dict.fromkeys(kinds))
    return {"int": "integer", "float": "number", "str": "text", "bool": "`true`, `false`"}.get(
        annotation.__name__, annotation.__name__
    )


def _is_kind(part: Any) -> bool:
    return isinstance(part, type) or get_origin(part) in (Literal, list, Union) or bool(get_args(part))
