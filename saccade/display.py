"""What a person sees while something runs: lines, and a bar for whatever takes more than two seconds."""

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
            yield lambda done: None
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
            yield lambda step, status: None
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
