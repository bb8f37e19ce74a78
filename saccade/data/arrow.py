"""Corpora in columns: Parquet files and public datasets."""

import gzip
import importlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.data.lines import bytes_of, empty, where_is
from saccade.data.pairs import Fields, Pair, Paths
from saccade.errors import SaccadeError

HUB = "hub:"
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class ParquetCorpus:
    """A Parquet file with a column for each side."""

    path: str
    fields: Fields

    def __post_init__(self) -> None:
        _import_extra("pyarrow.parquet", "parquet", self.path)

    @property
    def name(self) -> str:
        return Path(where_is(self.path)).name

    def __iter__(self) -> Iterator[Pair]:
        with self._opened() as table:
            columns = _arrow_columns(table.schema_arrow, self.fields, self.path)
            batches = table.iter_batches(ROWS_AT_ONCE, columns=sorted({path[0] for path in columns}))
            yield from _arrow_pairs(batches, columns, self.path)

    def groups(self) -> list[int]:
        """How many rows each row group has: the file's last few kilobytes say so."""
        with self._opened() as table:
            _arrow_columns(table.schema_arrow, self.fields, self.path)
            return [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]

    def of_groups(self, groups: Sequence[int], skip: int = 0) -> Iterator[Pair]:
        """The pairs of some row groups, in that order, without the first `skip`; what is skipped is not read."""
        with self._opened() as table:
            columns = _arrow_columns(table.schema_arrow, self.fields, self.path)
            rows = [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
            for group in groups:
                if skip >= rows[group]:
                    skip -= rows[group]
                    continue
                batches = table.iter_batches(
                    ROWS_AT_ONCE, row_groups=[group], columns=sorted({path[0] for path in columns})
                )
                yield from islice(_arrow_pairs(batches, columns, self.path, sum(rows[:group])), skip, None)
                skip = 0

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        parquet = importlib.import_module("pyarrow.parquet")
        with bytes_of(self.path) as stream, tempfile.TemporaryFile() as unzipped:
            if isinstance(stream.raw, gzip.GzipFile):  # Parquet is read from its end, gzip only from its start
                shutil.copyfileobj(stream, unzipped)
            file = unzipped if isinstance(stream.raw, gzip.GzipFile) else stream
            try:
                yield parquet.ParquetFile(file)
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


def _arrow_pairs(batches: Iterable[Any], columns: Paths, where: str, before: int = 0) -> Iterator[Pair]:
    """The pairs of record batches; `before`: rows of the file that come before them."""
    from pyarrow import compute

    number = before
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
    if number == before:
        raise empty(where)
