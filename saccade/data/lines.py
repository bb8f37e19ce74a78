"""The lines of a text file, gzipped or not, and a sentence for whatever keeps it from being read.

A line ends at `\\n` and nowhere else: U+2028, form feeds and their kin are part of the text, so that line n of one file
always meets line n of the other.
"""

import difflib
import gzip
import io
import os
import shlex
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import cast

from saccade.errors import SaccadeError

STANDARD_INPUT = "-"

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
# Starts of files that are often taken for text, and what opens them.
_NOT_TEXT = {
    b"PK\x03\x04": "a zip archive; unpack it first with unzip",
    b"\xfd7zXZ\x00": "compressed with xz; decompress it first with xz -dk",
    b"BZh91AY&SY": "compressed with bzip2; decompress it first with bunzip2 -k",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; decompress it first with zstd -d",
    b"PAR1\x15": "a Parquet file; give it a name that ends in .parquet",
    b"\xff\xfe": "UTF-16 text; convert it with iconv -f utf-16 -t utf-8",
    b"\xfe\xff": "UTF-16 text; convert it with iconv -f utf-16 -t utf-8",
}


def read_lines(path: str | Path, skip: int = 0) -> Iterator[str]:
    """The lines of one text file, gzipped or not (`-`: standard input): as many as it has, blank ones too.

    One trailing `\\n` or `\\r\\n` is taken off each, and a byte order mark off the first. The first `skip` are passed
    over unread.
    """
    path = str(path)
    with bytes_of(path) as stream:
        head = stream.peek(4096)[:4096]
        _refuse_binary(path, head)
        if head.startswith(_BOM):
            stream.read(len(_BOM))
        deque(islice(stream, skip), maxlen=0)
        for number, raw in enumerate(stream, skip + 1):
            if raw.endswith(b"\n"):
                raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error) from None
            yield line


@contextmanager
def bytes_of(path: str) -> Iterator[io.BufferedReader]:
    """The bytes of a file or of standard input, unzipped where they begin as gzip does."""
    with ExitStack() as stack:
        try:
            if path == STANDARD_INPUT:
                stream = stack.enter_context(_standard_input())
                if not isinstance(stream, io.BufferedReader):  # a stand-in for standard input cannot peek
                    stream = io.BufferedReader(stream)
                    stack.callback(stream.detach)
            else:
                stream = stack.enter_context(open(path, "rb"))
            if stream.peek(2).startswith(_GZIP):
                stream = stack.enter_context(io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream))))
            yield stream
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise SaccadeError(
                f"{where_is(path)}: the gzip data is damaged or ends too early; copy or download it again "
                "(gzip -t tests a file)"
            ) from None
        except OSError as error:
            raise _unreadable(path, error) from None


def _standard_input() -> AbstractContextManager[io.BufferedReader]:
    """Standard input as a file of its own: a thread may wait in it while the program ends."""
    try:
        return open(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, ValueError):
        return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))


def check_readable(path: str) -> None:
    """Refuse a file that cannot be opened, before anything else is read."""
    try:
        if not Path(path).is_fifo():  # opening a pipe waits for its writer, and closing it ends the writer
            open(path, "rb").close()
    except OSError as error:
        raise _unreadable(path, error) from None


def empty(*paths: str) -> SaccadeError:
    """What to say of files without a line."""
    where = " and ".join(where_is(path) for path in paths)
    if any(map(is_pipe, paths)):
        return SaccadeError(f"{where}: nothing to read; a pipe can be read only once, a file again and again")
    return SaccadeError(f"{where}: empty; there is not one pair to read, check how it was made")


def is_pipe(path: str) -> bool:
    """True for what can be read only once."""
    return path == STANDARD_INPUT or Path(path).is_fifo()


def where_is(path: str) -> str:
    """A path as a person would say it."""
    return "standard input" if path == STANDARD_INPUT else path


def _unreadable(path: str, error: OSError) -> SaccadeError:
    if isinstance(error, FileNotFoundError):
        folder = Path(path).parent
        beside = os.listdir(folder) if os.access(folder, os.R_OK) else []
        near = difflib.get_close_matches(Path(path).name, beside, n=1, cutoff=0.6)
        remedy = f"did you mean {folder / near[0]}?" if near else "check the name and the folder"
        return SaccadeError(f"{path}: there is no such file; {remedy}")
    if isinstance(error, IsADirectoryError):
        return SaccadeError(f"{path}: a folder, not a file; name the files in it")
    if isinstance(error, PermissionError):
        return SaccadeError(f"{path}: no permission to read it; chmod +r {shlex.quote(path)} may help")
    return SaccadeError(f"{where_is(path)}: cannot be read: {error.strerror or error}; check the name")


def _refuse_binary(path: str, head: bytes) -> None:
    what = next((what for start, what in _NOT_TEXT.items() if head.startswith(start)), None)
    # A stray NUL is left to cleaning; no text has many.
    if what is None and head.count(0) >= 8 and head.count(0) > len(head) / 10:
        what = "binary, not text; give a text file in UTF-8"
    if what is not None:
        raise SaccadeError(f"{where_is(path)}: the file is {what}")


def _not_utf8(path: str, number: int, error: UnicodeDecodeError) -> SaccadeError:
    value = error.object[error.start]
    return SaccadeError(
        f"{where_is(path)}, line {number:,}, byte {error.start + 1:,} (0x{value:02X}): not UTF-8; "
        "if it is Latin-1, convert it with iconv -f latin1 -t utf-8"
    )
