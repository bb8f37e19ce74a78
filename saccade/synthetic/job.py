"""Pairs that a model makes of a corpus, window by window: constant memory, and a run that was stopped is gone on with.

Beside the growing files lies `OUT.job.json`: what the job is, how much of the corpus is done and how long the files
were then. It is written after each window, so whatever a kill leaves half-written is cut off, and the files end up the
same, byte for byte, as those of a run that was not stopped.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from saccade.config import CleaningConfig
from saccade.data.cleaning import CleaningReport, Dropped, Example, clean
from saccade.data.pairs import Corpus, Pair
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import digest, read_json, write_text
from saccade.folder import load
from saccade.synthetic.files import PairWriter, partial, put_in_place
from saccade.translator import Translator

WINDOW = 1024  # pairs made together, and the most that a kill costs

Make = Callable[[Sequence[Pair], Callable[[int], None]], Iterable[Pair | None]]


class Made(NamedTuple):
    """What came of a job."""

    paths: list[Path]
    read: int
    written: int
    unlike: int  # left out by the maker
    report: CleaningReport


@dataclass
class _Progress:
    mark: dict[str, Any]
    read: int = 0
    unlike: int = 0
    sizes: list[int] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    done: bool = False


@dataclass(frozen=True)
class _Window:
    name: str
    pairs: Sequence[Pair]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)


def run_job(
    corpora: Sequence[Corpus],
    make: Make,
    paths: list[Path],
    out: Path,
    mark: dict[str, Any],
    *,
    what: str,
    cleaning: CleaningConfig,
    prefix: str,
    display: Display,
) -> Made:
    """Write what `make` makes of the pairs of `corpora` to `paths`, from where an earlier run was stopped.

    `make(pairs, progress)` gives a pair for each, or None for one that is left out. What it makes is cleaned (nothing
    is remembered of other pairs: duplicates are left to training), and sources are written behind `prefix`. `mark`:
    what the job is, which must be the same to go on.
    """
    state = out.with_name(out.name + ".job.json")
    progress = _begin(state, paths, mark)
    if progress.read and not progress.done:
        display.say(f"{what}: going on after {progress.read:,} pairs ({state})")
    report = _report_of(progress.report)
    total = None if progress.done else sum(1 for corpus in corpora for _ in corpus) if _again(corpora) else None
    if not progress.done:
        with PairWriter(paths, progress.sizes) as writer, display.task(what, total) as bar:
            pairs = (pair for corpus in corpora for pair in corpus)
            for _ in islice(pairs, progress.read):
                pass
            while window := list(islice(pairs, WINDOW)):
                before = progress.read
                made = list(make(window, lambda done, before=before: bar(before + done)))  # type: ignore[misc]
                kept = [pair for pair in made if pair is not None]
                for source, target, _ in clean(_Window(what, kept), cleaning, report):
                    writer.write(prefix + source, target)
                progress.read += len(window)
                progress.unlike += len(made) - len(kept)
                progress.sizes, progress.report = writer.sizes(), report.to_dict()
                _save(state, progress)
                bar(progress.read)
        if not progress.read:
            raise SaccadeError(f"{', '.join(corpus.name for corpus in corpora)}: nothing to read")
        progress.done = True
        _save(state, progress)
    put_in_place(paths)
    state.unlink()
    return Made(paths, progress.read, report.kept, progress.unlike, report)


def load_writer(folders: str | Path | Sequence[str | Path], device: str | None, engine: str) -> Translator:
    """The folder, or the ensemble of folders, that is to write."""
    translator = load(folders, device, engine=engine)
    if translator.config.data.monolingual:
        raise SaccadeError(f"{folders}: is a language model, which translates nothing; name a folder of pairs")
    return translator


def file_mark(path: str | Path) -> list[Any]:
    """A file by its name and what it holds; one that was copied or touched is the same."""
    path = Path(path)
    return [str(path), digest(path)] if path.is_file() else [str(path)]


def _begin(state: Path, paths: Sequence[Path], mark: dict[str, Any]) -> _Progress:
    if not state.exists():
        for path in paths:
            if path.exists():
                raise SaccadeError(f"{path}: is there already; remove it, or choose another --out")
            partial(path).unlink(missing_ok=True)
        return _Progress(mark, sizes=[0] * len(paths))
    known = _Progress(**read_json(state, "remove it to begin anew"))
    mark = json.loads(json.dumps(mark))
    odd = next((name for name in mark if known.mark.get(name) != mark[name]), None)
    if odd is not None:
        _check_contents(known.mark.get(odd), mark[odd], state)
        raise SaccadeError(
            f"{state}: the job was begun with {odd}={known.mark.get(odd)!r}, now it is {mark[odd]!r}; give the same "
            "again to go on, remove the file to begin anew, or choose another --out"
        )
    return known


def _check_contents(before: Any, now: Any, state: Path) -> None:
    """Of files that are called what they were called, name the one that holds something else."""
    if isinstance(before, list) and [(name, len(m)) for name, *m in before] == [(name, len(m)) for name, *m in now]:
        for name in (mark[0] for mark in now if mark not in before):
            raise SaccadeError(
                f"{name}: does not hold what it held when the job was begun ({state}); put that back to go on, remove "
                f"{state} to begin anew, or choose another --out"
            )


def _save(state: Path, progress: _Progress) -> None:
    write_text(state, json.dumps(vars(progress), ensure_ascii=False, indent=1) + "\n")


def _again(corpora: Sequence[Corpus]) -> bool:
    """Whether the corpora can be walked through twice, once to count them."""
    from saccade.data.lines import is_pipe

    named = (getattr(corpus, name, "") for corpus in corpora for name in ("path", "source", "target"))
    return not any(is_pipe(str(path)) for path in named if path)


def _report_of(told: dict[str, Any]) -> CleaningReport:
    if not told:
        return CleaningReport()
    reasons = {
        reason: Dropped(dropped["count"], [Example(**example) for example in dropped["examples"]])
        for reason, dropped in told["dropped"].items()
    }
    return CleaningReport(told["read"], told["kept"], reasons)
