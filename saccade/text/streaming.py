"""Lines in, lines out, as they come: windows of lines to translate together, and files that are gone on with.

What is held is a window, whatever the length of the file. A file is cut into windows at the same lines every time, so
that a run that was stopped and resumed translates the very batches of the run that was not.
"""

import json
import os
import queue
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from saccade.data.lines import STANDARD_INPUT
from saccade.errors import SaccadeError
from saccade.files import alone, flushed, read_json, write_text, writing

FIRST_WINDOW = 64  # lines: the first answers come soon, and the windows double until they are worth sorting by length
BLOCK = 1 << 16  # bytes of a partial file that are counted at once
LINGER = 0.1  # seconds that lines which come one by one are waited for, to be translated together


def windows(lines: Iterator[str], most: int, waits: bool = False, size: int = FIRST_WINDOW) -> Iterator[list[str]]:
    """Lines in groups of at most `most`; where the input may keep one waiting, what is there is a group.

    `size`: of the first; for lines that do not begin with the first of their file, see `window_of`.
    """
    if waits:
        yield from _arriving(lines, most)
        return
    size = min(size, most)
    while window := list(islice(lines, size)):
        yield window
        size = min(2 * size, most)


def window_of(line: int, most: int) -> tuple[int, int]:
    """Where the window that a line is in begins, and how many lines it may have; lines are numbered from 0."""
    begin, size = 0, min(FIRST_WINDOW, most)
    while size < most and begin + size <= line:
        begin, size = begin + size, min(2 * size, most)
    return begin + (line - begin) // size * size, size


def may_wait(path: str) -> bool:
    """Whether reading can wait for someone who writes: a terminal or a pipe, as opposed to a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if path == STANDARD_INPUT else os.stat(path).st_mode
    except (OSError, ValueError):  # not there, which is said when it is read, or a stand-in for standard input
        return False
    return not stat.S_ISREG(mode)


def _arriving(lines: Iterator[str], most: int) -> Iterator[list[str]]:
    """What has come when the last group is done, read by a thread that is never more than a window ahead."""
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(most)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:  # to be raised where the lines are used
            waiting.put(error)

    threading.Thread(target=read, daemon=True, name="reading").start()
    ended = False
    while not ended:
        window: list[str] = []
        until = None
        while len(window) < most:
            try:
                line = waiting.get(timeout=None if until is None else max(until - time.monotonic(), 0))
            except queue.Empty:
                break
            if isinstance(line, BaseException):
                yield from [window] if window else []
                raise line
            if line is None:
                ended = True
                break
            window.append(line)
            until = until or time.monotonic() + LINGER
        if window:
            yield window


@contextmanager
def resumed(path: Path, numbered: bool = False, told: Mapping[str, Any] | None = None) -> Iterator[tuple[IO[str], int]]:
    """A file to go on with: yields it, open at its end, and how many lines of the source are done.

    It lies beside as `path.partial`, and takes `path`'s place when all is done. A last line that was cut off is written
    again. With `numbered`, lines begin with the number of their source, which may have several: its last is done again.
    `told`: what its lines depend on, kept beside it; who goes on must have been told the same.
    """
    partial, note = path.with_name(path.name + ".partial"), path.with_name(path.name + ".partial.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path, "write to another file"):
        partial.touch()
        with open(partial, "r+b") as file:
            done, size = _complete(file, numbered)
            if told is not None:
                _tell(note, partial, told, begun=size > 0)
            file.truncate(size)
        with open(partial, "a", encoding="utf-8", newline="\n") as text:
            yield text, done
        with writing(path):
            flushed(partial)
            os.replace(partial, path)
            note.unlink(missing_ok=True)
            flushed(path.parent)


def _tell(note: Path, partial: Path, told: Mapping[str, Any], begun: bool) -> None:
    """Keep what a file is made by, or compare it with what it was begun by."""
    now = json.loads(json.dumps(told))
    if begun and note.exists():
        was = read_json(note, f"remove it to go on with {partial} all the same")
        differing = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if differing:
            name = differing[0]
            raise SaccadeError(
                f"{name}: {partial} was begun with {was.get(name)}, and now it is {now.get(name)}; tell it what it was "
                "begun with, or remove it to begin anew"
            )
    write_text(note, json.dumps(now, ensure_ascii=False, indent=1) + "\n")


def _complete(file: IO[bytes], numbered: bool) -> tuple[int, int]:
    """How many lines of the source a partial file holds the whole of, and how many bytes those are."""
    lines = size = read = 0
    if not numbered:
        while block := file.read(BLOCK):
            lines += block.count(b"\n")
            size = read + block.rfind(b"\n") + 1 if b"\n" in block else size
            read += len(block)
        return lines, size
    number, begin = b"", 0  # of the last source, and where its lines begin
    for line in file:
        if not line.endswith(b"\n"):
            break
        if (its := line.split(b" ", 1)[0]) != number:
            number, begin = its, size
        size += len(line)
    if number and not number.isdigit():
        raise SaccadeError(f"{file.name}: not written with --n-best; take the option off, or remove the file")
    return int(number or 0), begin
