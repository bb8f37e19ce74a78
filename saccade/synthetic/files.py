"""Pairs in files that `saccade train` reads: two text files, TSV or JSONL, appended to and cut back to a known size."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from saccade.errors import SaccadeError
from saccade.files import flushed

BOTH_SIDES = (".tsv", ".jsonl")
_REFUSED = (".gz", ".parquet", ".csv", ".json", ".ndjson")


def names_of(out: Path, source: str, target: str) -> list[Path]:
    """The files that `--out` means: itself, if it ends in .tsv or .jsonl; otherwise one for each language."""
    if out.suffix in BOTH_SIDES:
        return [out]
    if out.suffix in _REFUSED:
        raise SaccadeError(
            f"--out {out}: {out.suffix} files are not written, since they cannot be gone on with; end it in .tsv or "
            ".jsonl, or leave the ending out for two text files"
        )
    if source == target:
        raise SaccadeError(
            f"--out {out}: both sides are {source!r}, so two files would be one; end it in .tsv or .jsonl"
        )
    return [out.with_name(f"{out.name}.{language}") for language in (source, target)]


def partial(path: Path) -> Path:
    """Where a file grows until it is whole."""
    return path.with_name(path.name + ".partial")


class PairWriter:
    """Appends pairs to the partial files of `paths`, from the given sizes in bytes on."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]) -> None:
        self.paths = paths
        self._sizes = sizes
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> "PairWriter":
        for path, size in zip(self.paths, self._sizes, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial(path).touch()
            file = open(partial(path), "r+b")
            self._files.append(file)
            if file.seek(0, os.SEEK_END) < size:
                raise SaccadeError(
                    f"{partial(path)}: is shorter than when it was left; remove it and its .json to begin anew"
                )
            file.truncate(size)
            file.seek(size)
        return self

    def write(self, source: str, target: str) -> None:
        """One pair; neither side holds a line break."""
        if len(self._files) == 2:
            lines = [source, target]
        elif self.paths[0].suffix == ".jsonl":
            lines = [json.dumps({"source": source, "target": target}, ensure_ascii=False)]
        else:
            if "\t" in source + target:
                raise SaccadeError(
                    f"{self.paths[0]}: a pair holds a tab, which TSV cannot; write .jsonl: {source[:60]!r}"
                )
            lines = [f"{source}\t{target}"]
        for file, line in zip(self._files, lines, strict=True):
            file.write(line.encode() + b"\n")

    def sizes(self) -> list[int]:
        """How long the files are, once all of it is on the disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        return [file.tell() for file in self._files]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()


def put_in_place(paths: Sequence[Path]) -> None:
    """The partial files become what they are called; those that are in place already stay there."""
    for path in paths:
        if partial(path).exists():
            os.replace(partial(path), path)
            flushed(path.parent)
