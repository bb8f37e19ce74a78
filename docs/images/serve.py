"""Pictures of the page: python docs/images/serve.py runs/demo runs/rnn, two models of dates and numbers."""

import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))
import chromium  # noqa: E402
from served import serving  # noqa: E402

SENTENCE = "Tuesday, March 30, 2021, 9:12 AM"
COLOURS = 224  # enough for flat drawings, and half of the bytes
WORD = ".output .word[role] >> nth=2"


def look(page) -> None:
    page.click(".see >> visible=true")
    page.wait_for_selector(".saccade-look canvas")
    page.hover(WORD)


def compare(page) -> None:
    page.click("nav a[data-view=compare]")
    page.wait_for_selector(".pane >> nth=1 >> .output .word[role]")
    page.hover(WORD)


def alternatives(page) -> None:
    page.click(WORD)
    page.wait_for_selector("#choices button")


def several(page) -> None:
    page.click(".more >> visible=true")
    page.wait_for_selector(".best li")
    page.hover(WORD)


PICTURES = {
    "serve-desktop-light.png": ((1440, 900), "light", look),
    "serve-desktop-dark.png": ((1440, 900), "dark", compare),
    "serve-phone-light.png": ((390, 844), "light", alternatives),
    "serve-phone-dark.png": ((390, 844), "dark", several),
}


def shoot(browser, url: str, name: str) -> None:
    (width, height), theme, act = PICTURES[name]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, locale="en")
    page = context.new_page()
    page.goto(url)
    page.fill("#source", SENTENCE)
    page.wait_for_selector(WORD)
    act(page)
    page.wait_for_timeout(700)
    page.screenshot(path=HERE / name)
    context.close()
    Image.open(HERE / name).convert("RGB").quantize(COLOURS).save(HERE / name, optimize=True)
    print(name, (HERE / name).stat().st_size)


if __name__ == "__main__":
    with serving(*map(Path, sys.argv[1:])) as served, chromium.launched(chromium.find()) as browser:
        for name in PICTURES:
            shoot(browser, served.url, name)
