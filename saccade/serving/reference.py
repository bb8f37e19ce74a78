"""The page at /docs: every call, written from the OpenAPI description. No script, and nothing from afar."""

import json
import re
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

router = APIRouter(include_in_schema=False)

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; font-size: 1.1rem } h2 code { font-size: 1.1rem }
h2 b { display: inline-block; min-width: 4rem; font-size: .8rem; letter-spacing: .05em }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
"""


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The reference as a page."""
    return HTMLResponse(page(request.app.openapi()))


@router.get("/docs/style.css")
async def style() -> Response:
    """How it looks."""
    return Response(STYLE, media_type="text/css")


def page(described: dict[str, Any]) -> str:
    """All calls of an OpenAPI description, and the shapes that their fields have."""
    shapes = described.get("components", {}).get("schemas", {})
    calls = "".join(
        _call(path, method, call, shapes)
        for path, methods in described["paths"].items()
        for method, call in methods.items()
    )
    told: dict[str, str] = {}
    while unknown := [name for name in _NAMED.findall(calls + "".join(told.values())) if name not in told]:
        told |= {name: _shape(name, shapes) for name in unknown}
    title = escape(f"{described['info']['title']} {described['info']['version']}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}: the interface</title><link rel="icon" href="static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="docs/style.css"></head>
<body><h1>{title}</h1>
<p>Every call of this server. For programs: <a href="openapi.json">openapi.json</a>.</p>
{calls}{"".join(told.values())}</body></html>"""


_NAMED = re.compile(r'href="docs#(\w+)"')


def _shape(name: str, shapes: dict[str, Any]) -> str:
    said = f'<h2 id="{name}"><code>{name}</code></h2><p>{_said(shapes[name])}</p>'
    return said + _table("has", _fields(shapes[name], shapes))


def _call(path: str, method: str, call: dict[str, Any], shapes: dict[str, Any]) -> str:
    parts = [f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2><p>{_said(call)}</p>"]
    if call.get("parameters"):
        rows = [(p["name"], p["schema"], _said(p), False) for p in call["parameters"]]
        parts.append(_table("in the address", rows))
    for form, body in call.get("requestBody", {}).get("content", {}).items():
        parts.append(_table(f"takes {form}", _fields(body.get("schema", {}), shapes, taken=True)))
    answer = call.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
    given = answer.get("schema", {})
    title = "gives a list, each with" if given.get("type") == "array" else "gives"
    if fields := _fields(given.get("items", given), shapes):
        parts.append(_table(title, fields))
    return "".join(parts)


Field = tuple[str, dict[str, Any], str, bool]  # the last: whether a request is none without it


def _fields(shape: dict[str, Any], shapes: dict[str, Any], taken: bool = False) -> list[Field]:
    named = shapes.get(str(shape.get("$ref", "")).rpartition("/")[2], shape)
    needed = named.get("required", []) if taken else []
    return [(name, field, _said(field), name in needed) for name, field in named.get("properties", {}).items()]


def _said(of: dict[str, Any]) -> str:
    """What is said of it, with its `code` as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(of.get("description", of.get("summary", ""))))


def _table(title: str, fields: list[Field]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_kind(field)}{', needed' if needed else _default(field)}</td>"
        f"<td>{said}</td></tr>"
        for name, field, said, needed in fields
    )
    return f'<table><tr><th colspan="3">{escape(title)}</th></tr>{rows}</table>'


def _kind(field: dict[str, Any]) -> str:
    """What a field holds, in a word or two."""
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return f'<a href="docs#{name}">{name}</a>'
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"] if one.get("type") != "null")
    if "enum" in field:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in field["enum"])
    if "prefixItems" in field:
        return f"[{', '.join(map(_kind, field['prefixItems']))}]"
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    least, most = field.get("minimum"), field.get("maximum")
    span = "" if least is None or most is None else f" from {least:g} to {most:g}"
    return escape(str(field.get("type", "anything"))) + span


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return "" if default is None or default in ("", [], {}) else f", else <code>{escape(json.dumps(default))}</code>"
