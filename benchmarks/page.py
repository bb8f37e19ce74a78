"""How long the page takes to load, in a real Chromium, from a server on the loopback.

    python -m benchmarks.page runs/demo

Each load has a browser context of its own, so nothing is cached. Measured by the browser
(`PerformanceNavigationTiming`): from the start of the navigation to the first byte, to a document that can be used, and
to the end of the load event; and from there to the first translation of a text that is typed, which a model that is
loaded answers.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.common import Foreign
from benchmarks.serving import server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import ARGUMENTS, find

TIMES = {"first byte": "responseStart", "usable": "domContentLoadedEventEnd", "loaded": "loadEventEnd"}


def one_load(browser: Browser, url: str) -> dict[str, float]:
    context = browser.new_context()
    page = context.new_page()
    page.goto(url, wait_until="load")
    page.wait_for_function("() => performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
    timing = page.evaluate("() => performance.getEntriesByType('navigation')[0].toJSON()")
    start = time.perf_counter()
    page.fill("#source", "January 5, 2021")
    page.wait_for_function("() => document.querySelector('.output').innerText.trim().length > 5")
    found = {name: timing[field] for name, field in TIMES.items()}
    found["typed to translated"] = 1000 * (time.perf_counter() - start)
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with server(arguments.folder, arguments.threads) as running, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=list(ARGUMENTS))
        url = f"http://{running.host}:{running.port}/"
        one_load(browser, url)  # the model is loaded, and so are the browser's own parts
        foreign = Foreign()
        loads = [one_load(browser, url) for _ in range(arguments.loads)]
        version = browser.version
        browser.close()
    shown = {
        name: {
            "median ms": round(statistics.median(load[name] for load in loads)),
            "slowest ms": round(max(load[name] for load in loads)),
        }
        for name in loads[0]
    }
    print(json.dumps({"loads": len(loads), "Chromium": version, **shown, "share of others": round(foreign.share(), 3)}))


if __name__ == "__main__":
    main()
