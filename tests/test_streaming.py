"""Lines are written as soon as they are ready, in order, in constant memory; a run that was killed goes on."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import Command, Start
from test_placeholders import untrained

import saccade
from benchmarks.streaming import File, watch
from saccade import SaccadeError
from saccade.__main__ import main
from saccade.commands.app import WINDOW
from saccade.data.lines import read_lines
from saccade.files import alone
from saccade.text.pipeline import Pipeline
from saccade.text.streaming import may_wait, resumed, window_of, windows
from saccade.text.work import TranslationWork

LINES = [f"March {1 + n % 28}, {1900 + n}{' or seventeen' * (n % 3)}" for n in range(150)]


def run_main(*arguments: str) -> None:
    sys.argv = ["saccade", *arguments]
    main()


def test_windows_begin_small_and_are_always_the_same() -> None:
    sizes = [len(window) for window in windows(iter(["x"] * 20_000), 4096)]
    assert sizes[:8] == [64, 128, 256, 512, 1024, 2048, 4096, 4096]
    assert sum(sizes) == 20_000
    assert [len(window) for window in windows(iter(["x"] * 5), 2)] == [2, 2, 1]
    assert list(windows(iter([]), 4096)) == []


@pytest.mark.parametrize("most", [1, 50, 64, 100, 4096])
def test_a_run_that_goes_on_finds_the_windows_of_the_run_that_was_not_stopped(most: int) -> None:
    lines = [str(n) for n in range(9000)]
    whole = list(windows(iter(lines), most))
    for done in (0, 1, 63, 64, 191, 192, 4031, 4032, 8127, 8128, 8999):
        begin, size = window_of(done, most)
        assert begin <= done < begin + size
        after = list(windows(iter(lines[begin:]), most, size=size))
        assert after == whole[-len(after) :]


def test_what_is_there_is_translated_without_waiting_for_more() -> None:
    read = threading.Event()

    def slow() -> Iterator[str]:
        yield from ("one", "two")
        assert read.wait(60), "the first two were not given out"
        yield "three"

    found = windows(slow(), 4096, waits=True)
    assert next(found) == ["one", "two"]
    read.set()
    assert list(found) == [["three"]]
    assert list(windows(iter([]), 4096, waits=True)) == []
    assert [len(window) for window in windows(iter(["x"] * 10), 4, waits=True)] == [4, 4, 2]


def test_a_reader_that_fails_is_heard() -> None:
    def broken() -> Iterator[str]:
        yield "one"
        raise SaccadeError("line 2: not UTF-8")

    found = windows(broken(), 4096, waits=True)
    assert next(found) == ["one"]
    with pytest.raises(SaccadeError, match="line 2"):
        next(found)


def test_files_never_wait_and_pipes_may(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    assert not may_wait(str(tmp_path / "file"))
    assert may_wait(str(tmp_path / "pipe"))
    assert not may_wait(str(tmp_path / "nothing"))


def test_a_person_who_types_is_answered_line_by_line(trained: Path) -> None:
    line = [sys.executable, "-m", "saccade", "translate", str(trained), "--beam", "1"]
    expected = saccade.load(trained).translate(["seventeen", "", "{x} one"], beam=1)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        for translation in expected:
            run.stdin.write(translation.source.encode() + b"\n")
            run.stdin.flush()
            assert run.stdout.readline().decode() == translation.text + "\n"
        assert run.poll() is None, "it waits for more"
        # A reader that goes away while the next line is waited for ends it without a cry.
        run.stdout.close()
        run.stdin.write(b"seventeen\n")
        run.stdin.flush()
        assert run.wait(timeout=60) != 0
        said = run.stderr.read()
        run.stdin.close()
    assert said == b""


def test_lines_are_yielded_before_the_last_batch_is_done(trained: Path) -> None:
    batches: list[int] = []
    lines = sorted(LINES[:12], key=len, reverse=True)
    stream = saccade.load(trained).stream(lines, batches.append, beam=1, batch_tokens=1)
    next(stream)
    assert len(batches) == 1
    assert len(list(stream)) == 11


def test_each_line_is_flushed_as_it_is_written(trained: Path, clients: Path, tmp_path: Path) -> None:
    """Read through a pipe while the command is still at work: the first lines come before the last are read."""
    os.mkfifo(tmp_path / "in")
    line = [str(clients / "saccade"), "translate", str(trained), "--beam", "1", "-i", str(tmp_path / "in")]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as run, open(tmp_path / "in", "w") as source:
        assert run.stdout is not None
        source.write("one\ntwo\n")
        source.flush()
        first = [run.stdout.readline() for _ in range(2)]
        source.write("three\n")
        source.close()
        rest = run.stdout.read()
    expected = [t.text + "\n" for t in saccade.load(trained).translate(["one", "two", "three"], beam=1)]
    assert (b"".join(first) + rest).decode() == "".join(expected)


@pytest.mark.parametrize("n_best", [None, "2"])
def test_a_run_killed_at_any_moment_goes_on_to_the_same_file(
    trained: Path, command: Command, start: Start, tmp_path: Path, n_best: str | None
) -> None:
    source, whole, out = tmp_path / "in", tmp_path / "whole", tmp_path / "out"
    partial = tmp_path / "out.partial"
    source.write_text("".join(line + "\n" for line in LINES * 4))
    options = ["--beam", n_best or "1", "--device", "cpu", *(["--n-best", n_best] if n_best else [])]
    assert command("translate", trained, "-i", source, "-o", whole, *options).status == 0
    arguments = ["translate", str(trained), "-i", str(source), "-o", str(out), "--resume", *options]
    killed, sizes = 0, [0]
    for lines in (1, 100, 200, 350):  # more than a window apart
        rows = lines * int(n_best or 1)
        run = start(run_main, *arguments)
        while run.is_alive() and (not partial.exists() or partial.read_bytes().count(b"\n") < rows):
            time.sleep(0.002)
        run.kill()
        run.join()
        killed += run.exitcode == -9
        assert not out.exists()
        sizes.append(partial.stat().st_size)
        # Whatever the disk had of the last line when the power went.
        with open(partial, "r+b") as file:
            file.truncate(max(sizes[-1] - rows % 7, 0))
    assert killed == 4
    assert sizes == sorted(sizes)
    assert sizes[-1] < whole.stat().st_size
    before = partial.read_bytes()
    assert command(*arguments).status == 0
    assert out.read_bytes() == whole.read_bytes()
    assert before.rpartition(b"\n")[0] in out.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "whole"]
    assert command(*arguments).status == 0, "a finished file is made again"
    assert out.read_bytes() == whole.read_bytes()


def test_what_is_done_is_not_translated_again(trained: Path, command: Command, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text("".join(line + "\n" for line in LINES[:70]))
    (tmp_path / "out.partial").write_text("kept\n" * 65 + "torn")
    assert command("translate", trained, "-i", source, "-o", out, "--beam", 1, "--resume").status == 0
    rows = out.read_text().splitlines()
    assert rows[:65] == ["kept"] * 65
    assert rows[65:] == [t.text for t in saccade.load(trained).translate(LINES[65:70], beam=1)]


def test_a_partial_file_is_counted_to_its_last_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saccade.text.streaming.BLOCK", 7)
    for text, whole in (("", 0), ("torn", 0), ("a\n", 1), ("a\nb", 1), ("a\n\n\nä long line indeed\nc\ntorn again", 5)):
        (tmp_path / "out.partial").write_text(text)
        with resumed(tmp_path / "out") as (_, done):
            assert done == whole
        assert (tmp_path / "out").read_text() == "".join(text.splitlines(keepends=True)[:whole])


@pytest.mark.parametrize(("lines", "done"), [(70, 70), (64, 64), (70, 64)])
def test_what_is_done_to_the_last_line_is_put_in_its_place(
    trained: Path, command: Command, tmp_path: Path, lines: int, done: int
) -> None:
    (tmp_path / "in").write_text("".join(line + "\n" for line in LINES[:lines]))
    (tmp_path / "out.partial").write_text("kept\n" * done)
    assert command("translate", trained, "-i", tmp_path / "in", "-o", tmp_path / "out", "--resume").status == 0
    rows = (tmp_path / "out").read_text().splitlines()
    assert rows[:done] == ["kept"] * done
    assert len(rows) == lines


@pytest.mark.parametrize(("lines", "done"), [(1, 3), (63, 64), (10, 192), (100, 5000)])
def test_a_source_that_is_shorter_than_what_is_done_is_refused(
    trained: Path, command: Command, tmp_path: Path, lines: int, done: int
) -> None:
    (tmp_path / "in").write_text("one\n" * lines)
    (tmp_path / "out.partial").write_text("eins\n" * done)
    refused = command("translate", trained, "-i", tmp_path / "in", "-o", tmp_path / "out", "--resume")
    assert refused.status == 2
    assert f"has {done:,} lines" in refused.err.replace("\n", " ")
    assert f"only {lines:,}" in " ".join(refused.err.split())
    assert not (tmp_path / "out").exists()


def test_resume_says_what_it_cannot_do(trained: Path, command: Command, tmp_path: Path) -> None:
    needs = command("translate", trained, "--resume", stdin=b"one\n")
    assert needs.status == 2
    assert "--resume needs a file to go on with" in needs.err
    (tmp_path / "out.partial").write_text("a\nb\nc\n")
    longer = command("translate", trained, "-o", tmp_path / "out", "--resume", stdin=b"one\n")
    assert longer.status == 2
    assert "has 3 lines, - only 1" in longer.err.replace("\n", "")
    assert (tmp_path / "out.partial").read_text() == "a\nb\nc\n"
    numbered = command("translate", trained, "-o", tmp_path / "out", "--resume", "--n-best", 2, stdin=b"one\n" * 9)
    assert numbered.status == 2
    assert "not written with --n-best" in numbered.err


def test_a_run_that_stops_leaves_its_lines_to_go_on_with(tmp_path: Path) -> None:
    def stopped() -> None:
        with resumed(tmp_path / "out") as (file, done):
            assert done == 0
            file.write("one\ntwo\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    with resumed(tmp_path / "out") as (file, done):
        assert done == 2
        file.write("three\n")
    assert (tmp_path / "out").read_text() == "one\ntwo\nthree\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def measure(path: str) -> None:
    """Translate 20,000 lines as the command does and write down the memory at each thousand."""
    pipeline = Pipeline(untrained("rnn cho", "search.max_length_factor=0.001", "search.max_length_extra=1"))
    memory, count = [], 0
    lines = (f"{n} {{x}}" if n % 50 == 0 else "ab" for n in range(20_000))
    for window in windows(lines, WINDOW):
        for _ in pipeline.stream(window):
            count += 1
            if count % 1000 == 0:
                memory.append(psutil.Process().memory_info().rss)
    Path(path).write_text(" ".join(map(str, memory)))


def test_memory_does_not_grow_with_the_file(start: Start, tmp_path: Path) -> None:
    run = start(measure, str(tmp_path / "memory"))
    run.join()
    memory = [int(value) for value in (tmp_path / "memory").read_text().split()]
    assert len(memory) == 20
    # The first windows grow to their full size; after them there are three more.
    assert max(memory[-4:]) - max(memory[-12:-8]) < 8 * 2**20


def test_going_on_with_a_file_holds_no_more_than_a_window(tmp_path: Path) -> None:
    source, done = tmp_path / "in", 100_000
    source.write_text("".join(f"line {n}\n" for n in range(done + 10)))
    (tmp_path / "out.partial").write_text("line\n" * done)
    tracemalloc.start()
    try:
        with resumed(tmp_path / "out") as (_, found):
            assert found == done
            number, size = window_of(done, WINDOW)
            assert number == 64 + 128 + 256 + 512 + 1024 + 2048 + 23 * 4096
            for window in windows(read_lines(source, number), WINDOW, size=size):
                assert window[0] == f"line {number}"
                number += len(window)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert number == done + 10
    assert peak < 2 * WINDOW * 128, "a window of short lines, and a block of bytes"


class Sentences(File):
    """A file of which every line is its number."""

    def __init__(self) -> None:
        super().__init__(["one"], ["eins"])

    def expected(self, number: int) -> str:
        return "ü" + str(number) + self._mark(number)  # cut in the middle of its first letter


def written(lines: list[str], path: Path, ends: int = 0) -> "subprocess.Popen[bytes]":
    """A process that writes lines, a little at a time, as a resumed translation does."""
    program = "import sys, time\nwith open(sys.argv[1], 'ab', 0) as out:\n"
    program += " for n, line in enumerate(sys.stdin.buffer.read().splitlines()):\n"
    program += "  out.write(line[:1]); n == 30 and time.sleep(0.2); out.write(line[1:] + bytes([10]))\n"
    program += f"sys.exit({ends})"
    run = subprocess.Popen([sys.executable, "-S", "-c", program, str(path)], stdin=subprocess.PIPE)
    assert run.stdin is not None
    run.stdin.write("\n".join(lines).encode())
    run.stdin.close()
    return run


def test_the_benchmark_of_long_files_sees_what_is_missing_and_what_is_out_of_place(tmp_path: Path) -> None:
    file, partial = Sentences(), tmp_path / "out.partial"
    right = [file.expected(n) for n in range(300)]
    for case, lines, ends, why in (
        ("right", right, 0, None),
        ("one is missing", [*right[:150], *right[151:]], 0, "line 201 of the output"),
        ("the last is missing", right[:-1], 0, "299 lines came of 300"),
        ("it failed", right[:50], 3, "ended with 3 after 50 lines"),
    ):
        partial.unlink(missing_ok=True)
        partial.touch()
        with written(lines, partial, ends) as run:
            if why is None:
                seen = watch(run, file, tmp_path / "out", 300, None)
                assert (seen.samples[-1].lines, seen.otherwise) == (300, 0), case
                continue
            with pytest.raises(SystemExit, match=why):
                watch(run, file, tmp_path / "out", 300, None)
    partial.write_text("".join(line + "\n" for line in right[:100]))
    before = partial.stat().st_size
    with written([right[100], "another", *right[102:]], partial) as run:
        seen = watch(run, file, tmp_path / "out", 300, None, before=100, skip=before)
    assert (seen.samples[-1].lines, seen.otherwise) == (300, 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--beam", "2"], "beam: "),
        (["--beam", "1", "--min-length", "3"], "min_length: "),
        (["--beam", "1", "--must", "Mai"], "always: "),
        (["--beam", "1", "--input", "another"], "input: "),
    ],
)
def test_a_file_is_not_gone_on_with_by_other_settings(
    trained: Path, command: Command, tmp_path: Path, options: list[str], named: str
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text("".join(line + "\n" for line in LINES[:70]))
    begin_with_settings(trained, out, beam=1)
    refused = command("translate", trained, "-i", source, "-o", out, "--resume", *options)
    assert refused.status == 2
    said = " ".join(refused.err.split())
    assert named in said
    assert "was begun with" in said
    assert (tmp_path / "out.partial").read_text() == "kept\n" * 65, "nothing of it is lost"
    assert command("translate", trained, "-i", source, "-o", out, "--resume", "--beam", 1).status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_file_is_not_gone_on_with_by_another_model(
    trained: Path, second: Path, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    (tmp_path / "in").write_text("".join(line + "\n" for line in LINES[:70]))
    begin_with_settings(folder, tmp_path / "out", beam=1)
    with open(folder / "model.safetensors", "r+b") as weights:  # trained anew in the same place
        weights.seek(-4, os.SEEK_END)
        weights.write(b"\x00\x00\x80\x3f")
    refused = command("translate", folder, "-i", tmp_path / "in", "-o", tmp_path / "out", "--resume", "--beam", 1)
    assert refused.status == 2
    assert "contents of" in refused.err
    assert "model.safetensors" in refused.err


def test_a_file_is_not_gone_on_with_by_another_list_of_words(trained: Path, command: Command, tmp_path: Path) -> None:
    source, out, words = tmp_path / "in", tmp_path / "out", tmp_path / "words"
    source.write_text("".join(line + "\n" for line in LINES[:70]))
    words.write_text("Mai Juni")
    begin_with_settings(trained, out, shortlist=str(words))
    words.write_text("Mai Juli")
    refused = command("translate", trained, "-i", source, "-o", out, "--resume", "--shortlist", words)
    assert refused.status == 2
    assert f"contents of {words}" in " ".join(refused.err.split())


@pytest.mark.parametrize("name", ["in", "model/config.yaml"])
def test_a_file_is_not_gone_on_with_by_other_lines_or_settings_in_a_file_of_the_same_name(
    trained: Path, command: Command, tmp_path: Path, name: str
) -> None:
    source, out, changed = tmp_path / "in", tmp_path / "out", tmp_path / name
    shutil.copytree(trained, tmp_path / "model")
    source.write_text("".join(line + "\n" for line in LINES[:70]))
    begin_with_settings(tmp_path / "model", out)
    changed.write_text(changed.read_text().replace("beam: 5", "beam: 3").replace(LINES[0], LINES[1], 1))
    refused = command("translate", tmp_path / "model", "-i", source, "-o", out, "--resume")
    assert refused.status == 2
    assert f"contents of {changed}" in " ".join(refused.err.split())
    assert (tmp_path / "out.partial").read_text() == "kept\n" * 65


def test_one_process_at_a_time_goes_on_with_a_file(trained: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\n")
    with alone(tmp_path / "out", "wait"):
        refused = command("translate", trained, "-i", tmp_path / "in", "-o", tmp_path / "out", "--resume")
    assert refused.status == 2
    assert f"process {os.getpid()} is at work there" in " ".join(refused.err.split())
    assert command("translate", trained, "-i", tmp_path / "in", "-o", tmp_path / "out", "--resume").status == 0


def begin_with_settings(folder: Path, out: Path, **search: object) -> None:
    """As a run leaves it that was killed after 65 lines."""
    told = TranslationWork((str(folder),), search=search).told(str(out.with_name("in")))
    with contextlib.suppress(KeyboardInterrupt), resumed(out, told=told) as (file, _):
        file.write("kept\n" * 65)
        raise KeyboardInterrupt
