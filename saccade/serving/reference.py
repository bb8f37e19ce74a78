"""The page at /docs: every call, written from the OpenAPI description. No script, and nothing from afar."""

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
    """All calls of an OpenAPI description."""
    shapes = described.get("components", {}).get("schemas", {})
    calls = [
        _call(path, method, call, shapes)
        for path, methods in described["paths"].items()
        for method, call in methods.items()
    ]
    title = escape(f"{described['info']['title']} {described['info']['version']}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}: the interface</title><link rel="stylesheet" href="docs/style.css"></head>
<body><h1>{title}</h1>
<p>Every call of this server. For programs: <a href="openapi.json">openapi.json</a>.</p>
{"".join(calls)}</body></html>"""


def _call(path: str, method: str, call: dict[str, Any], shapes: dict[str, Any]) -> str:
    said = escape(call.get("description", call.get("summary", "")))
    parts = [f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2><p>{said}</p>"]
    if call.get("parameters"):
        rows = [(p["name"], p["schema"], p.get("description", "")) for p in call["parameters"]]
        parts.append(_table("in the address", rows, shapes))
    for form, body in call.get("requestBody", {}).get("content", {}).items():
        parts.append(_table(f"takes {form}", _fields(body.get("schema", {}), shapes), shapes))
    answer = call.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
    if fields := _fields(answer.get("schema", {}), shapes):
        parts.append(_table("gives", fields, shapes))
    return "".join(parts)


Field = tuple[str, dict[str, Any], str]


def _fields(shape: dict[str, Any], shapes: dict[str, Any]) -> list[Field]:
    named = shapes.get(str(shape.get("$ref", "")).rpartition("/")[2], shape)
    return [(name, field, field.get("description", "")) for name, field in named.get("properties", {}).items()]


def _table(title: str, fields: list[Field], shapes: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}</td><td>{escape(said)}</td></tr>"
        for name, field, said in fields
    )
    return f"<table><tr><th>{escape(title)}</th><th></th><th></th></tr>{rows}</table>"


def _kind(field: dict[str, Any]) -> str:
    """What a field holds, in a word or two."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"] if one.get("type") != "null")
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "anything"))
