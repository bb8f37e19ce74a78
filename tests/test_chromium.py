"""The browser of the tests: there or said to be missing, and in nobody's way."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import chromium
import pytest

PROBE = "def test_probe(browser):\n    assert browser.version\n"


def test_a_page_is_drawn_by_a_real_browser(browser):
    page = browser.new_context().new_page()
    page.set_content("<p>see</p>")
    assert page.inner_text("p") == "see"
    page.context.close()


def test_other_tests_may_run_event_loops_of_their_own():
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"


@pytest.mark.parametrize(("variable", "status", "said"), [("", 0, "1 skipped"), ("SACCADE_BROWSER", 1, "1 error")])
def test_without_a_browser_tests_are_skipped_in_one_line_or_fail_where_it_is_required(
    tmp_path: Path, variable: str, status: int, said: str
):
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport chromium\n"
        "chromium.find = lambda: None\n" + _fixture()
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "SACCADE_BROWSER")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # it starts sooner
    if variable:
        environment[variable] = "required"
    line = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == status, done.stdout
    assert said in done.stdout
    assert done.stdout.count("there is no Chromium") >= 1


def _fixture() -> str:
    """The fixture as it stands in this folder's conftest, without the rest, which imports torch."""
    import inspect

    import conftest

    return "import asyncio, pytest\n" + inspect.getsource(conftest.browser._get_wrapped_function())


@pytest.mark.parametrize("name", ["CI", "SACCADE_BROWSER"])
def test_where_changes_land_a_browser_is_required(monkeypatch, name):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("SACCADE_BROWSER", raising=False)
    assert not chromium.required()
    monkeypatch.setenv(name, "required")
    assert chromium.required()


def _installed(tmp_path: Path, apt: str) -> subprocess.CompletedProcess[str]:
    """`python tests/chromium.py` with no browser, nothing to download from, and this for a package manager."""
    (tmp_path / "apt-get").write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/asked\n{apt}\n")
    (tmp_path / "apt-get").chmod(0o755)
    environment = os.environ | {
        "PATH": str(tmp_path),
        "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "browsers"),
        "PLAYWRIGHT_DOWNLOAD_HOST": "http://127.0.0.1:9",
    }
    line = [sys.executable, chromium.__file__]
    return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install the system's package")
def test_the_systems_package_is_installed_where_there_is_no_browser(tmp_path: Path):
    browser = f"echo '#!/bin/sh' > {tmp_path}/chromium; /bin/chmod +x {tmp_path}/chromium"
    done = _installed(tmp_path, f"test $1 = update || {{ {browser}; }}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text().split("\n")[1].split()[-1] == "chromium"


def test_where_nothing_can_be_installed_one_line_says_what_is_skipped(tmp_path: Path):
    done = _installed(tmp_path, "exit 100")
    assert done.returncode == 1
    assert done.stderr == chromium.MISSING + "\n"
