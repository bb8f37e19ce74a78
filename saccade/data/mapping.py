"""Work on blocks of pairs, done here or elsewhere: what it gives is the same, and comes in the same order.

A `Mapper` applies a function to blocks. `Here` does it in this process; `saccade.distributed.on_ray` on a cluster. The
functions are objects that depend on nothing but what they were made with, so that it does not matter where they run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from saccade.config import CleaningConfig
from saccade.data.cleaning import CleaningReport, Reason, digest_of, flaw_of
from saccade.data.pairs import Corpus, Pair
from saccade.data.tokenizers import Tokenizer, Tokenizers

BLOCK = 10_000  # pairs

Task = TypeVar("Task")
Result = TypeVar("Result")


class Mapper(Protocol):
    """Applies a function to many things."""

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """What `work` makes of each task, in the order of the tasks."""

    def close(self) -> None:
        """Let go of whatever was taken hold of."""


class Here:
    """In this process, one after the other."""

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        return map(work, tasks)

    def close(self) -> None: ...


class Judged(NamedTuple):
    """A block of pairs, and for each what is wrong with it and the number that stands for it."""

    pairs: list[Pair]
    flaws: list[Reason | None]
    digests: list[int]  # none, unless duplicates are dropped


@dataclass(frozen=True)
class Judge:
    """Cleaning, but for what has to be remembered of other pairs."""

    settings: CleaningConfig
    monolingual: bool

    def __call__(self, pairs: list[Pair]) -> Judged:
        flaws = [flaw_of(pair, self.settings, self.monolingual) for pair in pairs]
        remembers = self.settings.enabled and self.settings.drop_duplicates
        return Judged(pairs, flaws, [digest_of(pair.source, pair.target) for pair in pairs] if remembers else [])


class Encode:
    """Both sides of a block of pairs as ids. Where it travels, the vocabularies do, as text."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self.tokenizers = tokenizers

    def __reduce__(self) -> tuple[Any, ...]:
        source, target = self.tokenizers
        return _encode_of, (source.to_json(), None if self.tokenizers.joint else target.to_json())

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        sources = self.tokenizers.source.encode_batch([source for source, _ in pairs])
        targets = self.tokenizers.target.encode_batch([target for _, target in pairs])
        return list(zip(sources, targets, strict=True))


def _encode_of(source: str, target: str | None) -> Encode:
    first = Tokenizer.of_json(source)
    return Encode(Tokenizers(first, first if target is None else Tokenizer.of_json(target)))


def cleaned(
    corpus: Corpus, settings: CleaningConfig, report: CleaningReport, monolingual: bool, mapper: Mapper
) -> Iterator[Pair]:
    """What `cleaning.clean` gives, block by block: judged wherever the mapper does it, remembered here."""
    for judged in mapper.map(Judge(settings, monolingual), blocks(corpus)):
        for place, (pair, flaw) in enumerate(zip(judged.pairs, judged.flaws, strict=True)):
            report.read += 1
            if flaw is None and judged.digests and judged.digests[place] in report.seen:
                flaw = "duplicate"
            if flaw is not None:
                report.drop(pair, corpus.name, flaw)
                continue
            if judged.digests:
                report.seen.add(judged.digests[place])
            report.kept += 1
            yield pair


def blocks(items: Iterable[Task]) -> Iterator[list[Task]]:
    """Things in lists of `BLOCK`."""
    iterator = iter(items)
    while block := list(islice(iterator, BLOCK)):
        yield block
