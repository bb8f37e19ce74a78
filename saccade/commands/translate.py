"""`saccade translate`: one line in, one line out."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from saccade.commands.app import WINDOW, Device, Engine, Folder, OnRay, app
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.generation.ensemble import Mean
    from saccade.text.work import Task, TranslationWork, Written


@app.command()
def translate(
    folder: Folder,
    text: Annotated[str | None, typer.Argument(help="A file of text: the same as --input.")] = None,
    input: Annotated[str, typer.Option("--input", "-i", help="Text, one sentence a line; - is standard input.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write; - is standard output.")] = "-",
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept alive; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="α of Wu et al. 2016.")] = None,
    coverage_penalty: Annotated[float | None, typer.Option(help="β of Wu et al. 2016.")] = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="Write so many translations a sentence, as `number ||| text ||| log-probability`."),
    ] = None,
    device: Device = None,
    method: Annotated[str | None, typer.Option(help="beam, diverse (a beam in groups), sample or contrastive.")] = None,
    groups: Annotated[int | None, typer.Option(help="Groups of a diverse beam.")] = None,
    diversity: Annotated[float | None, typer.Option(help="How much the groups keep apart.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling: less than 1 is more careful.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from, or choose among, so many of the likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest of this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Sample from those at least so likely, beside the best.")] = None,
    typical: Annotated[float | None, typer.Option(help="Sample from the typical of this probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, other samples.")] = None,
    degeneration_penalty: Annotated[
        float | None, typer.Option(help="Contrastive search: how much to avoid what is like what was written.")
    ] = None,
    mbr: Annotated[
        int | None, typer.Option(help="Find so many candidates and choose by minimum Bayes risk (chrF).")
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with the same vocabulary, to write together; may be given more than once."),
    ] = None,
    ensemble_log: Annotated[
        bool, typer.Option("--ensemble-log", help="Take the mean of log-probabilities, not of probabilities.")
    ] = False,
    rerank: Annotated[
        Path | None, typer.Option(help="A second folder that judges what the beam has found, of any vocabulary.")
    ] = None,
    rerank_weight: Annotated[
        float | None, typer.Option(help="How much it says beside the first, which has 1. Default: as much.")
    ] = None,
    rerank_reverse: Annotated[
        bool, typer.Option("--rerank-reverse", help="It translates back: judge by log P(source | target).")
    ] = False,
    min_length: Annotated[int | None, typer.Option(help="Fewest pieces of a translation.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most pieces of a translation.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="No n-gram of so many pieces twice.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="θ of Keskar et al. 2019; 1 is none.")] = None,
    banned: Annotated[list[str] | None, typer.Option(help="A word never to write; may be given again.")] = None,
    must: Annotated[
        list[str] | None, typer.Option(help="A phrase that every line must hold; may be given again.")
    ] = None,
    shortlist: Annotated[str | None, typer.Option(help="A file of words: only their pieces are written.")] = None,
    prefix_column: Annotated[
        bool, typer.Option("--prefix-column", help="A line is `source TAB prefix`: how its translation begins.")
    ] = False,
    constraints_column: Annotated[
        bool,
        typer.Option(
            "--constraints-column", help="A line ends in columns of phrases that its translation must hold, one each."
        ),
    ] = False,
    guard: Annotated[
        bool | None,
        typer.Option("--guard/--no-guard", help="Decode again what repeats itself or runs on. Default: do."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split lines into sentences: auto (too long ones), always or never.")
    ] = None,
    protect: Annotated[
        str | None,
        typer.Option(help="What comes through untouched: tags,variables,urls,emails,numbers (default: all) or none."),
    ] = None,
    term: Annotated[
        list[str] | None, typer.Option(help="A word to leave as it is; may be given more than once.")
    ] = None,
    glossary: Annotated[
        Path | None, typer.Option(help="Terms with one translation: `source term<TAB>target term` lines.")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on with OUTPUT.partial, which a run with --resume leaves when it is stopped.")
    ] = False,
    engine: Engine = "auto",
    ray: OnRay = None,
) -> None:
    """Translate: one line in, one line out."""
    from saccade.data.corpora import read_lines
    from saccade.data.lines import STANDARD_INPUT
    from saccade.display import Display
    from saccade.files import writing
    from saccade.generation.columns import Columns
    from saccade.generation.guard import Tally
    from saccade.text.streaming import may_wait, window_of, windows
    from saccade.text.work import TranslationWork

    for option, given, needs, there in (
        ("--rerank-weight", rerank_weight is not None, "--rerank", rerank),
        ("--rerank-reverse", rerank_reverse, "--rerank", rerank),
        ("--ensemble-log", ensemble_log, "--ensemble", ensemble),
    ):
        if given and not there:
            raise SaccadeError(f"{option} says nothing without {needs}; name the folder with {needs}, or leave it out")
    mean: Mean = "log-probabilities" if ensemble_log else "probabilities"
    named = {
        "beam": beam,
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "n_best": n_best,
        "method": method,
        "groups": groups,
        "diversity": diversity,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical": typical,
        "seed": seed,
        "degeneration_penalty": degeneration_penalty,
        "mbr": mbr,
        "min_length": min_length,
        "max_length": max_length,
        "no_repeat_ngram": no_repeat_ngram,
        "repetition_penalty": repetition_penalty,
        "banned": banned or None,
        "shortlist": shortlist,
        "guard": guard,
        "split": split,
        "protect": None if protect is None else [kind for kind in protect.split(",") if kind not in ("", "none")],
        "terms": term,
    }
    search: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    work = TranslationWork(
        folders=tuple(map(str, [folder, *(ensemble or [])])),
        device=device,
        mean=mean,
        engine=engine,
        rerank=None
        if rerank is None
        else (str(rerank), 1.0 if rerank_weight is None else rerank_weight, rerank_reverse),
        glossary=None if glossary is None else str(glossary),
        columns=Columns(prefix_column, constraints_column, tuple(must or ())),
        search=search,
    )
    guarded = Tally()
    if text and " " in text and not Path(text).exists():
        remedy = f"echo {shlex.quote(text)} | saccade translate {folder}"
        raise SaccadeError(f"{text}: there is no such file; to translate the sentence: {remedy}")
    source, number = text or input, 0
    typed = source == "-" and sys.stdin.isatty()  # a bar would stand in the way of what a person types

    def waiting(done: int) -> "Iterator[Task]":
        """Windows that were not written before the run was stopped."""
        nonlocal number
        # What comes but once cannot be counted afterwards, so it is read line by line.
        waits = may_wait(source)
        skip, size = window_of(0 if waits or source == STANDARD_INPUT else done, WINDOW)
        number = skip
        for window in windows(read_lines(source, skip), WINDOW, waits, size):
            begin, number = number, number + len(window)
            if number > done:
                yield begin, window
        if skip and number == skip:  # it ends there, or before
            number = sum(1 for _ in read_lines(source))

    with (
        writing(output),
        _worker(work, ray) as translated,
        _output(output, work.told(source) if resume else None, numbered=bool(n_best)) as (file, done),
        Display(quiet=typed).task("translating") as progress,
    ):
        for i, written in translated(waiting(done), progress):
            guarded.count(i + 1, written.notes)
            if i >= done:
                file.write(written.text)
                file.flush()
        if number < done:
            raise SaccadeError(
                f"{output}.partial has {done:,} lines, {source} only {number:,}: it was made from another file; "
                "remove it to begin anew"
            )
    if said := guarded.summary(number):
        typer.echo(said, err=True)


Translated = Callable[[Iterable["Task"], Callable[[int], None]], Iterator[tuple[int, "Written"]]]


@contextmanager
def _worker(work: "TranslationWork", ray: str | None) -> Iterator[Translated]:
    """What translates windows, in this process or on a cluster: the number of each line, and what to write for it."""
    from saccade.display import Display
    from saccade.distributed.on_ray import on_ray

    if ray is None:
        opened = work.open()
        if opened.note is not None:
            Display().say(opened.note)

        def here(tasks: "Iterable[Task]", progress: Callable[[int], None]) -> Iterator[tuple[int, "Written"]]:
            for task in tasks:
                yield from enumerate(opened.stream(task, partial(_shown, progress, task[0])), start=task[0])

        yield here
        return
    _require_all(work.folders)
    with on_ray(ray) as cluster:

        def there(tasks: "Iterable[Task]", progress: Callable[[int], None]) -> Iterator[tuple[int, "Written"]]:
            begins: list[int] = []
            for results in cluster.pool(work.open, _noted(tasks, begins)):
                begin = begins.pop(0)
                yield from enumerate(results, start=begin)
                progress(begin + len(results))

        yield there


def _require_all(folders: Iterable[str]) -> None:
    # Said here, before machines are asked.
    from saccade.folder import require

    for folder in folders:
        require(Path(folder))


def _noted(tasks: "Iterable[Task]", begins: list[int]) -> "Iterator[Task]":
    """The tasks, with the beginning of each kept."""
    for task in tasks:
        begins.append(task[0])
        yield task


def _shown(progress: Callable[[int], None], before: int, done: int) -> None:
    progress(before + done)


@contextmanager
def _output(output: str, told: dict[str, Any] | None, numbered: bool) -> Iterator[tuple[IO[str], int]]:
    """What to write to, as UTF-8 with \\n whatever the locale says, and how many lines of the source are done.

    `told`: what its lines depend on, if it is to be gone on with.
    """
    from saccade.files import written_atomically
    from saccade.text.streaming import resumed

    # A pipe or a device is written to; only a file is put in place whole.
    if output == "-" or (Path(output).exists() and not Path(output).is_file()):
        if told is not None:
            raise SaccadeError(f"--resume needs a file to go on with, not {output}; name one with --output")
        if output == "-":
            yield _utf8(sys.stdout), 0
            return
        with open(output, "w", encoding="utf-8", newline="\n") as file:
            yield file, 0
    elif told is not None:
        with resumed(_resolved(output), numbered, told) as going_on:
            yield going_on
    else:
        with written_atomically(_resolved(output)) as path, open(path, "w", encoding="utf-8", newline="\n") as file:
            yield file, 0


def _resolved(path: str) -> Path:
    """The file that a link leads to: it is the one to replace."""
    return Path(path).resolve() if Path(path).is_symlink() else Path(path)


def _utf8(stream: Any) -> IO[str]:
    stream.reconfigure(encoding="utf-8", newline="\n")
    return stream
