"""The one way in: every protocol calls `Server.translate`, or `Server.stream` for answers as they are written."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import NamedTuple

from saccade.serving.batcher import Worker
from saccade.serving.cache import AnswerCache
from saccade.serving.metrics import Metrics
from saccade.serving.pool import Entry, Loaded, ModelPool
from saccade.serving.problems import Busy, NotFound, TooLarge, TooSlow
from saccade.serving.schemas import Part, Result
from saccade.serving.settings import ServingSettings
from saccade.serving.tickets import Deliver, Kind, Ticket
from saccade.serving.told import Told
from saccade.serving.watch import Watch
from saccade.translator import Translator

log = logging.getLogger("saccade.serving")

AT_ONCE = 4_000  # characters that are made ready in the event loop; more of them in a thread


class Answer(NamedTuple):
    """What `translate` gives."""

    model: str
    results: list[Result]
    seconds: float


class Server:
    """Models, limits, and what is at work."""

    def __init__(self, folders: Sequence[Path], settings: ServingSettings | None = None) -> None:
        self.settings = settings or ServingSettings()
        self.cache = AnswerCache(int(self.settings.cache * 2**20))
        self.metrics = Metrics(self)
        self.pool = ModelPool(folders, self.settings, self._worker)
        self.watch = None if self.settings.watch is None else Watch(self.settings.watch, self.pool.add)
        self.draining = False
        self.requests = 0  # at work

    def _worker(self, translator: Translator) -> Worker:
        return Worker(translator, self.settings, self.metrics.tokens.inc)

    @property
    def rows(self) -> int:
        """Rows at work, of all models."""
        return sum(loaded.worker.rows for loaded in self.pool.loaded)

    @property
    def waiting(self) -> int:
        """Sentences that wait, for all models."""
        return sum(loaded.worker.queue.sentences for loaded in self.pool.loaded)

    def choose(self, model: str | None = None, source: str | None = None, target: str | None = None) -> Entry:
        """The folder for a request: by name, or by its languages, or the first."""
        if model is not None:
            return self.pool.named(model)
        source = None if source in (None, "", "auto") else source
        for entry in self.pool.entries.values():
            if source in (None, entry.card.source) and target in (None, "", entry.card.target):
                return entry
        served = ", ".join(f"{entry.card.source} → {entry.card.target}" for entry in self.pool.entries.values())
        raise NotFound(f"source={source!r}, target={target!r}: no model translates that; these are served: {served}")

    def check(self, texts: Sequence[str]) -> None:
        """Refuse more than is taken in one request, and anything when the server is about to stop."""
        limits = self.settings
        if self.draining:
            raise Busy("the server is about to stop; ask another, or ask again", 5)
        if len(texts) > limits.max_texts:
            raise TooLarge(f"{len(texts):,} texts in one request, more than {limits.max_texts:,}; send fewer")
        characters = sum(map(len, texts))
        if characters > limits.max_characters:
            raise TooLarge(
                f"{characters:,} characters in one request, more than {limits.max_characters:,}; send less at a time"
            )
        self.metrics.texts.inc(len(texts))
        self.metrics.characters.inc(characters)
        if limits.log_texts:
            log.info("texts", extra={"fields": {"texts": list(texts)}})

    async def translate(
        self,
        texts: Sequence[str],
        model: str | None = None,
        told: Told | None = None,
        client: str = "",
        source: str | None = None,
        target: str | None = None,
    ) -> Answer:
        """The results of all texts, in their order. What goes wrong is a `Refused` or a `SaccadeError`."""
        began = time.monotonic()
        entry = self.choose(model, source, target)
        async with aclosing(self._events(texts, entry, told or Told(), client, streamed=False)) as events:
            results = [event async for event in events if isinstance(event, Result)]
        return Answer(entry.name, sorted(results, key=lambda result: result.index), time.monotonic() - began)

    def stream(
        self, texts: Sequence[str], model: str | None = None, told: Told | None = None, client: str = ""
    ) -> AsyncGenerator[Part | Result, None]:
        """Parts as they are written and results as they are finished. Close it (`aclosing`), and the work stops."""
        return self._events(texts, self.pool.named(model), told or Told(), client, streamed=True)

    async def _events(
        self, texts: Sequence[str], entry: Entry, told: Told, client: str, streamed: bool
    ) -> AsyncGenerator[Part | Result, None]:
        texts = [mended(text) for text in texts]
        self.check(texts)
        prefixes = told.prefixes(len(texts))
        search = told.settings(entry.beam, self.settings.max_beam)
        with self.counted():
            async with self.pool.use(entry) as loaded:
                kind = loaded.kind(told, search, each=prefixes is not None or bool(told.must))
                keys = [
                    (loaded.version, entry.name, told.key(), prefixes and prefixes[i], t) for i, t in enumerate(texts)
                ]
                known = {i: found for i, key in enumerate(keys) if (found := self.cache.get(key, i)) is not None}
                for result in known.values():
                    yield result
                asked = [i for i in range(len(texts)) if i not in known]
                if not asked:
                    return
                inbox: asyncio.Queue[Part | Result | Exception] = asyncio.Queue()
                made = _make(kind, texts, asked, client, prefixes, streamed, inbox.put_nowait)
                ready = await asyncio.to_thread(list, made) if sum(map(len, texts)) > AT_ONCE else list(made)
                async with aclosing(self.answers(loaded, ready, inbox)) as answers:
                    async for event in answers:
                        if isinstance(event, Result):
                            self.cache.put(keys[event.index], event)
                        yield event

    async def answers(
        self, loaded: Loaded, tickets: list[Ticket], inbox: "asyncio.Queue[Part | Result | Exception]"
    ) -> AsyncGenerator[Part | Result, None]:
        """What becomes of texts; those that are not done when nobody listens any more are stopped."""
        request, left = object(), {ticket.index: ticket for ticket in tickets}
        seconds = self.settings.time_limit
        late = TooSlow(f"not done in {seconds:g} seconds, and stopped; send less at a time")
        alarm = asyncio.get_running_loop().call_later(seconds, inbox.put_nowait, late)
        try:
            for ticket in tickets:
                if ticket.complete:  # nothing to translate in it
                    ticket.over = True
                    del left[ticket.index]
                    yield ticket.finish()
            loaded.worker.submit(list(left.values()), request)
            while left:
                event = await inbox.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Result):
                    del left[event.index]
                yield event
        finally:
            alarm.cancel()
            if left:
                self.metrics.stopped.inc(len(left))
                loaded.worker.cancel(list(left.values()), request)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """For as long as a request is at work."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def drain(self) -> None:
        """Refuse what is new, and wait for what is running, as long as may be waited."""
        self.draining = True
        log.info("draining", extra={"fields": {"requests": self.requests}})
        deadline = time.monotonic() + self.settings.drain_limit
        while self.requests and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Stop everything."""
        await self.pool.close()


def mended(text: str) -> str:
    """Without halves of surrogate pairs, which JSON lets through and no answer could repeat."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _make(
    kind: Kind,
    texts: Sequence[str],
    asked: Sequence[int],
    client: str,
    prefixes: list[str] | None,
    streamed: bool,
    deliver: Deliver,
) -> Iterator[Ticket]:
    for i in asked:
        yield kind.ticket(texts[i], i, client, prefixes[i] if prefixes else None, streamed, deliver)
