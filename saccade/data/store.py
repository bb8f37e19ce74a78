"""Token ids on disk, one example read at a time, so that memory does not grow with the corpus.

A store is a folder of four files, little-endian:

    tokens.bin     the ids of pair 0's source, pair 0's target, pair 1's source, …  (uint16 or uint32)
    source.bin     the length of each source  (int32)
    target.bin     the length of each target  (int32)
    store.json     what the others must be: it is written last and checked first
"""

import json
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from saccade.data.tokenizers import PAD
from saccade.errors import SaccadeError
from saccade.files import written_atomically

Ids = npt.NDArray[np.unsignedinteger[Any]]
Lengths = npt.NDArray[np.int32]

_FORMAT: Final = "saccade-store-1"
_LENGTH: Final = np.dtype("<i4")
_BUFFERED_IDS: Final = 1 << 18
_HELD: Final = 256 << 20  # bytes of a store that is read once and kept, if it is read in any order


class StoreWriter:
    """Write a store pair by pair, with bounded memory; the folder appears whole when the `with` block ends well.

    with StoreWriter("train.store", source_vocabulary=8000, target_vocabulary=8000) as writer:
        writer.append([17, 4, 93], [5, 61])
    """

    def __init__(self, folder: str | Path, *, source_vocabulary: int, target_vocabulary: int) -> None:
        self.folder = Path(folder)
        self.source_vocabulary = source_vocabulary
        self.target_vocabulary = target_vocabulary
        # One width for both sides keeps a pair in one piece, so that it costs one read.
        self._dtype = np.dtype("<u2" if max(source_vocabulary, target_vocabulary) <= 1 << 16 else "<u4")
        self._pairs = self._source_tokens = self._target_tokens = 0
        self._ids: list[int] = []
        self._source_lengths: list[int] = []
        self._target_lengths: list[int] = []

    def __enter__(self) -> "StoreWriter":
        if self.folder.exists():
            raise SaccadeError(f"{self.folder}: already there; remove it, or write the token store somewhere else")
        try:
            with ExitStack() as stack:
                self._part = stack.enter_context(written_atomically(self.folder))
                self._part.mkdir()
                self._tokens_file, self._source_file, self._target_file = (
                    # Unbuffered: a buffer that a full disk refused would be tried again, and fail again, on closing.
                    stack.enter_context((self._part / name).open("wb", buffering=0))
                    for name in ("tokens.bin", "source.bin", "target.bin")
                )
                stack.push(self._finish)
                self._stack = stack.pop_all()
        except OSError as error:
            raise self._cannot_write(error) from error
        return self

    def append(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Add one pair: ids without BOS and EOS; either side may be empty."""
        self._check("source", source, self.source_vocabulary)
        self._check("target", target, self.target_vocabulary)
        self._ids.extend(source)
        self._ids.extend(target)
        self._source_lengths.append(len(source))
        self._target_lengths.append(len(target))
        self._source_tokens += len(source)
        self._target_tokens += len(target)
        self._pairs += 1
        # Empty pairs add no ids, but their lengths take room too.
        if len(self._ids) + len(self._source_lengths) >= _BUFFERED_IDS:
            self._flush()

    def extend(self, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Add many pairs."""
        for source, target in pairs:
            self.append(source, target)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def _check(self, side: str, ids: Sequence[int], vocabulary: int) -> None:
        # PAD would be masked as if it were not there, and an id past the vocabulary would wrap to another word.
        if len(ids) and not PAD < min(ids) <= max(ids) < vocabulary:
            raise ValueError(
                f"{side} of pair {self._pairs}: ids {min(ids)} to {max(ids)}, but a token is above PAD={PAD} "
                f"and below the vocabulary's {vocabulary:,}; encode it with the tokenizer the store is made for"
            )

    def _flush(self) -> None:
        try:
            for file, values, dtype in (
                (self._tokens_file, self._ids, self._dtype),
                (self._source_file, self._source_lengths, _LENGTH),
                (self._target_file, self._target_lengths, _LENGTH),
            ):
                data = memoryview(np.array(values, dtype).tobytes())
                while data:
                    data = data[file.write(data) :]
                values.clear()
        except OSError as error:
            raise self._cannot_write(error) from error

    def _finish(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        self._flush()
        header = {
            "format": _FORMAT,
            "dtype": self._dtype.name,
            "pairs": self._pairs,
            "source_tokens": self._source_tokens,
            "target_tokens": self._target_tokens,
            "source_vocabulary": self.source_vocabulary,
            "target_vocabulary": self.target_vocabulary,
        }
        (self._part / "store.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")

    def _cannot_write(self, error: OSError) -> SaccadeError:
        return SaccadeError(
            f"{self.folder}: cannot write the token store after {self._pairs:,} pairs: {error.strerror}; "
            "make room or give access there, or write it somewhere else"
        )


class Store:
    """The pairs of a corpus as token ids, without BOS and EOS; only the lengths are kept in memory.

    Examples are read with `pread` rather than through a memory map: batches touch pairs all over the file, and
    each page a map touches (with its neighbours) counts as this process's memory until the whole file does.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        header = self._header()
        self.source_vocabulary: int = header["source_vocabulary"]
        self.target_vocabulary: int = header["target_vocabulary"]
        self.tokens: tuple[int, int] = (header["source_tokens"], header["target_tokens"])
        self._dtype = np.dtype(header["dtype"]).newbyteorder("<")
        self._size_checked("tokens.bin", sum(self.tokens) * self._dtype.itemsize)
        self.source_lengths: Lengths = self._lengths("source.bin", header["pairs"], self.tokens[0])
        self.target_lengths: Lengths = self._lengths("target.bin", header["pairs"], self.tokens[1])
        # One element more than pairs: pair i lies between starts[i] and starts[i + 1].
        self._starts = np.zeros(len(self.source_lengths) + 1, np.int64)
        np.cumsum(self.source_lengths, out=self._starts[1:])
        self._starts[1:] += np.cumsum(self.target_lengths, dtype=np.int64)
        self._all: Ids | None = None
        self._descriptor = os.open(self.folder / "tokens.bin", os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def pair(self, i: int) -> tuple[Ids, Ids]:
        """Source and target of pair `i`, in one read."""
        if not 0 <= i < len(self):
            raise IndexError(f"pair {i} of a store of {len(self)}")
        ids = self._read(int(self._starts[i]), int(self._starts[i + 1]))
        return ids[: self.source_lengths[i]], ids[self.source_lengths[i] :]

    def sides(self, indices: npt.NDArray[np.int64]) -> tuple[Ids, Ids]:
        """The sources of some pairs, one behind the other, and their targets; of a small store, in one piece."""
        if self._starts[-1] * self._dtype.itemsize > _HELD:
            pairs = [self.pair(i) for i in indices.tolist()]
            return np.concatenate([source for source, _ in pairs]), np.concatenate([target for _, target in pairs])
        if self._all is None:
            self._all = self._read(0, int(self._starts[-1]))
        starts = self._starts[indices]
        sources, targets = self.source_lengths[indices], self.target_lengths[indices]
        return self._all[_ranges(starts, sources)], self._all[_ranges(starts + sources, targets)]

    def source(self, i: int) -> Ids:
        """The source of pair `i`."""
        return self.pair(i)[0]

    def target(self, i: int) -> Ids:
        """The target of pair `i`."""
        return self.pair(i)[1]

    def _read(self, start: int, end: int) -> Ids:
        size = self._dtype.itemsize
        data = os.pread(self._descriptor, (end - start) * size, start * size)
        if len(data) != (end - start) * size:
            raise self._damaged("tokens.bin", "it became shorter while it was in use")
        return np.frombuffer(data, self._dtype)

    def _header(self) -> dict[str, Any]:
        path = self.folder / "store.json"
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise SaccadeError(
                f"{path}: not there, so {self.folder} is no token store; prepare the data again"
            ) from None
        except OSError as error:
            raise SaccadeError(f"{path}: cannot read it: {error.strerror}; make it readable") from None
        except ValueError:
            raise self._damaged("store.json", "it is not JSON") from None
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise self._damaged("store.json", f"its format is not {_FORMAT}")
        counts = ("pairs", "source_tokens", "target_tokens", "source_vocabulary", "target_vocabulary")
        for name in counts:
            if type(header.get(name)) is not int or header[name] < 0:
                raise self._damaged("store.json", f"{name} is {header.get(name)!r}, not a count")
        if header.get("dtype") not in ("uint16", "uint32"):
            raise self._damaged("store.json", f"dtype is {header.get('dtype')!r}, neither uint16 nor uint32")
        return header

    def _size_checked(self, name: str, expected: int) -> Path:
        path = self.folder / name
        try:
            actual = path.stat().st_size
        except FileNotFoundError:
            raise self._damaged(name, "it is missing") from None
        if actual != expected:
            raise self._damaged(name, f"it has {actual:,} bytes where store.json says {expected:,}")
        return path

    def _lengths(self, name: str, pairs: int, tokens: int) -> Lengths:
        path = self._size_checked(name, pairs * _LENGTH.itemsize)
        lengths = np.fromfile(path, _LENGTH).astype(np.int32, copy=False)
        if lengths.sum(dtype=np.int64) != tokens or (lengths < 0).any():
            raise self._damaged(name, f"its lengths do not add up to the {tokens:,} tokens of store.json")
        lengths.flags.writeable = False
        return lengths

    def _damaged(self, name: str, what: str) -> SaccadeError:
        return SaccadeError(
            f"{self.folder / name}: {what}; remove {self.folder} if it is a token store, and prepare the data again"
        )


def _ranges(starts: npt.NDArray[np.int64], lengths: Lengths) -> npt.NDArray[np.int64]:
    """The numbers start … start + length - 1 of each, one behind the other."""
    ends = lengths.cumsum(dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
