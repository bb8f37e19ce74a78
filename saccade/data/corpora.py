"""Pairs from files, standard input and public datasets.

    for corpus in open_corpora(["train.de", "train.en", "more.jsonl.gz"]):
        for pair in corpus: ...

Every corpus streams, and can be walked again unless it comes through a pipe. A line ends at `\\n` and nowhere else:
U+2028, form feeds and their kin are part of the text, so that line n of one file always meets line n of the other.
"""

import difflib
import gzip
import importlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from saccade.errors import SaccadeError

STANDARD_INPUT = "-"
HUB = "hub:"
ROWS_AT_ONCE = 1024

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Starts of files that are often taken for text, and what opens them.
_NOT_TEXT = {
    b"PK\x03\x04": "a zip archive; unpack it first with unzip",
    b"\xfd7zXZ\x00": "compressed with xz; decompress it first with xz -dk",
    b"BZh91AY&SY": "compressed with bzip2; decompress it first with bunzip2 -k",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; decompress it first with zstd -d",
    b"PAR1\x15": "a Parquet file; give it a name that ends in .parquet",
    b"\xff\xfe": "UTF-16 text; convert it with iconv -f utf-16 -t utf-8",
    b"\xfe\xff": "UTF-16 text; convert it with iconv -f utf-16 -t utf-8",
}


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


def open_corpora(
    files: Sequence[str],
    *,
    source: str = "en",
    target: str = "de",
    source_field: str = "source",
    target_field: str = "target",
) -> list[Corpus]:
    """The corpora that `files` name, each checked to be there before any is read.

    Text files pair up as they come (source target source target …). `.tsv`, `.jsonl`, `.ndjson` and `.parquet` files
    hold both sides, `-` is TSV on standard input, `hub:OWNER/NAME/CONFIG:SPLIT` a public dataset (CONFIG and SPLIT may
    be left out: the default one, and `train`). Anything may be gzipped, whatever it is called. Records with named
    fields keep the two sides in `source_field` and `target_field`; where those are left at their defaults,
    `{"translation": {"de": …, "en": …}}` and fields named after the two languages are found as well.
    """
    if files.count(STANDARD_INPUT) > 1:
        raise SaccadeError("- is given twice; standard input can be read only once")
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


def _with_both_sides(file: str, fields: "Fields") -> Corpus | None:
    """The corpus that `file` is by itself; None if it is a text file, which holds one side."""
    if file.startswith(HUB):
        return HubCorpus.of(file, fields)
    if file == STANDARD_INPUT:
        return TabCorpus(file)
    _check_readable(file)
    suffix = Path(file.lower().removesuffix(".gz")).suffix
    if suffix in (".csv", ".json"):
        better = ".tsv (source, tab, target)" if suffix == ".csv" else ".jsonl (one object a line)"
        raise SaccadeError(f"{file}: {suffix} files are not read; save it as {better}")
    if suffix == ".tsv":
        return TabCorpus(file)
    if suffix in (".jsonl", ".ndjson"):
        return JSONCorpus(file, fields)
    return ParquetCorpus(file, fields) if suffix == ".parquet" else None


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of one text file, gzipped or not (`-`: standard input): as many as it has, blank ones too.

    One trailing `\\n` or `\\r\\n` is taken off each, and a byte order mark off the first.
    """
    path = str(path)
    with _bytes_of(path) as stream:
        head = stream.peek(4096)[:4096]
        _refuse_binary(path, head)
        if head.startswith(_BOM):
            stream.read(len(_BOM))
        for number, raw in enumerate(stream, 1):
            if raw.endswith(b"\n"):
                raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error) from None
            yield line


Paths = tuple[tuple[str, ...], tuple[str, ...]]


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


@dataclass(frozen=True)
class TextCorpus:
    """Two text files: line n of one is the translation of line n of the other."""

    source: str
    target: str

    @property
    def name(self) -> str:
        source, target = Path(self.source), Path(self.target)
        if source.name == target.name:  # de/train.txt + en/train.txt
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
            raise _empty(self.source, self.target)

    def _uneven(self, sources: int, targets: int) -> SaccadeError:
        if min(sources, targets) == 0:
            empty, other = (self.source, self.target) if sources == 0 else (self.target, self.source)
            return SaccadeError(f"{empty} is empty, {other} has {max(sources, targets):,} lines; check how it was made")
        message = f"source and target differ in length: {self.source} has {sources:,} lines, {self.target} {targets:,}"
        shorter = self.source if sources < targets else self.target
        hint = "make the files line up, one sentence and its translation on the same line of each"
        if not _is_pipe(self.source) and not _is_pipe(self.target):
            apart = coming_apart(_lengths(self.source), _lengths(self.target))
            if apart == min(sources, targets):
                hint = f"the lines seem to match until {shorter} ends, so its end may be missing"
            elif apart is not None:
                hint = f"they may have come apart near line {apart + 1:,}; look there for a line too many or too few"
        return SaccadeError(f"{message}; {hint}")


@dataclass(frozen=True)
class TabCorpus:
    """A file of `source<TAB>target` lines, or standard input."""

    path: str

    @property
    def name(self) -> str:
        return Path(_where(self.path)).name

    def __iter__(self) -> Iterator[Pair]:
        number = 0
        for number, line in enumerate(read_lines(self.path), 1):
            columns = line.split("\t")
            if len(columns) != 2:
                found = "a blank line" if not line else "no tab" if len(columns) == 1 else f"{len(columns)} columns"
                remedy = "JSONL can hold text with tabs" if len(columns) > 2 else "put one tab between the two"
                raise SaccadeError(
                    f"{_where(self.path)}, line {number:,}: {found}, expected source<TAB>target; {remedy}"
                )
            yield Pair(columns[0], columns[1], number)
        if number == 0:
            raise _empty(self.path)


@dataclass(frozen=True)
class JSONCorpus:
    """A file with one JSON object a line."""

    path: str
    fields: Fields

    @property
    def name(self) -> str:
        return Path(_where(self.path)).name

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
            raise _empty(self.path)

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


@dataclass(frozen=True)
class ParquetCorpus:
    """A Parquet file with a column for each side."""

    path: str
    fields: Fields

    def __post_init__(self) -> None:
        _import_extra("pyarrow.parquet", "parquet", self.path)

    @property
    def name(self) -> str:
        return Path(_where(self.path)).name

    def __iter__(self) -> Iterator[Pair]:
        parquet = importlib.import_module("pyarrow.parquet")
        with _bytes_of(self.path) as stream, tempfile.TemporaryFile() as unzipped:
            if isinstance(stream.raw, gzip.GzipFile):  # Parquet is read from its end, gzip only from its start
                shutil.copyfileobj(stream, unzipped)
            file = unzipped if isinstance(stream.raw, gzip.GzipFile) else stream
            try:
                table = parquet.ParquetFile(file)
                columns = _arrow_columns(table.schema_arrow, self.fields, self.path)
                batches = table.iter_batches(ROWS_AT_ONCE, columns=sorted({path[0] for path in columns}))
                yield from _arrow_pairs(batches, columns, self.path)
            except (OSError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise SaccadeError(
                    f"{self.path}: not a whole Parquet file ({reason}); copy or write it again"
                ) from None


@dataclass(frozen=True)
class HubCorpus:
    """A public dataset, fetched once by the `datasets` library and then read from its cache."""

    dataset: str
    configuration: str | None
    split: str
    fields: Fields

    @classmethod
    def of(cls, reference: str, fields: Fields) -> "HubCorpus":
        """Read `hub:NAME`, `hub:OWNER/NAME` or `hub:OWNER/NAME/CONFIG`, each with `:SPLIT` after it or not."""
        place, _, split = reference.removeprefix(HUB).partition(":")
        parts = place.split("/")
        if not all(parts) or len(parts) > 3:
            raise SaccadeError(f"{reference!r} names no dataset; write hub:OWNER/NAME or hub:OWNER/NAME/CONFIG:SPLIT")
        _import_extra("datasets", "hub", reference)
        return cls("/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split or "train", fields)

    @property
    def name(self) -> str:
        configuration = f"/{self.configuration}" if self.configuration else ""
        return f"{HUB}{self.dataset}{configuration}:{self.split}"

    def __iter__(self) -> Iterator[Pair]:
        columns = _arrow_columns(self._rows.features.arrow_schema, self.fields, self.name)
        batches = self._rows.with_format("arrow").iter(ROWS_AT_ONCE)
        return _arrow_pairs(batches, columns, self.name)

    @cached_property
    def _rows(self) -> Any:
        datasets = importlib.import_module("datasets")
        try:
            return datasets.load_dataset(self.dataset, self.configuration, split=self.split)
        except Exception as error:  # whatever the library's HTTP client, cache and builders raise, it ends here
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SaccadeError(
                f"{self.name}: the dataset cannot be loaded ({reason}); check the network and the name, "
                "which is hub:OWNER/NAME/CONFIG:SPLIT"
            ) from error


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


@contextmanager
def _bytes_of(path: str) -> Iterator[io.BufferedReader]:
    """The bytes of a file or of standard input, unzipped where they begin as gzip does."""
    with ExitStack() as stack:
        try:
            if path == STANDARD_INPUT:
                stream = cast(io.BufferedReader, sys.stdin.buffer)
                if not isinstance(stream, io.BufferedReader):  # a stand-in for standard input cannot peek
                    stream = io.BufferedReader(stream)
                    stack.callback(stream.detach)
            else:
                stream = stack.enter_context(open(path, "rb"))
            if stream.peek(2).startswith(_GZIP):
                stream = stack.enter_context(io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream))))
            yield stream
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise SaccadeError(
                f"{_where(path)}: the gzip data is damaged or ends too early; copy or download it again "
                "(gzip -t tests a file)"
            ) from None
        except OSError as error:
            raise _unreadable(path, error) from None


def _check_readable(path: str) -> None:
    try:
        if not Path(path).is_fifo():  # opening a pipe waits for its writer, and closing it ends the writer
            open(path, "rb").close()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> SaccadeError:
    if isinstance(error, FileNotFoundError):
        folder = Path(path).parent
        beside = os.listdir(folder) if os.access(folder, os.R_OK) else []
        near = difflib.get_close_matches(Path(path).name, beside, n=1, cutoff=0.6)
        remedy = f"did you mean {folder / near[0]}?" if near else "check the name and the folder"
        return SaccadeError(f"{path}: there is no such file; {remedy}")
    if isinstance(error, IsADirectoryError):
        return SaccadeError(f"{path}: a folder, not a file; name the files in it")
    if isinstance(error, PermissionError):
        return SaccadeError(f"{path}: no permission to read it; chmod +r {shlex.quote(path)} may help")
    return SaccadeError(f"{_where(path)}: cannot be read: {error.strerror or error}; check the name")


def _refuse_binary(path: str, head: bytes) -> None:
    what = next((what for start, what in _NOT_TEXT.items() if head.startswith(start)), None)
    # A stray NUL is left to cleaning; no text has many.
    if what is None and head.count(0) >= 8 and head.count(0) > len(head) / 10:
        what = "binary, not text; give a text file in UTF-8"
    if what is not None:
        raise SaccadeError(f"{_where(path)}: the file is {what}")


def _not_utf8(path: str, number: int, error: UnicodeDecodeError) -> SaccadeError:
    value = error.object[error.start]
    return SaccadeError(
        f"{_where(path)}, line {number:,}, byte {error.start + 1:,} (0x{value:02X}): not UTF-8; "
        "if it is Latin-1, convert it with iconv -f latin1 -t utf-8"
    )


def _no_partner(path: str) -> SaccadeError:
    return SaccadeError(
        f"{path}: no target file after it; text files come in pairs, source then target "
        "(one file with both sides must end in .tsv, .jsonl or .parquet)"
    )


def _empty(*paths: str) -> SaccadeError:
    where = " and ".join(_where(path) for path in paths)
    if any(map(_is_pipe, paths)):
        return SaccadeError(f"{where}: nothing to read; a pipe can be read only once, a file again and again")
    return SaccadeError(f"{where}: empty; there is not one pair to read, check how it was made")


def _is_pipe(path: str) -> bool:
    return path == STANDARD_INPUT or Path(path).is_fifo()


def _where(path: str) -> str:
    return "standard input" if path == STANDARD_INPUT else path


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


def _import_extra(module: str, extra: str, needed_by: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SaccadeError(f"{needed_by} needs {module.split('.')[0]}: pip install 'saccade[{extra}]'") from None


def _arrow_columns(schema: Any, fields: Fields, where: str) -> Paths:
    """The paths of the two columns, each checked to hold text."""
    from pyarrow import types

    for paths in fields.candidates:
        kinds = [_arrow_type(schema, path) for path in paths]
        if None in kinds:
            continue
        for path, kind in zip(paths, kinds, strict=True):
            text = kind.value_type if types.is_dictionary(kind) else kind
            if not (types.is_string(text) or types.is_large_string(text) or types.is_string_view(text)):
                raise SaccadeError(f"{where}: column {'.'.join(path)!r} holds {kind}, not text; name another column")
        return paths
    languages = _arrow_type(schema, ("translation",))
    known = [field.name for field in languages] if languages is not None and types.is_struct(languages) else []
    raise fields.missing(where, "column", schema.names, known)


def _arrow_type(schema: Any, path: tuple[str, ...]) -> Any:
    from pyarrow import types

    if schema.get_field_index(path[0]) < 0:
        return None
    kind = schema.field(path[0]).type
    for key in path[1:]:
        if not types.is_struct(kind) or kind.get_field_index(key) < 0:
            return None
        kind = kind.field(key).type
    return kind


def _arrow_pairs(batches: Iterable[Any], columns: Paths, where: str) -> Iterator[Pair]:
    from pyarrow import compute

    number = 0
    for batch in batches:
        sides = []
        for path in columns:
            column = batch.column(path[0])
            if len(path) > 1:
                column = compute.struct_field(column, list(path[1:]))
            try:
                texts = column.to_pylist()
            except UnicodeDecodeError:
                rows = f"rows {number + 1:,} to {number + len(column):,}"
                found = f"column {'.'.join(path)!r} is not UTF-8"
                raise SaccadeError(f"{where}, {rows}: {found}; write the file again from text") from None
            if None in texts:
                row, found = number + texts.index(None) + 1, f"column {'.'.join(path)!r} is null"
                raise SaccadeError(f"{where}, row {row:,}: {found}; remove the row or make it an empty text")
            sides.append(texts)
        for source, target in zip(*sides, strict=True):
            number += 1
            yield Pair(source, target, number)
    if number == 0:
        raise _empty(where)
