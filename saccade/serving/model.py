"""A model that answers: what a server asks of it, and one that does it in this process.

`saccade.serving.remote` is one that does the same in a process of its own.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from saccade.folder import load
from saccade.models.packing import make_programs
from saccade.serving.alternatives import AS_IT_IS, by_word, following, next_pieces
from saccade.serving.batcher import Worker
from saccade.serving.deadline import Deadline
from saccade.serving.listening import Stop, Tell, results_of
from saccade.serving.looks import look_json
from saccade.serving.request import Request
from saccade.serving.schemas import Alternatives, LookRequest
from saccade.serving.settings import ServingSettings
from saccade.serving.tickets import Kind, Ticket
from saccade.serving.told import Told
from saccade.translator import Translator

KINDS = 64  # of requests whose settings and rules are kept
AT_ONCE = 4_000  # characters that are made ready in the event loop; more of them in a thread


@dataclass(frozen=True)
class Asked:
    """Texts of one request, each with its number in it."""

    texts: Sequence[tuple[int, str]]
    told: Told
    key: str  # `told.key()`
    search: dict[str, Any]  # `told.settings`, checked
    prefixes: Sequence[str] | None  # one each
    client: str
    streamed: bool
    seconds: float  # that are left of the request's time
    too_slow: str  # what is said when they are over

    @property
    def each(self) -> bool:
        """Whether something is said of single texts."""
        return self.prefixes is not None or bool(self.told.must)


class State(NamedTuple):
    """How it stands with a model."""

    rows: int  # at work
    waiting: int  # sentences
    tokens: int  # written since it was loaded


class Model(Protocol):
    """What answers the requests of a server."""

    engine: str  # its name

    @property
    def gone(self) -> bool:
        """Whether it can answer no more."""

    def translate(self, asked: Asked, tell: Tell) -> Stop:
        """Tell of parts as they are written and of results as they are finished; see `saccade.serving.listening`."""

    async def alternatives(self, text: str, prefix: str, count: int, client: str) -> Alternatives:
        """Words that could follow `prefix` in a translation of `text`, and the translations that go on with them."""

    async def look(self, name: str, request: LookRequest) -> str:
        """Where every head looked, as JSON."""

    async def state(self) -> State:
        """How it stands."""

    async def close(self) -> None:
        """Stop, when what is at work is done."""


class LocalModel:
    """A model with the thread that runs it."""

    gone = False

    def __init__(
        self, translator: Translator, settings: ServingSettings, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """`loop`: the event loop to take the steps in, rather than in a thread (`Worker`)."""
        self.translator, self.settings = translator, settings
        self.engine = translator.engine.name
        self.worker = Worker(translator, settings, loop)
        self._kinds: OrderedDict[str, Kind] = OrderedDict()

    @classmethod
    def load(
        cls, folder: Path, settings: ServingSettings, loop: asyncio.AbstractEventLoop | None = None
    ) -> "LocalModel":
        translator = load(folder, settings.device, engine=settings.engine)
        if translator.engine is translator.own_engine:
            make_programs(translator.model)
        return cls(translator, settings, loop)

    def kind(self, told: Told, key: str, search: dict[str, Any], each: bool) -> Kind:
        """What requests that are told this have in common, made once for many."""
        key = f"{key} {each}"
        if key not in self._kinds:
            self._kinds[key] = Kind(self.translator, told, search)
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        return self._kinds[key]

    def translate(self, asked: Asked, tell: Tell) -> Stop:
        kind = self.kind(asked.told, asked.key, asked.search, asked.each)
        request = Request(self.worker, asked.seconds, asked.too_slow, tell)

        def made() -> Iterator[Ticket]:
            prefixes: Sequence[str | None] = asked.prefixes or [None] * len(asked.texts)
            for (index, text), prefix in zip(asked.texts, prefixes, strict=True):
                yield kind.ticket(text, index, asked.client, prefix, asked.streamed, request.heard)

        if sum(len(text) for _, text in asked.texts) > AT_ONCE:
            request.begin_later(made())
        else:
            request.begin(list(made()))
        return request.stop

    async def alternatives(self, text: str, prefix: str, count: int, client: str) -> Alternatives:
        deadline = Deadline(self.settings.time_limit)
        translator, kind = self.translator, self.kind(AS_IT_IS, AS_IT_IS.key(), dict(AS_IT_IS.search), each=True)
        (job,) = translator.told([text], kind.settings)
        begun = translator.tokenizers.target.encode(prefix.strip()) if prefix.strip() else []
        pieces = await self.worker.call(lambda: next_pieces(translator, job.source, begun, count))

        def ask(tell: Tell) -> Stop:
            request = Request(self.worker, deadline.left, deadline.problem, tell)
            ids = [piece for piece, _ in pieces]
            request.begin(following(kind, text, job, begun, ids, client, request.heard))
            return request.stop

        said = {found.index: found.translations[0].text for found in await results_of(ask, len(pieces))}
        before = translator.tokenizers.target.decode(begun)
        return by_word([(said[i], probability) for i, (_, probability) in enumerate(pieces)], before, count)

    async def look(self, name: str, request: LookRequest) -> str:
        return await self.worker.call(lambda: look_json(self.translator, name, request))

    async def state(self) -> State:
        return State(self.worker.rows, self.worker.queue.sentences, self.worker.tokens)

    async def close(self) -> None:
        await self.worker.close()
