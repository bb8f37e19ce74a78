"""A request on its way to a model: what earlier answers say of it, and what is left to ask."""

from collections.abc import Sequence

from saccade.serving.cache import AnswerCache
from saccade.serving.deadline import Deadline
from saccade.serving.model import Asked
from saccade.serving.pool import Entry
from saccade.serving.schemas import Result
from saccade.serving.told import Told


class Question:
    """Texts for one model. What cannot be asked of any is refused as it is made."""

    def __init__(self, entry: Entry, texts: Sequence[str], told: Told, client: str, streamed: bool, beam: int) -> None:
        """`beam`: the widest that may be asked for."""
        self._texts, self._told, self._client, self._streamed = texts, told, client, streamed
        self._prefixes = told.prefixes(len(texts))
        self._search = told.settings(entry.beam, beam)
        self._model, self._key = entry.name, told.key()
        self._keys: list[tuple[str | None, ...]] = []
        self.left: list[int] = []  # numbers of the texts to which no answer is known

    def known(self, cache: AnswerCache, version: str) -> list[Result]:
        """What is kept of answers to the same, by this version of the model."""
        begun: Sequence[str | None] = self._prefixes or [None] * len(self._texts)
        texts = zip(begun, self._texts, strict=True)
        self._keys = [(version, self._model, self._key, prefix, text) for prefix, text in texts]
        found = [cache.get(key, i) for i, key in enumerate(self._keys)]
        self.left = [i for i, result in enumerate(found) if result is None]
        return [result for result in found if result is not None]

    def keep(self, cache: AnswerCache, result: Result) -> None:
        """An answer to one of its texts, for those who ask the same."""
        cache.put(self._keys[result.index], result)

    def asked(self, deadline: Deadline) -> Asked:
        """What is left, for the model."""
        seconds = deadline.left
        texts = [(i, self._texts[i]) for i in self.left]
        prefixes = None if self._prefixes is None else [self._prefixes[i] for i in self.left]
        return Asked(
            texts,
            self._told,
            self._key,
            self._search,
            prefixes,
            self._client,
            self._streamed,
            seconds,
            deadline.problem,
        )
