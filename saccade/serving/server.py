"""The one way in: every protocol calls `Server.translate`, or `Server.stream` for answers as they are written."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import NamedTuple

from saccade.serving.cache import AnswerCache
from saccade.serving.deadline import Deadline
from saccade.serving.listening import Ask, Event, Stop, Tell, events_of, results_of
from saccade.serving.metrics import Metrics
from saccade.serving.model import Model, State
from saccade.serving.pool import Entry, Loaded, ModelPool
from saccade.serving.problems import Busy, NotFound, TooLarge
from saccade.serving.question import Question
from saccade.serving.schemas import Done, Result
from saccade.serving.settings import ServingSettings
from saccade.serving.told import Told
from saccade.serving.watch import Watch

log = logging.getLogger("saccade.serving")


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
        self.pool = ModelPool(folders, self.settings, self._state)
        self.rows = self.waiting = 0  # of all models, when they were last asked
        self.watch = None if self.settings.watch is None else Watch(self.settings.watch, self.pool.add)
        self.draining = False
        self.requests = 0  # at work

    async def observe(self) -> None:
        """Ask all models how they stand, for the metrics."""
        states = [await self._state(loaded) for loaded in self.pool.loaded]
        self.rows, self.waiting = sum(state.rows for state in states), sum(state.waiting for state in states)

    async def _state(self, loaded: Loaded) -> State:
        state = await loaded.model.state()
        self.metrics.tokens.inc(state.tokens - loaded.tokens)
        loaded.tokens = state.tokens
        return state

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
        deadline: Deadline | None = None,
    ) -> Answer:
        """The results of all texts, in their order. What goes wrong is a `Refused` or a `SaccadeError`.

        `deadline`: of the request that this is a part of.
        """
        began, deadline = time.monotonic(), deadline or self.deadline()
        entry = self.choose(model, source, target)
        question = self._question(texts, entry, told, client, streamed=False)
        with self.counted():
            async with self.pool.use(entry, deadline) as loaded:
                results = question.known(self.cache, loaded.version)
                results += await results_of(self._asking(question, loaded.model, deadline), len(question.left))
        return Answer(entry.name, sorted(results, key=lambda result: result.index), time.monotonic() - began)

    async def stream(
        self, texts: Sequence[str], model: str | None = None, told: Told | None = None, client: str = ""
    ) -> AsyncGenerator[Event | Done, None]:
        """Parts as they are written, results as they are finished, the end. Close it (`aclosing`), and work stops."""
        deadline, entry = self.deadline(), self.pool.named(model)
        question = self._question(texts, entry, told, client, streamed=True)
        with self.counted():
            async with self.pool.use(entry, deadline) as loaded:
                for result in question.known(self.cache, loaded.version):
                    yield result
                asking = self._asking(question, loaded.model, deadline)
                async with aclosing(events_of(asking, len(question.left))) as events:
                    async for event in events:
                        yield event
                yield Done(version=loaded.version)

    def _question(self, texts: Sequence[str], entry: Entry, told: Told | None, client: str, streamed: bool) -> Question:
        texts, told = [mended(text) for text in texts], told or Told()
        self.check(texts)
        limits = self.settings
        for what, size, limit in (
            ("must and banned", told.phrases, limits.max_phrases),
            ("glossary, terms and prefix", told.terms, limits.max_characters),
        ):
            if size > limit:
                raise TooLarge(f"{what}: {size:,} characters in one request, more than {limit:,}; send fewer of them")
        return Question(entry, texts, told, client, streamed, limits.max_beam)

    def _asking(self, question: Question, model: Model, deadline: Deadline) -> Ask:
        """Asks a model, keeps its answers, and counts what is stopped."""

        def ask(tell: Tell) -> Stop:
            left = len(question.left)

            def heard(event: Event | Exception) -> None:
                nonlocal left
                if isinstance(event, Result):
                    left -= 1
                    question.keep(self.cache, event)
                tell(event)

            def stop() -> None:
                self.metrics.stopped.inc(left)
                stop_model()

            try:
                stop_model = model.translate(question.asked(deadline), heard)
            except Exception:
                self.metrics.stopped.inc(left)
                raise
            return stop

        return ask

    def deadline(self) -> Deadline:
        """The time of a request that begins now."""
        return Deadline(self.settings.time_limit)

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
        if self.watch is not None:
            self.watch.dismiss()
        deadline = time.monotonic() + self.settings.drain_limit
        while self.requests and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Stop everything."""
        await self.pool.close()


def mended(text: str) -> str:
    """Without halves of surrogate pairs, which JSON lets through and no answer could repeat."""
    return text.encode("utf-8", "replace").decode("utf-8")
