"""A whole comparison: every row and seed in its own process, so that one that fails takes nothing else with it."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from saccade.comparing.figures import draw_figures
from saccade.comparing.plan import Plan, Row
from saccade.comparing.results import fingerprint, read_result
from saccade.comparing.table import Line, lines_of, to_html, to_json, to_markdown
from saccade.display import Display
from saccade.files import write_text


def compare(rows: Sequence[Row], plan: Plan, *, jobs: int, quality: float | None, display: Display) -> list[Line]:
    """Measure what is not measured yet, then write table.md, table.json, index.html and figures/ into `plan.out`."""
    plan.check()
    plan_path = plan.save()
    tasks = [(row, seed) for row in rows for seed in row.seeds(plan)]
    failures = _measure("quality", tasks, plan, plan_path, jobs, display)
    # Speeds are taken one after the other, when nothing else runs.
    measured = [(row, plan.seeds[0]) for row in rows if (row.name, plan.seeds[0]) not in failures]
    failures |= _measure("speed", measured, plan, plan_path, 1, display)
    lines = lines_of(rows, plan, failures, quality)
    out = Path(plan.out)
    figures = draw_figures(lines, plan, out / "figures")
    write_text(out / "table.md", to_markdown(lines, plan))
    write_text(out / "table.json", to_json(lines, plan))
    write_text(out / "index.html", to_html(lines, plan, figures))
    return lines


def _measure(
    what: str, tasks: Sequence[tuple[Row, int]], plan: Plan, plan_path: Path, jobs: int, display: Display
) -> dict[tuple[str, int], str]:
    """Run the tasks that have no result yet, `jobs` at a time; what failed, and why."""
    failures: dict[tuple[str, int], str] = {}
    wanted = [(row, seed) for row, seed in tasks if read_result(what, row, seed, plan) is None]
    if done := len(tasks) - len(wanted):
        display.say(f"{what}: {done} of {len(tasks)} are measured already")
    children: set[subprocess.Popen[bytes]] = set()
    stopped = Event()

    def run(row: Row, seed: int) -> None:
        if stopped.is_set():
            return
        place = row.results(plan, seed)
        place.mkdir(parents=True, exist_ok=True)
        mark = fingerprint(row, plan)
        command = [sys.executable, "-m", "saccade.comparing.measure", what, plan_path, row.path, row.name, str(seed)]
        with open(place / f"{what}.log", "wb") as log:
            child = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT)
            children.add(child)
            status = child.wait()
            children.discard(child)
        if status == 0:
            write_text(place / f"{what}.mark", mark)
        elif not stopped.is_set():
            failures[row.name, seed] = _last_words(place / f"{what}.log", status)

    with ThreadPoolExecutor(jobs) as pool, display.task(what, len(wanted)) as progress, _ending(children, stopped):
        waiting = {pool.submit(run, row, seed): (row, seed) for row, seed in wanted}
        for count, finished in enumerate(as_completed(waiting), start=1):
            finished.result()
            row, seed = waiting[finished]
            failed = failures.get((row.name, seed))
            display.say(f"{what}: {row.name}, seed {seed}: {f'failed: {failed}' if failed else 'done'}")
            progress(count)
    return failures


@contextmanager
def _ending(children: set["subprocess.Popen[bytes]"], stopped: Event) -> Iterator[None]:
    """When the comparison is interrupted, tell the rows to save and stop; the same command goes on from there."""
    try:
        yield
    except BaseException:
        stopped.set()
        for child in list(children):
            child.terminate()
        raise


def _last_words(log: Path, status: int) -> str:
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    why = said[-1] if said else "it said nothing"
    return f"{why} (status {status}; {log})"
