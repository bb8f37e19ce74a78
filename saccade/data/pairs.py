"""What a corpus is: pairs, streamed."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from saccade.errors import SaccadeError

Paths = tuple[tuple[str, ...], tuple[str, ...]]


class Pair(NamedTuple):
    """A source, its target, and the line or row of the file where they stand, counted from 1."""

    source: str
    target: str
    line: int


class Corpus(Protocol):
    """Pairs that stream from somewhere."""

    @property
    def name(self) -> str:
        """What a person would call it, e.g. `train.de + train.en`."""

    def __iter__(self) -> Iterator[Pair]: ...


@dataclass(frozen=True)
class Fields:
    """Where a record keeps its two sides."""

    source_field: str
    target_field: str
    source: str
    target: str

    @cached_property
    def candidates(self) -> list[Paths]:
        """Paths to the two sides, in the order in which they are tried.

        A name that somebody chose is the only one tried: a misspelt choice must not find other text instead.
        """
        named = (self.source_field,), (self.target_field,)
        translation = ("translation", self.source), ("translation", self.target)
        return [named] if self._chosen else [named, translation, ((self.source,), (self.target,))]

    @property
    def _chosen(self) -> bool:
        return (self.source_field, self.target_field) != ("source", "target")

    def missing(self, where: str, kind: str, known: Sequence[str], languages: Sequence[str] = ()) -> SaccadeError:
        """What to say where no candidate is; `languages` are those of a `translation` field, if there is one."""
        if languages and not self._chosen:
            absent = self.source if self.source not in languages else self.target
            has = ", ".join(map(repr, languages))
            return SaccadeError(f"{where}: 'translation' has {has}, not {absent!r}; set data.source and data.target")
        side, wanted = (
            ("source", self.source_field) if self.source_field not in known else ("target", self.target_field)
        )
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        guess = f"did you mean {near[0]!r}? Set" if near else f"it has {', '.join(map(repr, known)) or 'none'}; set"
        return SaccadeError(f"{where}: no {kind} {wanted!r}; {guess} data.{side}_field={near[0] if near else 'NAME'}")
