"""The page's files, as any client sees them."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from saccade.serving import page
from saccade.serving.app import create_app
from saccade.serving.server import Server


@pytest.fixture(scope="module")
def client(trained: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Server([trained])), base_url="http://127.0.0.1") as client:
        yield client


def test_the_page_and_all_that_it_needs_come_from_the_server(client: TestClient) -> None:
    body = client.get("/").text
    types = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    asked = re.findall(r'(?:href|src)="(static/[^"]+)"', body)
    assert len(asked) == 4
    for name in [*asked, *(f"static/labels/{code}.js" for code in ("en", "de", "fr", "zh"))]:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].split(";")[0] == types[name.rsplit(".")[-1]]
    assert not re.search(r"https?://(?!www\.w3\.org/)", body)


def test_the_script_holds_every_module_once_and_before_what_needs_it() -> None:
    modules = {path.stem for path in (page.STATIC / "page").glob("*.js")}
    script = page.script()
    placed = re.findall(r"^const \$(\w+) = \(", script, re.MULTILINE)
    assert sorted([*placed, "main"]) == sorted(modules)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    for name in modules:
        for needed in re.findall(r'from "\./(\w+)\.js"', (page.STATIC / "page" / f"{name}.js").read_text()):
            assert name == "main" or placed.index(needed) < placed.index(name)


def test_it_is_few_and_small_files() -> None:
    own = [file for name, file in page.files().items() if not name.startswith("look.")]
    assert len(own) < 12
    assert sum(len(file.body) for file in own) < 150_000


class _Inline(HTMLParser):
    """Finds what a strict content security policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attributes}
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [name for name in names if name == "style" or name.startswith("on")]


def test_nothing_in_the_page_needs_a_looser_policy(client: TestClient) -> None:
    parser = _Inline()
    parser.feed(client.get("/").text)
    assert parser.found == []
    for name, file in page.files().items():
        assert not re.search(rb"innerHTML|eval\(|new Function", file.body), name


def test_what_a_browser_has_is_not_sent_again(client: TestClient) -> None:
    for path in ("/", "/static/page.js", "/static/look.js"):
        first = client.get(path)
        assert first.headers["cache-control"] == "no-cache"
        again = client.get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "name", ["nothing.js", "../page.py", "%2e%2e/page.py", "index.html", "page/main.js", "labels", "/etc/passwd"]
)
def test_only_files_of_the_page_are_given(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404
