"""Cleaned text on disk, between the reading of a corpus and its encoding; and how both are done."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from saccade.config import Config
from saccade.data.cleaning import CleaningReport
from saccade.data.mapping import Encode, Mapper, blocks, cleaned
from saccade.data.mixture import Member
from saccade.data.store import StoreWriter
from saccade.data.tokenizers import Tokenizers
from saccade.display import Display


@dataclass(frozen=True)
class Spooled:
    """Cleaned pairs on disk, one line each; `sizes`: how many of each corpus."""

    source: Path
    target: Path
    sizes: tuple[int, ...] = ()

    @property
    def pairs(self) -> int:
        return sum(self.sizes)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        with (
            open(self.source, encoding="utf-8", newline="\n") as sources,
            open(self.target, encoding="utf-8", newline="\n") as targets,
        ):
            for source, target in zip(sources, targets, strict=True):
                yield source[:-1], target[:-1]


@dataclass(frozen=True)
class Spool:
    """Where cleaned text waits until its vocabulary is known, and how it is cleaned and encoded."""

    folder: Path
    config: Config
    display: Display
    mapper: Mapper

    def filled(self, name: str, members: Sequence[Member], report: CleaningReport) -> Spooled:
        """The pairs of corpora, cleaned. Each corpus of a mixture is rid of its own duplicates alone."""
        path, data, sizes = self.folder / name, self.config.data, []
        spooled = Spooled(path.with_suffix(".source"), path.with_suffix(".target"))
        with (
            open(spooled.source, "w", encoding="utf-8", newline="\n") as sources,
            open(spooled.target, "w", encoding="utf-8", newline="\n") as targets,
            self.display.task("reading and cleaning") as progress,
        ):
            for member in members:
                before, report.seen = report.kept, set()
                for corpus in member.corpora:
                    for source, target, _ in cleaned(
                        corpus, data.cleaning, report, bool(data.monolingual), self.mapper
                    ):
                        sources.write(f"{member.prefix}{source}\n")
                        targets.write(target + "\n")
                        if report.kept % 1000 == 0:
                            progress(report.kept)
                sizes.append(report.kept - before)
            progress(report.kept)
        return replace(spooled, sizes=tuple(sizes))

    def encode(
        self, pairs: Iterable[tuple[str, str]], count: int, tokenizers: Tokenizers, folder: Path, what: str
    ) -> None:
        """Write a store."""
        sizes = {"source_vocabulary": tokenizers.source.size, "target_vocabulary": tokenizers.target.size}
        with StoreWriter(folder, **sizes) as writer, self.display.task(what, count) as progress:
            done = 0
            for block in self.mapper.map(Encode(tokenizers), blocks(pairs)):
                writer.extend(block)
                done += len(block)
                progress(done)
