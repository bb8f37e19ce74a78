"""The Chromium that browser tests run in: found, installed where there is none, launched.

`python tests/chromium.py` installs it: the system's package where it may, Playwright's own otherwise.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "browser tests are skipped: there is no Chromium; install the system's, or run: playwright install chromium"
ARGUMENTS = (
    "--no-sandbox",  # which root may not have; the pages are our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find() -> str | None:
    """The path of a Chromium that starts: the system's, else Playwright's."""
    for path in filter(None, map(shutil.which, NAMES)):
        # Some systems have a script of this name that only says how to install it.
        if subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def required() -> bool:
    """Whether a missing Chromium is a failure: where changes land, nothing is skipped in silence."""
    return os.environ.get("SACCADE_BROWSER") == "required" or bool(os.environ.get("CI"))


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


def install() -> None:
    """Try the system's package manager, then Playwright; that neither could is told in one line by who asked."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        for line in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if find() is None:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if find() is None:
        print("installing Chromium for the browser tests", flush=True)
        install()
    if find() is None:
        sys.exit(MISSING)
