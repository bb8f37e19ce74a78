"""What LibreTranslate's protocol takes and gives. Names of fields are its own."""

from typing import Any

from pydantic import BaseModel, Field

from saccade.serving.schemas import Problem

MOST_ALTERNATIVES = 15


class Detected(BaseModel):
    """A language, and how sure it is, from 0 to 100."""

    confidence: float = Field(ge=0, le=100)
    language: str


class Translated(BaseModel):
    """A text for a text, a list for a list."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class Language(BaseModel):
    """A language that is served, and those it can be translated to."""

    code: str
    name: str
    targets: list[str]


class Named(BaseModel):
    """A language and its name."""

    code: str
    name: str


class Chosen(BaseModel):
    """The pair that a page begins with."""

    source: Named
    target: Named


class FrontendSettings(BaseModel):
    """What a page that speaks this protocol wants to know."""

    apiKeys: bool
    charLimit: int
    filesTranslation: bool
    frontendTimeout: int
    keyRequired: bool
    language: Chosen
    suggestions: bool
    supportedFilesFormat: list[str]


class FileAnswer(BaseModel):
    """Where the translated file is, for some minutes."""

    translatedFileUrl: str


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Statuses that answer with a problem."""
    return {status: {"model": Problem} for status in (400, 403, 413, 429, 500, 503, 504, *statuses)}


def body(required: list[str], properties: dict[str, Any], *kinds: str) -> dict[str, Any]:
    """The body of a call, for the OpenAPI page; it is read by hand, since forms and JSON are taken alike."""
    key = {"type": "string", "description": "API key, where one is needed; or in a header, `Authorization: Bearer`"}
    schema = {"type": "object", "required": required, "properties": properties | {"api_key": key}}
    form = schema | {"properties": {name: _written(its) for name, its in properties.items()} | {"api_key": key}}
    both = {"application/json": {"schema": schema}, "application/x-www-form-urlencoded": {"schema": form}}
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds} or both}}


def _written(its: dict[str, Any]) -> dict[str, Any]:
    """A field as a form has it, in which all is text."""
    return {name: value for name, value in its.items() if name in ("description", "examples", "enum")} | {
        "type": "string"
    }


_TEXT = {"type": "string", "minLength": 1}
_PAIR = {
    "source": {"type": "string", "description": "Language code, or `auto`", "examples": ["en"]},
    "target": {"type": "string", "description": "Language code", "examples": ["de"]},
}
TRANSLATE = body(
    ["q", "source", "target"],
    {
        "q": {"anyOf": [_TEXT, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
        **_PAIR,
        "format": {"type": "string", "enum": ["text", "html"], "default": "text"},
        "alternatives": {"type": "integer", "minimum": 0, "maximum": MOST_ALTERNATIVES, "default": 0},
    },
)
DETECT = body(["q"], {"q": _TEXT})
FILE = body(
    ["file", "source", "target"], {"file": {"type": "string", "format": "binary"}, **_PAIR}, "multipart/form-data"
)
