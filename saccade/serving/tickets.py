"""A text on its way through a model: what it was made of, what has come back, and who is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from saccade.generation.asked import pool_of, rows_of
from saccade.generation.guard import Finding, Guarded, stricter
from saccade.generation.orders import Book, Job
from saccade.serving.answers import result_of
from saccade.serving.listening import Tell
from saccade.serving.schemas import Result
from saccade.serving.told import Told
from saccade.text.pipeline import Line, Made, Pipeline
from saccade.translator import Translation, Translator


class Kind:
    """What requests that are told the same have in common: settings, rules, the text pipeline, the engine."""

    def __init__(self, translator: Translator, told: Told, search: dict[str, Any]) -> None:
        self.translator, self.told = translator, told
        self.pipeline = Pipeline(translator, dict(told.glossary) or None, **search)
        self.settings = translator.settings_for(**search)
        self.pool = pool_of(self.settings, ())
        self.key = self.pool.model_dump_json()
        self.engine = translator.engine_for(self.settings)
        self.rows = rows_of(self.pool)
        self._books: dict[bool, Book] = {}

    def book(self, again: bool) -> Book:
        """The rules, or those of the second time."""
        if again not in self._books:
            self._books[again] = self.translator.book(stricter(self.pool) if again else self.pool)
        return self._books[again]

    def ticket(self, text: str, index: int, client: str, prefix: str | None, streamed: bool, deliver: Tell) -> "Ticket":
        """A text made ready; what cannot be translated is refused."""
        must = list(self.told.must) or None
        prepared = self.pipeline.prepare([text], index + 1, prefix=prefix, must=must)
        jobs = self.translator.told(prepared.pieces, self.settings, index + 1, **prepared.told)
        return Ticket(self, prepared.lines[0], prepared.pieces, jobs, index, client, streamed, deliver)

    def ready(self, ticket: "Ticket") -> Result | None:
        """The answer of a text whose pieces are all there; None: the model must be asked again to finish it."""
        translation = self.pipeline.ready(*ticket.made)
        return None if translation is None else self._result(ticket, translation)

    def finish(self, tickets: Sequence["Ticket"]) -> list[Result]:
        """The answers of texts whose pieces are all there."""
        translations = self.pipeline.finish([ticket.made for ticket in tickets])
        return [self._result(ticket, translation) for ticket, translation in zip(tickets, translations, strict=True)]

    def _result(self, ticket: "Ticket", translation: Translation) -> Result:
        return result_of(translation, self.translator, self.told, ticket.index)


@dataclass(eq=False)
class Sentence:
    """One piece of a text that the model translates."""

    ticket: "Ticket"
    place: int
    job: Job
    finding: Finding | None = None  # what the guard found, if this is the second time
    first: Guarded | None = None  # what was found the first time

    @property
    def columns(self) -> int:
        return len(self.job.source) + 1

    @property
    def characters(self) -> int:
        return len(self.ticket.pieces[self.place])


@dataclass(eq=False)
class Ticket:
    """One text, in pieces. `deliver` is called in the event loop's thread."""

    kind: Kind
    line: Line
    pieces: list[str]
    jobs: Sequence[Job]
    index: int
    client: str
    streamed: bool
    deliver: Tell
    parts: list[Translation | None] = field(init=False)
    sentences: list[Sentence] = field(init=False)
    over: bool = False  # answered, refused or no longer wanted
    told_so_far: str = ""

    def __post_init__(self) -> None:
        blank = [not piece.strip() for piece in self.pieces]
        self.parts = [
            self.kind.translator.translation(piece, None, self.kind.settings) if nothing else None
            for piece, nothing in zip(self.pieces, blank, strict=True)
        ]
        self.sentences = [Sentence(self, place, self.jobs[place]) for place, nothing in enumerate(blank) if not nothing]

    @property
    def complete(self) -> bool:
        return all(part is not None for part in self.parts)

    def take(self, place: int, answer: Guarded) -> None:
        """What the model says of a piece."""
        kind = self.kind
        self.parts[place] = kind.translator.translation(self.pieces[place], answer, kind.settings, self.index + 1)

    @property
    def made(self) -> Made:
        """What there is to finish, all pieces being there."""
        return self.line, [part for part in self.parts if part is not None]

    def so_far(self, writing: Callable[[int], str | None]) -> str:
        """The beginning of the translation: `writing` says what is written of a piece, None for nothing."""
        said: list[str] = []
        for place, part in enumerate(self.parts):
            text = writing(place) if part is None else part.text
            if text is not None:
                said.append(text)
            if part is None:
                break
        return self.kind.pipeline.so_far(self.line, said)
