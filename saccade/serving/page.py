"""The page: its files, read once, and given only by the names they have here."""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from saccade.looking.page import look_script, look_style
from saccade.serving.problems import NotFound

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)

router = APIRouter(include_in_schema=False)


class File(NamedTuple):
    """What is sent."""

    body: bytes
    type: str
    etag: str


def _file(body: bytes, name: str) -> File:
    return File(body, TYPES[Path(name).suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')


@cache
def files() -> dict[str, File]:
    """Every file of the page, by its name below /static/."""
    found = {"page.js": script(), "page.css": _read("page.css") + _read("views.css")}
    found |= {"look.js": look_script(), "look.css": look_style()}
    for path in [STATIC / "theme.js", STATIC / "icon.svg", *sorted((STATIC / "labels").glob("*.js"))]:
        name = path.relative_to(STATIC).as_posix()
        found[name] = _read(name)
    return {name: _file(text.encode(), name) for name, text in found.items()}


def script() -> str:
    """`page.js`: the modules that main.js needs, each in a scope of its own. One request rather than twenty."""
    done: dict[str, str] = {}

    def add(name: str) -> str:
        text = _read(f"page/{name}.js")
        for _, other in _IMPORT.findall(text):
            if other not in done:
                done[other] = ""  # a circle of imports would find it empty
                body, exported = add(other), _EXPORT.findall(_read(f"page/{other}.js"))
                done.pop(other)  # those it needs stand before it
                done[other] = f"const ${other} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"
        return _EXPORT.sub("", _IMPORT.sub(r"const \1 = $\2;\n", text))

    last = add("main")
    return "".join(done.values()) + last


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


@cache
def _index(watching: bool, key: bool) -> File:
    """The page itself. What it must know before it can ask stands in its first line."""
    text = _read("index.html")
    for name, value in (("watch", watching), ("key", key)):
        text = text.replace(f'data-{name}="no"', f'data-{name}="{"yes" if value else "no"}"', 1)
    return _file(text.encode(), "index.html")


def _sent(request: Request, file: File) -> Response:
    """Browsers keep it and ask whether it has changed: after an upgrade no one runs yesterday's page."""
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.type, headers=headers)


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """The page."""
    settings = request.app.state.server.settings
    return _sent(request, _index(settings.watch is not None, settings.keys is not None))


@router.api_route("/static/{name:path}", methods=["GET", "HEAD"])
async def static(name: str, request: Request) -> Response:
    """A file of the page."""
    file = files().get(name)
    if file is None:
        raise NotFound(f"/static/{name}: the page has no such file")
    return _sent(request, file)
