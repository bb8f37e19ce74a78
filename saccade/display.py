"""What a person sees while something runs: lines, and a bar for whatever takes more than two seconds.

Where nobody looks on, as when what is said goes to a file, there is a line now and then in the place of a bar.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Seconds to a line: at least so many, then a share of those so far, at most so many.
LEAST, SHARE, MOST = 60.0, 0.1, 600.0


class Display:
    """Speaks on standard error, so that standard output stays what the command produces."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.quiet = quiet

    def say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def task(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show `what` while it lasts; call what is yielded with how many are done."""
        if self.quiet or not self.console.is_terminal:
            now_and_then = NowAndThen(self.say, what, total)
            yield lambda done: now_and_then(done)
            return
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        times = [TimeElapsedColumn(), *([TextColumn("left"), TimeRemainingColumn()] if total else [])]
        with Progress(*columns, *times, console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done: progress.update(task, completed=done)

    @contextmanager
    def training(self, total: int, done: int) -> Iterator[Callable[[int, str], None]]:
        """The bar of a training run; call what is yielded with the step and a short status."""
        if self.quiet or not self.console.is_terminal:
            yield NowAndThen(self.say, "training", total, done)
            return
        columns = [
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        ]
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task("training", total=total, completed=done, status="")
            yield lambda step, status: progress.update(task, completed=step, status=status)


class NowAndThen:
    """A line of how far something has come: after a minute, and then ever more rarely."""

    def __init__(self, say: Callable[[str], None], what: str, total: int | None, done: int = 0) -> None:
        self.say, self.what, self.total = say, what, total
        self.first = done
        self.began = time.monotonic()
        self.next = self.began + LEAST

    def __call__(self, done: int, status: str = "") -> None:
        now = time.monotonic()
        if now < self.next:
            return
        so_far = now - self.began
        self.next = now + min(max(LEAST, SHARE * so_far), MOST)
        line = f"{self.what}: {done:,}" + (f" of {self.total:,}" if self.total else "")
        line += f", {status}" if status else ""
        line += f"; {spell_time(so_far)} so far"
        if self.total and self.first < done <= self.total:
            line += f", {spell_time(so_far * (self.total - done) / (done - self.first))} left"
        self.say(line)


def spell_time(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'}"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
