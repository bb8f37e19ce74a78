"""The one way in: every protocol calls `Server.translate`."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from saccade.serving.answers import result_of
from saccade.serving.batcher import Worker
from saccade.serving.pool import Entry, ModelPool
from saccade.serving.problems import Busy, NotFound, TooLarge, TooSlow
from saccade.serving.schemas import Part, Result
from saccade.serving.settings import ServingSettings
from saccade.serving.told import Told
from saccade.translator import Translator


class Answer(NamedTuple):
    """What `translate` gives."""

    model: str
    results: list[Result]
    seconds: float


class Server:
    """Models, limits, and what is at work."""

    def __init__(self, folders: Sequence[Path], settings: ServingSettings | None = None) -> None:
        self.settings = settings or ServingSettings()
        self.pool = ModelPool(folders, self.settings, self._worker)
        self.draining = False
        self.requests = 0  # at work

    def _worker(self, translator: Translator, name: str) -> Worker:
        return Worker(translator, self.settings)

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

    def _check(self, texts: Sequence[str]) -> None:
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
        results: list[Result] = []
        entry = self.choose(model, source, target)
        async for event in self.stream(texts, entry.name, told, client):
            if isinstance(event, Result):
                results.append(event)
        return Answer(entry.name, sorted(results, key=lambda result: result.index), time.monotonic() - began)

    async def stream(
        self, texts: Sequence[str], model: str | None = None, told: Told | None = None, client: str = ""
    ) -> AsyncIterator[Part | Result]:
        """Results as they are finished."""
        told = told or Told()
        self._check(texts)
        entry = self.pool.named(model)
        search = told.settings(entry.beam, self.settings.max_beam)
        prefixes = told.prefixes(len(texts))
        with self._counted():
            async for event in self._translated(texts, entry, told, search, prefixes):
                yield event

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def _translated(
        self,
        texts: Sequence[str],
        entry: Entry,
        told: Told,
        search: dict[str, Any],
        prefixes: list[str] | None,
    ) -> AsyncIterator[Part | Result]:
        async with self.pool.use(entry) as loaded:
            translator = loaded.translator

            def work() -> list[Result]:
                extra = ({"prefix": prefixes} if prefixes else {}) | ({"must": list(told.must)} if told.must else {})
                found = translator.translate(list(texts), glossary=dict(told.glossary) or None, **extra, **search)
                return [result_of(one, translator, told, index) for index, one in enumerate(found)]

            try:
                found = await asyncio.wait_for(loaded.worker.call(work), self.settings.time_limit)
            except asyncio.TimeoutError:
                raise TooSlow(f"not done in {self.settings.time_limit:g} seconds; send less at a time") from None
            for result in found:
                yield result

    async def drain(self) -> None:
        """Refuse what is new, and wait for what is running, as long as may be waited."""
        self.draining = True
        deadline = time.monotonic() + self.settings.drain_limit
        while self.requests and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Stop everything."""
        await self.pool.close()
