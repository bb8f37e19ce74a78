"""Zip files from strangers, read within limits and written anew.

What the headers say is not believed: bytes are counted as they are unpacked. Members are never written to disk, and one
within another is never opened.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from saccade.errors import SaccadeError
from saccade.text.rows import Work

_CHUNK = 1 << 16
_ENTRY = b"PK\x01\x02"  # begins each entry of the list of members
RATIO = 250  # bytes from one: the best that text does is a tenth of it
_SMALL = 1 << 20  # below this, any ratio will do


class Limits(NamedTuple):
    """How much of a file is read."""

    unpacked: int = 64 * 2**20  # bytes
    members: int = 2_000
    tags: int = 500_000  # in one member


def translated_archive(
    data: bytes, limits: Limits, wanted: Callable[[str], bool], member: Callable[[str, bytes], Work[bytes]]
) -> Work[bytes]:
    """The same file with the members that are `wanted` translated by `member`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for info, content in _read(data, limits):
            fresh = zipfile.ZipInfo(info.filename, info.date_time)
            fresh.compress_type, fresh.external_attr = info.compress_type, info.external_attr
            new.writestr(fresh, (yield from member(info.filename, content)) if wanted(info.filename) else content)
    return out.getvalue()


def _read(data: bytes, limits: Limits) -> list[tuple[zipfile.ZipInfo, bytes]]:
    found: list[tuple[zipfile.ZipInfo, bytes]] = []
    room = limits.unpacked
    with _refusing(), zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in _members(archive, limits):
            found.append((info, _content(archive, info, room)))
            room -= len(found[-1][1])
    return found


def _members(archive: zipfile.ZipFile, limits: Limits) -> list[zipfile.ZipInfo]:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(infos) > limits.members:
        raise SaccadeError(f"the file has {len(infos):,} members, more than {limits.members:,}; split it")
    if len(set(names)) < len(names):
        raise SaccadeError("the file has two members of one name; save it again with the program that made it")
    for info in infos:
        parts = re.split(r"[/\\]", info.filename)
        if ".." in parts or parts[0] == "" or re.search(r"[\x00-\x1f\\:]", info.filename):
            raise SaccadeError(f"the file has a member with the name {info.filename[:60]!r}, which is not taken")
        if info.flag_bits & 0x1:
            raise SaccadeError("the file is locked by a password; save it without one")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise SaccadeError(f"{info.filename}: is packed in an unusual way; save the file again")
    return infos


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, room: int) -> bytes:
    content = bytearray()
    most = min(room, max(_SMALL, RATIO * info.compress_size))
    with archive.open(info) as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            if len(content) > most:
                raise SaccadeError(
                    f"{info.filename}: unpacks to more than {most:,} bytes, which is more than is taken; split the file"
                )
    return bytes(content)


@contextmanager
def _refusing() -> Iterator[None]:
    """A damaged file is the sender's to mend."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise SaccadeError(f"the file is damaged, or not what its name says ({error}); save it again") from None


def check_count(data: bytes, limits: Limits) -> None:
    """Before the list of members is read, which takes memory: is it short enough?"""
    if data.count(_ENTRY) > limits.members:
        raise SaccadeError(f"the file has more than {limits.members:,} members; split it")
