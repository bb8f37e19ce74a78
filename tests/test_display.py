"""What is said of work that takes long, where somebody looks on and where it goes to a file."""

import io

import pytest
from rich.console import Console

from saccade import display
from saccade.display import Display


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand."""
    now = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def to_a_file():
    file = io.StringIO()
    return Display(console=Console(file=file, width=300)), file


def test_in_a_file_there_is_a_line_a_minute_with_what_is_left(clock):
    shown, file = to_a_file()
    with shown.task("translating", 1000) as progress:
        for done in range(0, 1000, 10):
            clock[0] += 1.5
            progress(done)
    first, second = file.getvalue().splitlines()
    assert first == "translating: 390 of 1,000; 60 seconds so far, 2 minutes left"
    assert second.startswith("translating: 790 of 1,000; 2 minutes so far, ")


def test_what_is_over_in_a_minute_says_nothing(clock):
    shown, file = to_a_file()
    with shown.task("reading", 3) as progress:
        clock[0] += 59
        progress(2)
    assert file.getvalue() == ""


def test_what_takes_days_says_little(clock):
    shown, file = to_a_file()
    with shown.training(100_000, 0) as bar:
        for step in range(100_000):
            clock[0] += 1.0
            bar(step, f"loss {step}")
    lines = file.getvalue().splitlines()
    assert 100 < len(lines) < 250
    assert all(line.startswith("training: ") and ", loss " in line for line in lines)


def test_a_run_that_is_gone_on_with_counts_its_own_steps(clock):
    shown, file = to_a_file()
    with shown.training(1000, 900) as bar:
        clock[0] += 60.0
        bar(950, "")
    assert file.getvalue() == "training: 950 of 1,000; 60 seconds so far, 60 seconds left\n"


def test_without_a_total_there_is_no_guess(clock):
    shown, file = to_a_file()
    with shown.task("reading") as progress:
        clock[0] += 100.0
        progress(5000)
    assert file.getvalue() == "reading: 5,000; 2 minutes so far\n"


def test_a_quiet_display_says_nothing(clock):
    file = io.StringIO()
    with Display(quiet=True, console=Console(file=file)).task("reading", 10) as progress:
        clock[0] += 1000.0
        progress(5)
    assert file.getvalue() == ""
