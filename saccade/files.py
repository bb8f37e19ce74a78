"""Files that are there whole or not at all."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError

# A full disk, a quota, a read-only place, a file where a folder should be or the reverse: what a user can mend.
REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
REFUSED |= {errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


@contextmanager
def written_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes `path`'s place in one step, on failure it is gone.

    A reader (or a process killed at any moment) sees the old content or the new, never a part of either.
    Works for a file and, when `path` does not exist yet, for a folder the caller creates at the yielded path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The hidden, random name keeps two writers apart and lets a later run sweep up what a SIGKILL left.
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        part = scratch / path.name
        yield part
        if part.is_file():
            part.chmod(0o666 & ~_umask())  # some libraries make files that only their maker may read
        _flush_tree(part)
        os.replace(part, path)
        flushed(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def writing(path: str | Path, remedy: str = "write it somewhere else") -> Iterator[None]:
    """Name `path` when the system refuses to write there, and say what helps."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        where = "standard output" if str(path) == "-" else path
        raise SaccadeError(
            f"{where}: cannot be written: {error.strerror}; make room or give access there, or {remedy}"
        ) from error


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with written_atomically(path) as part:
        part.write_text(text, encoding="utf-8")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file; a damaged one is named, with the remedy."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SaccadeError(f"{path}: cannot be read ({error}); {remedy}") from None


@contextmanager
def alone(path: str | Path, remedy: str) -> Iterator[None]:
    """Refuse to be the second process of this machine that is at work on a file or a folder, which need not be there.

    The system holds the lock and drops it however this process ends; where there are no locks, nobody is refused.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    name = hashlib.sha256(os.fsencode(Path(path).resolve())).hexdigest()[:24]
    try:
        file = open(Path(tempfile.gettempdir()) / f"saccade-{os.getuid()}-{name}.lock", "a+")  # noqa: SIM115
    except OSError:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise SaccadeError(
                f"{path}: process {file.read() or '?'} is at work there; wait until it has ended, or {remedy}"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def digest(path: str | Path) -> str:
    """What a file holds, in 16 letters."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()[:16]


def remove_folder(folder: Path) -> None:
    """Take a folder away in one step: under a hidden name first, which a later run sweeps up if this one dies."""
    hidden = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def sweep_partials(folder: str | Path) -> None:
    """Remove what writers that were killed left in `folder`."""
    for scratch in Path(folder).glob(".*.partial"):
        shutil.rmtree(scratch, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _flush_tree(path: Path) -> None:
    """Make the bytes of a file, or of a folder and all that is in it, reach the disk."""
    if path.is_dir():
        for child in path.iterdir():
            _flush_tree(child)
    flushed(path)


def flushed(path: Path) -> None:
    """Make a file's bytes, or a folder's list of names, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
