"""A file of any length: `saccade translate` holds a window of lines, whatever the file has.

    python -m benchmarks.streaming --lines 10000000 --minutes 15
    python -m benchmarks.streaming --lines 200000 --folder runs/demo
    python -m benchmarks.streaming --lines 200000 --pipe

A file of short built-in sentences is written to disk (`--pipe`: comes through a pipe instead) and translated by the
command as a user would type it, in a process of its own, greedily, by the folder that is named or by one that is
trained here in a minute or two. Its resident memory is read four times a second. Every line of the output is compared
with the translation of the same sentence in a file of its own, and every hundredth, which has its number in braces,
must have it again: so none is missing and none is out of place. `--minutes` stops the run; what is shown is then how
far it came.

Then `--resume`: a file of which the first half is done is gone on with, until a few thousand lines more are there. What
counts is when the first of them comes, beside the first line of a file that is begun.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.common import Foreign
from saccade.api import train
from saccade.data import builtin

SENTENCES = 20_000  # different ones; the file goes through them again and again, in an order of its own
STRIDE = 7919  # a prime that does not divide their number: neighbours differ, and each comes equally often
NUMBERED = 100  # every so manieth line has its number
TINY = (
    "data.builtin_pairs=40000",
    "data.valid_pairs=100",
    "model.width=48",
    "model.feed_forward=96",
    "model.heads=4",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0",
    "training.threads=1",
    "training.device=cpu",
    "training.batch_tokens=2048",
    "training.learning_rate=0.008",
    "training.max_steps=2500",  # so many that few lines lose a number, which takes longer to mend than to translate
    "training.validate_every=1250",
    "training.validate_bleu_pairs=0",
    "training.tensorboard=false",
)


class Sample(NamedTuple):
    """How a run stood at a moment."""

    lines: int
    seconds: float
    resident: float  # MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, help="stop after so many")
    parser.add_argument("--folder", type=Path, help="from English; left out: a tiny one is trained")
    parser.add_argument("--pipe", action="store_true", help="lines come through a pipe, which cannot be resumed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="a line of JSON at the end")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    with tempfile.TemporaryDirectory() as place:
        measure(Path(place), args)


def measure(place: Path, args: argparse.Namespace) -> None:
    folder = args.folder or tiny_folder(place / "tiny")
    pool = [source for source, _ in islice(builtin.pairs("en", "de", split="test"), SENTENCES)]
    print(f"translating {SENTENCES:,} sentences to compare with", file=sys.stderr)
    file = File(pool, translated_apart(folder, pool, place))
    source, foreign = place / "in.en", Foreign()
    if not args.pipe:
        write(source, (file.source(number) + "\n" for number in range(args.lines)))
    with started(folder, None if args.pipe else source, place / "out.de", resume=not args.pipe) as run:
        if args.pipe:
            feed(run, file, args.lines)
        main_run = watch(run, file, place / "out.de", args.lines, args.minutes)
    found: dict[str, Any] = {"lines asked for": args.lines, **main_run.summary()}
    table = Table(title="saccade translate", title_justify="left")
    for column in ("", "lines done", "seconds", "lines/s", "resident MB"):
        table.add_column(column, justify="right")
    for name, sample in main_run.marks().items():
        rate = sample.lines / sample.seconds if sample.seconds else 0.0
        table.add_row(name, f"{sample.lines:,}", f"{sample.seconds:,.0f}", f"{rate:,.0f}", f"{sample.resident:,.0f}")
    if not args.pipe:
        half, output = args.lines // 2, place / "half.de"
        size = write(place / "half.de.partial", (file.expected(number) + "\n" for number in range(half)))
        with started(folder, source, output, resume=True) as run:
            gone_on = watch(run, file, output, min(args.lines, half + 8192), 10.0, half, size)
        found["resumed"] = {"after lines": half, **gone_on.summary()}
        del found["resumed"]["marks"], found["resumed"]["resident MB at each twentieth"]
        end = gone_on.samples[-1]
        table.add_row(f"resumed after {half:,}", f"{end.lines:,}", f"{end.seconds:,.0f}", "", f"{end.resident:,.0f}")
    found["share of the CPU that others took"] = round(foreign.share(), 3)
    Console(width=110).print(table)
    say(found, args.lines, main_run)
    if args.json:
        print(json.dumps(found))


def say(found: dict[str, Any], asked: int, run: "Watched") -> None:
    done = run.samples[-1].lines
    print(
        f"{done:,} of {asked:,} lines done{'' if done == asked else ', then stopped'}; every one of them in its place"
    )
    print(f"{run.otherwise:,} lines differ from the same sentence translated in a file of its own")
    print(f"first line after {run.first:.1f} s; highest resident {run.highest:,.0f} MB")
    if "resumed" in found:
        resumed = found["resumed"]
        print(
            f"resumed after {resumed['after lines']:,} lines: next line after {resumed['first line after s']:.1f} s, "
            f"highest resident {resumed['highest resident MB']:,.0f} MB"
        )
    print(f"others took {found['share of the CPU that others took']:.0%} of the CPU")


class File:
    """The lines of the file, and what must come of each; nothing is held but the different sentences."""

    def __init__(self, sentences: Sequence[str], translations: Sequence[str]) -> None:
        self.sentences, self.translations = sentences, translations

    def source(self, number: int) -> str:
        return self.sentences[number * STRIDE % len(self.sentences)] + self._mark(number)

    def expected(self, number: int) -> str:
        return self.translations[number * STRIDE % len(self.sentences)] + self._mark(number)

    @staticmethod
    def _mark(number: int) -> str:
        return "" if number % NUMBERED else f" {{{number:09d}}}"  # as long at the end as at the beginning

    def check(self, number: int, line: str) -> bool:
        """Whether a line is what its sentence gives elsewhere; False where only the arithmetic may have differed."""
        if mark := self._mark(number).strip():
            if mark not in line:
                raise SystemExit(
                    f"line {number + 1:,} of the output is not that of the source: {line!r} without {mark}"
                )
            return True
        return line == self.expected(number)


class Watched:
    """What was seen of a run."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.highest = 0.0
        self.first = 0.0  # seconds until the first line that was not there before
        self.otherwise = 0  # lines that differ from those of the reference

    def marks(self) -> dict[str, Sample]:
        shown = {f"first {share:.0%}": self.after(share) for share in (0.01, 0.1, 0.25)}
        return shown | {"half": self.after(0.5), "three quarters": self.after(0.75), "end": self.samples[-1]}

    def after(self, share: float) -> Sample:
        """How it stood when this share of the lines that were done in the end was done."""
        return next(sample for sample in self.samples if sample.lines >= share * self.samples[-1].lines)

    def summary(self) -> dict[str, Any]:
        return {
            "first line after s": round(self.first, 2),
            "highest resident MB": round(self.highest, 1),
            "resident MB at each twentieth": [
                round(self.after(twentieth / 20).resident, 1) for twentieth in range(1, 21)
            ],
            "lines that differ": self.otherwise,
            "marks": {
                name: {
                    "lines": sample.lines,
                    "seconds": round(sample.seconds, 1),
                    "resident MB": round(sample.resident, 1),
                }
                for name, sample in self.marks().items()
            },
        }


def watch(
    run: subprocess.Popen[bytes],
    file: File,
    output: Path,
    most: int,
    minutes: float | None,
    before: int = 0,
    skip: int = 0,
) -> Watched:
    """Follow the output as it grows, line by line, until the command has ended, or time or lines are over.

    `before`: lines that are there already, in `skip` bytes.
    """
    seen, process, begin = Watched(), psutil.Process(run.pid), time.perf_counter()
    number, next_sample = before, 0.0
    for line in following(output, run, skip):
        now = time.perf_counter() - begin
        if line is not None:
            if number == before:
                seen.first = now
            seen.otherwise += not file.check(number, line)
            number += 1
        if now >= next_sample and run.poll() is None:
            sample = Sample(number, now, resident(process))
            next_sample = now + 0.25
            seen.highest = max(seen.highest, sample.resident)
            if number > before:
                seen.samples.append(sample)
        if (minutes is not None and now > 60 * minutes) or (before and number >= most):
            last = resident(process)
            break
    else:
        last = seen.samples[-1].resident if seen.samples else seen.highest
        if run.wait():
            raise SystemExit(f"saccade translate ended with {run.returncode} after {number:,} lines")
        if number != most:
            raise SystemExit(f"{number:,} lines came of {most:,}")
    seen.samples.append(Sample(number, time.perf_counter() - begin, last))
    return seen


def following(output: Path, run: subprocess.Popen[bytes], skip: int) -> Iterator[str | None]:
    """The lines that a command writes, None where there is none yet; they end with it."""
    if run.stdout is not None:
        for raw in run.stdout:
            yield raw.decode().removesuffix("\n")
        return
    partial = output.with_name(output.name + ".partial")
    while not partial.exists() and run.poll() is None:
        yield None
        time.sleep(0.01)
    path = partial if partial.exists() else output
    torn = b""  # what was read of a line, perhaps to the middle of a letter
    with open(path, "rb") as written:  # the same file when it has been renamed
        written.seek(skip)
        while True:
            over = run.poll() is not None  # asked before reading, so that what came last is read too
            while line := written.readline():
                torn += line
                if torn.endswith(b"\n"):
                    yield torn.decode().removesuffix("\n")
                    torn = b""
            if over:
                return
            yield None
            time.sleep(0.02)


def resident(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.NoSuchProcess:
        return 0.0


@contextmanager
def started(folder: Path, source: Path | None, output: Path, resume: bool) -> Iterator[subprocess.Popen[bytes]]:
    """The command at work; it is ended with the block."""
    line = [*command(folder), *(["-i", str(source), "-o", str(output), "--resume"] if resume else [])]
    pipe = None if resume else subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as run:
        try:
            yield run
        finally:
            run.kill()


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "saccade", "translate", str(folder), "--beam", "1", "--device", "cpu"]


def feed(run: subprocess.Popen[bytes], file: File, lines: int) -> None:
    """Lines come as fast as they are taken."""

    def write() -> None:
        assert run.stdin is not None
        try:
            for number in range(lines):
                run.stdin.write((file.source(number) + "\n").encode())
            run.stdin.close()
        except OSError:  # the run was stopped
            return

    threading.Thread(target=write, daemon=True).start()


def translated_apart(folder: Path, sentences: Sequence[str], place: Path) -> list[str]:
    """The translation of each sentence, by the same command."""
    write(place / "pool.en", (sentence + "\n" for sentence in sentences))
    subprocess.run([*command(folder), "-i", str(place / "pool.en"), "-o", str(place / "pool.de")], check=True)
    return (place / "pool.de").read_text(encoding="utf-8").split("\n")[:-1]


def write(path: Path, lines: Iterator[str]) -> int:
    """How many bytes it is then."""
    with open(path, "w", encoding="utf-8", newline="\n") as text:
        text.writelines(lines)
    return path.stat().st_size


def tiny_folder(folder: Path) -> Path:
    """A folder whose translations cost next to nothing, so that a long file can be gone through."""
    train(*TINY, out=folder, quiet=True)
    return folder


if __name__ == "__main__":
    main()
