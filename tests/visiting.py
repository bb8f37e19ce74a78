"""A page of the server, visited: what browser tests of it share."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from served import serving

import saccade
from saccade.translator import Translator

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TEXT = "Tuesday, July 13, 2094"
OTHER = "Sunday, September 11, 2067"
WORDS = ".pane:not([hidden]) .output .word[role]"

Open = Callable[..., "Page"]


class World:
    """What the server of this module has."""

    def __init__(self, url: str, watched: Path, first: Translator, second: Translator) -> None:
        self.url, self.watched, self.first, self.second = url, watched, first, second


@pytest.fixture(scope="module")
def world(trained: Path, second: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three models: a Transformer, an RNN, and one that says it goes the other way; and a run to watch."""
    place = tmp_path_factory.mktemp("world")
    back, watched = place / "de-en", place / "run"
    for copy in (back, watched):
        shutil.copytree(trained, copy)
    (watched / "record.json").unlink()  # a run writes it at its end
    config = yaml.safe_load((back / "config.yaml").read_text())
    config["data"] |= {"source": "de", "target": "en"}
    (back / "config.yaml").write_text(yaml.safe_dump(config))
    with serving(trained, second, back, watch=watched, max_characters=5_000) as served:
        yield World(f"{served.url}/", watched, saccade.load(trained), saccade.load(second))


@pytest.fixture
def visit(browser: "Browser", world: World) -> Iterator[Open]:
    """Opens the page. At the end nothing has gone wrong in it, and nothing was asked of any other place."""
    contexts: list[Any] = []
    said: list[str] = []
    refused: list[bool] = []

    def visit(
        view: str = "#translate", *, url: str = "", troubled: bool = False, ready: bool = True, **options: Any
    ) -> "Page":
        """`troubled`: answers with errors are part of the test, and the console speaks of them."""
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}, "locale": "en"} | options))
        context.set_default_timeout(10_000)
        contexts.append(context)
        refused.append(troubled)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => console.error('CSP: ' + event.violatedDirective))"
        )
        page: Page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda asked: said.append(asked.url) if not at_home(asked.url) else None)
        page.goto((url or world.url) + view)
        if ready:
            page.wait_for_selector("body[data-ready]")
        return page

    yield visit
    for context in contexts:
        context.close()
    if any(refused):
        said = [line for line in said if not line.startswith("Failed to load resource")]
    assert said == []


def at_home(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:", "data:"))


def go(page: "Page", view: str) -> None:
    """Clicks on a view and waits until it is the one that is shown."""
    page.click(f"nav a[data-view={view}]")
    page.wait_for_selector(f"body[data-view={view}]")


def write(page: "Page", text: str) -> None:
    """Types a text and waits until its translation is whole."""
    page.fill("#source", text)
    settled(page)


def settled(page: "Page", pane: int = 0) -> None:
    page.wait_for_function(
        "pane => { const each = document.querySelectorAll('.pane')[pane].querySelector('.output');"
        " return each.getAttribute('aria-busy') === 'false' && each.querySelector('.word[role]') }",
        arg=pane,
    )


def shown(page: "Page", pane: int = 0) -> str:
    return page.locator(".pane").nth(pane).locator(".output").inner_text().strip()


def lit(page: "Page", place: str) -> list[str]:
    return page.eval_on_selector_all(f"{place} .word.lit", "spans => spans.map((span) => span.textContent)")
