"""Draws the pages of docs/inspect.md: python docs/images/look.py runs/en-de, a model of dates and numbers."""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import saccade
from saccade.analysis.look import look_at
from saccade.looking.page import look_page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))
import chromium  # noqa: E402

SENTENCE = "Saturday, December 20, 2014, 3:39 PM"
COLOURS = 224  # enough for flat drawings, and half of the bytes


def shoot(browser, page_text: str, name: str, theme: str, width: int, point=None) -> None:
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = context.new_page()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "look.html"
        path.write_text(page_text, encoding="utf-8")
        page.goto(path.as_uri())
        page.wait_for_selector(".heads[data-drawn]")
        if point:
            point(page)
        page.screenshot(path=HERE / name, full_page=True)
    context.close()
    Image.open(HERE / name).convert("RGB").quantize(COLOURS).save(HERE / name, optimize=True)
    print(name, (HERE / name).stat().st_size)


def point_at(row: int, column: int):
    def point(page) -> None:
        cells = page.locator(".map").first
        size = cells.evaluate("map => parseFloat(map.style.getPropertyValue('--size'))")
        cells.hover(position={"x": (column + 0.5) * size, "y": (row + 0.5) * size}, force=True)

    return point


def side_by_side(page) -> None:
    page.get_by_role("radio", name="Side by side").check()
    page.wait_for_timeout(200)


if __name__ == "__main__":
    look = look_at(saccade.load(sys.argv[1]), SENTENCE, n_best=4, name="en-de")
    with chromium.launched(chromium.find()) as browser:
        shoot(browser, look_page(look), "look-light.png", "light", 1240, point_at(1, 2))
        shoot(browser, look_page(look), "look-dark.png", "dark", 1240, side_by_side)
