"""What tests of whole runs share: settings for seconds, a trained folder, the command line, children to kill."""

import asyncio
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import warm

# Kernels run by Triton's interpreter: asked for before anything imports triton, which making an optimizer does.
os.environ.setdefault("TRITON_INTERPRET", "1")

import saccade
from saccade.__main__ import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TINY = (
    "data.builtin_pairs=400",
    "data.valid_pairs=20",
    "model.width=32",
    "model.feed_forward=64",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "training.threads=1",
    "training.device=cpu",
    "training.tensorboard=false",
    "training.validate_bleu_pairs=0",
)

# Files with tests of many seconds. They go first, so that at the end no worker waits for another's long test.
LONG = ("test_docs.py", "test_resume.py", "test_compare.py", "test_export.py", "test_learning.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first; within a file, and among the others, the order stays."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Playwright's event loop counts as running in this thread; tests without a browser may want one of their own."""
    if "browser" in getattr(item, "fixturenames", ()):
        return (yield)
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return (yield)
    finally:
        asyncio._set_running_loop(loop)


class Done(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


Command = Callable[..., Done]
Start = Callable[..., BaseProcess]


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Settings of a run that is over in a second."""
    return list(TINY)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has learned to write something, if not the right thing. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("trained") / "en-de"
    saccade.train(
        *TINY,
        "model.dropout=0",
        "training.batch_tokens=512",
        "training.learning_rate=0.01",
        "training.max_steps=120",
        "training.validate_every=20",
        "training.validate_bleu_pairs=4",
        out=folder,
        quiet=True,
    )
    return folder


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of another family with the vocabulary of `trained`, which has seen the same pairs a few times."""
    folder = tmp_path_factory.mktemp("second") / "rnn-en-de"
    small = ("model.family=rnn", "model.width=24", "model.embedding=24", "training.learning_rate=0.01")
    others = [setting for setting in TINY if not setting.startswith("model.")]
    saccade.train(*others, *small, "training.max_steps=40", "training.batch_tokens=512", out=folder, quiet=True)
    return folder


@pytest.fixture(scope="session")
def command() -> Command:
    """The command line as `main` runs it, in this process: starting another takes seconds, most of them torch's."""

    def run(*arguments: object, stdin: bytes = b"") -> Done:
        before = sys.argv, sys.stdin, sys.stdout, sys.stderr
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
        sys.argv = ["saccade", *map(str, arguments)]
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"), out, err
        status: Any = 0
        try:
            main()
        except SystemExit as end:  # any other error is the traceback a user would see, and fails the test
            status = end.code or 0
        finally:
            sys.argv, sys.stdin, sys.stdout, sys.stderr = before
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return Done(status, *texts)

    return run


@pytest.fixture(scope="session")
def start() -> Start:
    """Starts `function(*arguments, **keywords)` in a process of its own, at once.

    It is forked from a server that has imported what training imports and has no threads, so that it can be killed
    twenty times in the time that `python -m saccade` takes to come up five times.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["saccade.api", "saccade.data.builtin", "torch._dynamo", "num2words", "babel.dates", "pytest"]
    )

    def run(function: Callable[..., object], *arguments: object, **keywords: object) -> BaseProcess:
        process = context.Process(target=function, args=arguments, kwargs=keywords, daemon=True)
        process.start()
        return process

    return run


@pytest.fixture(scope="session")
def clients() -> Iterator[Path]:
    """A folder with a `saccade` and a `python` that start at once; see `warm`. For the front of a shell's PATH."""
    with tempfile.TemporaryDirectory() as place:  # the address of a socket must be short
        folder, address = Path(place) / "bin", Path(place) / "socket"
        warm.write_clients(folder, address)
        line = [sys.executable, warm.__file__, str(address), str(folder)]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:  # ends with its stdin
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield folder


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """A real Chromium. Open a page with `browser.new_context()`, and close the context.

    Without one the tests that ask for it are skipped, where changes land (`CI`, `SACCADE_BROWSER=required`) they fail.
    """
    import chromium

    path = chromium.find()
    if path is None:
        (pytest.fail if chromium.required() else pytest.skip)(chromium.MISSING)
    with chromium.launched(path) as started:
        loop = asyncio._get_running_loop()
        yield started
        asyncio._set_running_loop(loop)
    asyncio._set_running_loop(None)
