"""Pairs from files, standard input and public datasets.

    for corpus in open_corpora(["train.de", "train.en", "more.jsonl.gz"]):
        for pair in corpus: ...

Every corpus streams, and can be walked again unless it comes through a pipe.
"""

import glob
import itertools
import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data.arrow import HUB, HubCorpus, ParquetCorpus
from saccade.data.lines import STANDARD_INPUT, check_readable, empty, is_pipe, read_lines, where_is
from saccade.data.pairs import Corpus, Fields, Pair
from saccade.errors import SaccadeError

__all__ = ["Corpus", "Pair", "is_text", "open_corpora", "read_lines"]

_BOTH_SIDES = (".tsv", ".jsonl", ".ndjson", ".parquet")
_REFUSED = {".csv": ".tsv (source, tab, target)", ".json": ".jsonl (one object a line)"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def open_corpora(
    files: Sequence[str],
    *,
    source: str = "en",
    target: str = "de",
    source_field: str = "source",
    target_field: str = "target",
    monolingual: bool = False,
) -> list[Corpus]:
    """The corpora that `files` name, each checked to be there before any is read.

    Text files pair up as they come (source target source target …). `.tsv`, `.jsonl`, `.ndjson` and `.parquet` files
    hold both sides, `-` is TSV on standard input, `hub:OWNER/NAME/CONFIG:SPLIT` a public dataset (CONFIG and SPLIT may
    be left out: the default one, and `train`). A pattern with `*`, `?` or `[…]`, or a folder, stands for the files it
    holds (`expanded`). Anything may be gzipped, whatever it is called. Records with named fields keep the two sides in
    `source_field` and `target_field`; where those are left at their defaults, `{"translation": {"de": …, "en": …}}` and
    fields named after the two languages are found as well. `monolingual`: every file is text (`-` too) and holds
    targets alone.
    """
    if files.count(STANDARD_INPUT) > 1:
        raise SaccadeError("- is given twice; standard input can be read only once")
    files = expanded(files, monolingual)
    if monolingual:
        return [_alone(file) for file in files]
    fields = Fields(source_field, target_field, source, target)
    corpora: list[Corpus] = []
    waiting: str | None = None  # a source file whose target file comes next
    for file in files:
        corpus = _with_both_sides(file, fields)
        if waiting is None and corpus is None:
            waiting = file
        elif waiting is None or corpus is None:
            corpora.append(corpus or TextCorpus(str(waiting), file))
            waiting = None
        else:
            raise _no_partner(waiting)
    if waiting is not None:
        raise _no_partner(waiting)
    return corpora


def expanded(files: Sequence[str], monolingual: bool = False) -> list[str]:
    """The files that names, patterns and folders stand for, each pattern's in the order of their names.

    Two patterns of text files, one for each side, pair up: the first source with the first target, and so on.
    """
    groups = [(name, _held_by(name)) for name in files]
    if monolingual:
        return [file for _, group in groups for file in group]
    found: list[str] = []
    waiting: tuple[str, list[str]] | None = None
    for name, group in groups:
        if not all(map(is_text, group)):
            found += [*(waiting[1] if waiting else []), *group]
            waiting = None
        elif waiting is None:
            waiting = name, group
        elif len(group) != len(waiting[1]):
            raise SaccadeError(
                f"{waiting[0]} and {name} should pair up, but the first is {len(waiting[1])} files and the second "
                f"{len(group)}; look for one that is missing"
            )
        else:
            found += [file for both in zip(waiting[1], group, strict=True) for file in both]
            waiting = None
    return [*found, *(waiting[1] if waiting else [])]


def _held_by(name: str) -> list[str]:
    """The files of a folder or of a pattern; anything else is itself."""
    if name == STANDARD_INPUT or name.startswith(HUB):
        return [name]
    if os.path.isdir(name):
        inside = sorted(str(path) for path in Path(name).iterdir() if path.is_file())
        found = [file for file in inside if _suffix(file) in _BOTH_SIDES]
        if not found:
            raise SaccadeError(
                f"{name}: a folder without .parquet, .jsonl or .tsv files; name text files by two patterns, such as "
                f"'{name}/*.en' '{name}/*.de'"
            )
        return found
    if os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = sorted(file for file in glob.glob(name, recursive=True) if Path(file).is_file())
    if not found:
        raise SaccadeError(f"{name}: no file has such a name; check the pattern and the folder")
    return found


def is_text(file: str) -> bool:
    """Whether `file` is a text file, which holds one side."""
    if os.path.isdir(file):
        return False
    return file != STANDARD_INPUT and not file.startswith(HUB) and _suffix(file) not in (*_BOTH_SIDES, *_REFUSED)


def _suffix(file: str) -> str:
    return Path(file.lower().removesuffix(".gz")).suffix


def _alone(file: str) -> Corpus:
    if file != STANDARD_INPUT:
        if not is_text(file):
            raise SaccadeError(
                f"{file}: data.monolingual=true reads text files, one sentence a line; give such a file, or leave it "
                "out and train on pairs"
            )
        check_readable(file)
    return TargetCorpus(file)


def _with_both_sides(file: str, fields: "Fields") -> Corpus | None:
    """The corpus that `file` is by itself; None if it is a text file, which holds one side."""
    if file.startswith(HUB):
        return HubCorpus.of(file, fields)
    if file == STANDARD_INPUT:
        return TabCorpus(file)
    check_readable(file)
    suffix = _suffix(file)
    if suffix in _REFUSED:
        raise SaccadeError(f"{file}: {suffix} files are not read; save it as {_REFUSED[suffix]}")
    if suffix == ".tsv":
        return TabCorpus(file)
    if suffix in (".jsonl", ".ndjson"):
        return JSONCorpus(file, fields)
    return ParquetCorpus(file, fields) if suffix == ".parquet" else None


@dataclass(frozen=True)
class TextCorpus:
    """Two text files: line n of one is the translation of line n of the other."""

    source: str
    target: str

    @property
    def name(self) -> str:
        source, target = Path(self.source), Path(self.target)
        if source.name == target.name and source != target:  # de/train.txt + en/train.txt
            return f"{source.parent.name}/{source.name} + {target.parent.name}/{target.name}"
        return f"{source.name} + {target.name}"

    def __iter__(self) -> Iterator[Pair]:
        sources, targets = read_lines(self.source), read_lines(self.target)
        number = 0
        for number, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
            if source is None or target is None:
                longer = number + sum(1 for _ in (targets if source is None else sources))
                raise self._uneven(*((number - 1, longer) if source is None else (longer, number - 1)))
            yield Pair(source, target, number)
        if number == 0:
            raise empty(self.source, self.target)

    def _uneven(self, sources: int, targets: int) -> SaccadeError:
        if min(sources, targets) == 0:
            empty, other = (self.source, self.target) if sources == 0 else (self.target, self.source)
            return SaccadeError(f"{empty} is empty, {other} has {max(sources, targets):,} lines; check how it was made")
        message = f"source and target differ in length: {self.source} has {sources:,} lines, {self.target} {targets:,}"
        shorter = self.source if sources < targets else self.target
        hint = "make the files line up, one sentence and its translation on the same line of each"
        if not is_pipe(self.source) and not is_pipe(self.target):
            apart = coming_apart(_lengths(self.source), _lengths(self.target))
            if apart == min(sources, targets):
                hint = f"the lines seem to match until {shorter} ends, so its end may be missing"
            elif apart is not None:
                hint = f"they may have come apart near line {apart + 1:,}; look there for a line too many or too few"
        return SaccadeError(f"{message}; {hint}")


@dataclass(frozen=True)
class TargetCorpus:
    """One text file, whose lines are targets of empty sources: what a language model learns from."""

    path: str

    @property
    def name(self) -> str:
        return Path(where_is(self.path)).name

    def __iter__(self) -> Iterator[Pair]:
        number = 0
        for number, line in enumerate(read_lines(self.path), 1):
            yield Pair("", line, number)
        if number == 0:
            raise empty(self.path)


@dataclass(frozen=True)
class TabCorpus:
    """A file of `source<TAB>target` lines, or standard input."""

    path: str

    @property
    def name(self) -> str:
        return Path(where_is(self.path)).name

    def __iter__(self) -> Iterator[Pair]:
        number = 0
        for number, line in enumerate(read_lines(self.path), 1):
            columns = line.split("\t")
            if len(columns) != 2:
                found = "a blank line" if not line else "no tab" if len(columns) == 1 else f"{len(columns)} columns"
                remedy = "JSONL can hold text with tabs" if len(columns) > 2 else "put one tab between the two"
                raise SaccadeError(
                    f"{where_is(self.path)}, line {number:,}: {found}, expected source<TAB>target; {remedy}"
                )
            yield Pair(columns[0], columns[1], number)
        if number == 0:
            raise empty(self.path)


@dataclass(frozen=True)
class JSONCorpus:
    """A file with one JSON object a line."""

    path: str
    fields: Fields

    @property
    def name(self) -> str:
        return Path(where_is(self.path)).name

    def __iter__(self) -> Iterator[Pair]:
        number = 0
        for number, line in enumerate(read_lines(self.path), 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise self._refused(number, f"not valid JSON ({error})") from None
            if not isinstance(record, dict):
                raise self._refused(number, f"{_shown(record)} is not an object")
            source, target = self._sides(record, number)
            yield Pair(source, target, number)
        if number == 0:
            raise empty(self.path)

    def _sides(self, record: dict[str, Any], number: int) -> tuple[str, str]:
        for paths in self.fields.candidates:
            try:
                sides = [_follow(record, path) for path in paths]
            except LookupError:
                continue
            for path, text in zip(paths, sides, strict=True):
                if not isinstance(text, str):
                    raise self._refused(number, f"{'.'.join(path)!r} is {_shown(text)}, not text")
                if not text.isascii() and _SURROGATE.search(text):
                    found = f"{'.'.join(path)!r} holds half a character (a lone surrogate, \\ud800 to \\udfff)"
                    raise self._refused(number, found)
            return sides[0], sides[1]
        languages = record.get("translation")
        known = list(languages) if isinstance(languages, dict) else []
        raise self.fields.missing(f"{self.path}, line {number:,}", "field", list(record), known)

    def _refused(self, number: int, found: str) -> SaccadeError:
        example = f'{{"{self.fields.source_field}": "…", "{self.fields.target_field}": "…"}}'
        return SaccadeError(f"{self.path}, line {number:,}: {found}; each line must be one object such as {example}")


def coming_apart(sources: "np.ndarray[Any, Any]", targets: "np.ndarray[Any, Any]") -> int | None:
    """How many lines of the shorter file pair up before the two come apart, judged by line lengths; None: no telling.

    Translations are about as long as their sources. Line i of the shorter file therefore resembles line i of the longer
    one before the break and line i + extra after it; the break is where the sum of both misfits is least.
    """
    short, long = sorted((np.log1p(sources), np.log1p(targets)), key=len)
    extra = len(long) - len(short)
    if len(short) < 10:
        return None
    long = long - np.median(long) + np.median(short)
    before = np.abs(long[: len(short)] - short)
    after = np.abs(long[extra:] - short)
    misfit = np.concatenate([[0.0], np.cumsum(before)]) + np.concatenate([np.cumsum(after[::-1])[::-1], [0.0]])
    unrelated = np.abs(np.roll(short, len(short) // 2) - short).sum()
    best = int(misfit.argmin())
    # Without a clear gain over lines that have nothing to do with each other, a guess would only mislead.
    return best if misfit[best] < 0.7 * unrelated else None


def _no_partner(path: str) -> SaccadeError:
    return SaccadeError(
        f"{path}: no target file after it; text files come in pairs, source then target "
        "(one file with both sides must end in .tsv, .jsonl or .parquet; a language model learns from one file with "
        "model.family=lm, from several with data.monolingual=true)"
    )


def _lengths(path: str) -> "np.ndarray[Any, Any]":
    return np.fromiter((len(line) for line in read_lines(path)), dtype=np.int64)


def _follow(record: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(record, dict):
            raise LookupError(key)
        record = record[key]
    return record


def _shown(value: Any) -> str:
    return textwrap.shorten(json.dumps(value, ensure_ascii=False), 40, placeholder=" …")
