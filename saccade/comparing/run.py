"""A whole comparison: every row and seed in its own process, so that one that fails takes nothing else with it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from saccade.comparing.checks import check_rows
from saccade.comparing.figures import draw_figures
from saccade.comparing.plan import Plan, Row
from saccade.comparing.results import changed_files, read_result
from saccade.comparing.table import Line, lines_of, to_html, to_json, to_markdown
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import alone, write_text, writing

ELSEWHERE = "choose another --out"
Task = tuple[Row, int]  # a row and a seed
Failures = dict[tuple[str, int], str]


def compare(
    rows: Sequence[Row],
    plan: Plan,
    *,
    jobs: int,
    quality: float | None,
    speed: bool,
    display: Display,
    figures: bool = True,
) -> list[Line]:
    """Measure what is not measured yet, then write table.md, table.json, index.html and figures/ into `plan.out`.

    Interrupted, it still writes the tables of what is measured by then, without what takes long.
    """
    plan.check()
    check_rows(rows, plan)
    plan = plan.with_digests()
    tasks = [(row, seed) for row in rows for seed in row.seeds(plan)]
    _check_files(tasks, plan, display)
    if figures and find_spec("matplotlib") is None:  # said now, when it can still be installed in time
        display.say("there will be no figures, for matplotlib is not installed: pip install 'saccade[plots]'")
    with writing(plan.out, ELSEWHERE), alone(plan.out, ELSEWHERE):
        plan_path = plan.save()
        failures: Failures = {}
        try:
            failures |= _measure("quality", [[task] for task in tasks], plan, plan_path, jobs, display)
            if speed:  # of one after the other, when nothing else runs
                measured = [(row, plan.seeds[0]) for row in rows if (row.name, plan.seeds[0]) not in failures]
                failures |= _measure("speed", [measured], plan, plan_path, 1, display)
        except KeyboardInterrupt:
            _write(lines_of(rows, plan, failures, quality, paired=False), plan, {})
            display.say(f"{plan.out}/table.md: what is measured so far, without p")
            raise
        with display.task("significance", len(rows)) as progress:
            lines = lines_of(rows, plan, failures, quality, progress=progress)
        _write(lines, plan, {})  # the figures may want what is not installed here
        if figures:
            _write(lines, plan, _drawn(lines, plan, display))
        return lines


def _check_files(tasks: Sequence[Task], plan: Plan, display: Display) -> None:
    """Refuse to tell what was learned from other lines as if from these; what was only tested on them is done again."""
    tested, only_tested = set(), {*plan.test, *plan.gold_text, plan.gold} - {*plan.learned}
    for row, seed in tasks:
        for name in changed_files(row, seed, plan):
            if name not in only_tested and not row.trained and (folder := row.folder(plan, seed)).exists():
                raise SaccadeError(
                    f"{name}: holds something else than when {row.name} was trained; give it back what it held, "
                    f"choose another --out, or remove {folder} to train it again"
                )
            tested.add(name)
    for name in sorted(tested):
        display.say(f"{name}: holds something else than when rows were measured; they are measured again")


def _write(lines: Sequence[Line], plan: Plan, drawn: Mapping[str, Path]) -> None:
    out = Path(plan.out)
    write_text(out / "table.md", to_markdown(lines, plan))
    write_text(out / "table.json", to_json(lines, plan))
    write_text(out / "index.html", to_html(lines, plan, drawn))


def _drawn(lines: Sequence[Line], plan: Plan, display: Display) -> dict[str, Path]:
    """The figures; where nothing can draw them, that is said, and the tables stand without."""
    try:
        return draw_figures(lines, plan, Path(plan.out) / "figures")
    except SaccadeError as error:
        display.say(f"{error}; the tables are written, and the same command then draws and measures nothing again")
        return {}


def _measure(
    what: str, groups: Sequence[Sequence[Task]], plan: Plan, plan_path: Path, jobs: int, display: Display
) -> Failures:
    """Run what has no result yet, a process for each group and `jobs` at a time; what failed, and why."""
    failures: Failures = {}
    lacking = [[task for task in group if read_result(what, *task, plan) is None] for group in groups]
    wanted, total = sum(map(len, lacking)), sum(map(len, groups))
    if wanted < total:
        display.say(f"{what}: {total - wanted} of {total} are measured already")
    children: set[subprocess.Popen[bytes]] = set()
    stopped = threading.Event()
    environment = environment_of(min(jobs, wanted))

    def run(group: Sequence[Task]) -> None:
        """A process that ends before its last row has failed at the first row without a result; the rest go on."""
        while group and not stopped.is_set():
            first, seed = group[0]
            log = first.results(plan, seed) / f"{what}.log"
            status = _child(what, group, plan_path, log, children, environment)
            group = [task for task in group if read_result(what, *task, plan) is None]
            if group and not stopped.is_set():
                failures[group[0][0].name, group[0][1]] = _last_words(log, status)
                group = group[1:]

    tasks = [task for group in lacking for task in group]
    before = {task: _written(what, *task, plan) for task in tasks}
    with ThreadPoolExecutor(jobs) as pool, display.task(what, wanted) as progress, _ending(children, stopped):
        running = {pool.submit(run, group) for group in lacking if group}
        while running:
            ended, running = wait(running, timeout=1, return_when=FIRST_COMPLETED)
            for finished in ended:
                finished.result()
            for row, seed in [*tasks]:
                failed = failures.get((row.name, seed))
                if failed or _written(what, row, seed, plan) != before[row, seed]:
                    display.say(f"{what}: {row.name}, seed {seed}: {f'failed: {failed}' if failed else 'done'}")
                    tasks.remove((row, seed))
            progress(wanted - len(tasks))
    return failures


def _written(what: str, row: Row, seed: int, plan: Plan) -> int | None:
    """When a row's result was, which need not be of the plan as it stands now."""
    path = row.results(plan, seed) / f"{what}.json"
    return path.stat().st_mtime_ns if path.exists() else None


def environment_of(jobs: int) -> dict[str, str]:
    """Of rows so many of which run at a time: they share the cores, unless somebody has said otherwise."""
    shared = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    return shared | dict(os.environ)


def _child(
    what: str,
    group: Sequence[Task],
    plan_path: Path,
    log: Path,
    children: set["subprocess.Popen[bytes]"],
    environment: dict[str, str],
) -> int:
    """Measure the rows of a group in a process of their own; how it ended.

    Its standard input stays open for as long as this process lives, however that ends. In a session of its own it does
    not hear the terminal's Ctrl-C: the word to stop would then be the second, at which it stops without saving.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    named = json.dumps([[row.name, str(row.path), seed] for row, seed in group])
    command = [sys.executable, "-m", "saccade.comparing.measure", what, str(plan_path)]
    with (
        open(log, "wb") as file,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        ) as child,
    ):
        children.add(child)
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and its log says why
            child.stdin.write(named.encode() + b"\n")
            child.stdin.flush()
        child.wait()
        children.discard(child)
    return child.returncode


@contextmanager
def _ending(children: set["subprocess.Popen[bytes]"], stopped: threading.Event) -> Iterator[None]:
    """When the comparison is interrupted, tell the rows to save and stop; the same command goes on from there."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None
    try:
        yield
    except BaseException:
        stopped.set()
        for child in list(children):
            child.terminate()
        raise
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def _last_words(log: Path, status: int) -> str:
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    why = said[-1] if said else "it said nothing"
    if status < 0:
        memory = ", as the system does where memory runs out" if status == -signal.SIGKILL else ""
        why = f"ended by {signal.Signals(-status).name}{memory}; its last words: {why}"
    return f"{why} (status {status}; {log})"
