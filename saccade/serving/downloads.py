"""Translated files that wait to be fetched: in memory, for some minutes, under names that nobody can guess."""

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from saccade.serving.problems import Busy


class Download(NamedTuple):
    """A file, and what to call it."""

    name: str
    content: bytes
    ending: str
    expires: float

    @property
    def disposition(self) -> str:
        """For a Content-Disposition header: the name is the sender's, so it is a name and nothing else."""
        plain = re.sub(r"[^A-Za-z0-9._\-]", "_", self.name)
        return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(self.name, safe='')}"


class Downloads:
    """At most so many bytes, each file for so long; the oldest leave first."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.seconds, self._clock = most, seconds, clock
        self._held: OrderedDict[str, Download] = OrderedDict()

    def put(self, content: bytes, ending: str, name: str) -> str:
        """Keep a file; gives the name that it can be fetched by."""
        if len(content) > self.most:
            raise Busy(f"the translated file has {len(content):,} bytes, more than are kept here; split the file", 60)
        self._sweep()
        token = secrets.token_urlsafe(32) + ending
        self._held[token] = Download(name, content, ending, self._clock() + self.seconds)
        while self.size > self.most:
            self._held.popitem(last=False)
        return token

    def get(self, token: str) -> Download | None:
        """The file of that name; None: there is none, or not any more."""
        self._sweep()
        return self._held.get(token)

    @property
    def size(self) -> int:
        return sum(len(download.content) for download in self._held.values())

    def _sweep(self) -> None:
        now = self._clock()
        while self._held and next(iter(self._held.values())).expires <= now:
            self._held.popitem(last=False)


def name_of(given: str, target: str, ending: str) -> str:
    """What to call the translation of a file that came by the name `given`: `report.docx` is `report_de.docx`."""
    stem = re.split(r"[/\\]", given)[-1].rpartition(".")[0]
    stem = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff\"<>:|?*]", "", stem).strip(" .")[:100]
    return f"{stem or 'translation'}_{target}{ending}"
