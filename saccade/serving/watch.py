"""A run that is training, live: its log as it grows, and a few sentences translated anew with every checkpoint."""

import asyncio
import json
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from saccade.data.store import Store
from saccade.errors import SaccadeError
from saccade.files import read_json
from saccade.folder import LOG, RECORD, WEIGHTS, load
from saccade.serving.schemas import WatchEvent
from saccade.training.checkpoint import checkpoints
from saccade.translator import Translator

log = logging.getLogger("saccade.serving")

EVERY = 1.0  # seconds between two looks at the folder
SENTENCES, LETTERS = 4, 120  # translated anew; no longer than this, to be seen at a glance
ROWS = 20_000  # of the log that are kept
MOMENTS = 12  # checkpoints whose translations are kept


class Watch:
    """Looks at a folder while the server runs; any number may follow what it sees."""

    def __init__(self, folder: Path, on_ready: Callable[[Path], None], every: float = EVERY) -> None:
        """`on_ready` is called once the folder translates."""
        self.folder, self.on_ready, self.every = folder, on_ready, every
        self.rows: deque[dict[str, Any]] = deque(maxlen=ROWS)
        self.samples: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()  # of each checkpoint, by its name
        self.ended = self.dismissed = False
        self._read, self._inode = 0, 0
        self._followers: set[asyncio.Queue[WatchEvent | None]] = set()
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Look, again and again."""
        while True:
            try:
                await self.look()
            except (SaccadeError, OSError, ValueError) as error:  # half written: the next look sees it whole
                log.info("watch", extra={"fields": {"folder": str(self.folder), "why": str(error)}})
            await asyncio.sleep(self.every)

    async def look(self) -> None:
        """Take in what is new."""
        for row in await asyncio.to_thread(self._new_rows):
            self.rows.append(row)
            self._tell(WatchEvent(kind="log", row=row))
        if not (self.folder / WEIGHTS).exists():
            return
        self.on_ready(self.folder)
        for place in checkpoints(self.folder / "resume")[-MOMENTS:]:
            if place.name not in self._seen:
                self._seen.add(place.name)
                made = await asyncio.to_thread(self._translate, place)
                self.samples[place.name] = made
                while len(self.samples) > MOMENTS:
                    self.samples.popitem(last=False)
                for row in made:
                    self._tell(WatchEvent(kind="sample", row=row))
        ended = await asyncio.to_thread(self._is_over)
        if ended and not self.ended:
            self._tell(WatchEvent(kind="end", row={"step": self._last_step()}))
        self.ended = ended

    async def follow(self) -> AsyncGenerator[WatchEvent, None]:
        """All that was seen so far, then what is new, to the end of the run or until all are dismissed."""
        inbox: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        past = [WatchEvent(kind="log", row=row) for row in self.rows]
        past += [WatchEvent(kind="sample", row=row) for rows in self.samples.values() for row in rows]
        if self.ended:
            past.append(WatchEvent(kind="end", row={"step": self._last_step()}))
        self._followers.add(inbox)
        try:
            for event in past:
                yield event
            while not self.dismissed and (not self.ended or not inbox.empty()):
                if (told := await inbox.get()) is None:
                    return
                yield told
        finally:
            self._followers.discard(inbox)

    def dismiss(self) -> None:
        """Send everyone away: the server is about to stop, and a run may be silent for long."""
        self.dismissed = True
        for inbox in self._followers:
            inbox.put_nowait(None)

    def _tell(self, event: WatchEvent) -> None:
        for inbox in self._followers:
            inbox.put_nowait(event)

    def _last_step(self) -> int:
        return max((int(row.get("step", 0)) for row in self.rows), default=0)

    def _new_rows(self) -> list[dict[str, Any]]:
        """Lines that were added; all of them, if the file was written anew (a run that goes on drops some)."""
        path = self.folder / LOG
        if not path.exists():
            return []
        stat = path.stat()
        if stat.st_ino != self._inode or stat.st_size < self._read:
            self._inode, self._read = stat.st_ino, 0
            self.rows.clear()
        with open(path, "rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]  # the last line may still be being written
        self._read += len(whole)
        return [row for line in whole.splitlines() if isinstance(row := json.loads(line), dict)]

    def _is_over(self) -> bool:
        """Whether the run has written down how it went, after the last step of the log."""
        path = self.folder / RECORD
        if not path.exists() or not self.rows:
            return False
        return int(read_json(path, "wait for the run").get("steps", -1)) >= self._last_step()

    def _translate(self, place: Path) -> list[dict[str, Any]]:
        """The sentences as the weights of a checkpoint translate them."""
        translator = load(self.folder, "cpu", weights=place / WEIGHTS)
        pairs = self._pairs(translator)
        step = int(place.name.removeprefix("step-"))
        made = []
        for (source, reference), translation in zip(
            pairs, translator.stream([source for source, _ in pairs]), strict=True
        ):
            attention = translation.word_attention
            made.append(
                {
                    "step": step,
                    "source": source,
                    "reference": reference,
                    "translation": translation.text,
                    "score": translation.score,
                    "source_words": translation.source_words,
                    "target_words": translation.target_words,
                    "attention": [] if attention is None else attention.round(4).tolist(),
                }
            )
        return made

    def _pairs(self, translator: Translator) -> list[tuple[str, str]]:
        """A few pairs of the validation set."""
        place = self.folder / "resume" / "data" / "valid"
        if not place.exists():
            return []
        valid, found = Store(place), []
        for i in range(len(valid)):
            source, target = valid.pair(i)
            pair = translator.tokenizers.source.decode(source), translator.tokenizers.target.decode(target)
            if 0 < len(pair[0]) <= LETTERS:
                found.append(pair)
            if len(found) == SENTENCES:
                break
        return found
