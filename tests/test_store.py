import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.store import Store, StoreWriter
from saccade.errors import SaccadeError
from saccade.files import sweep_partials

PAIRS = [([5, 6, 7], [8, 9]), ([], [4]), ([10] * 9, [])]


def written(folder, pairs=PAIRS, vocabulary=100):
    with StoreWriter(folder, source_vocabulary=vocabulary, target_vocabulary=vocabulary) as writer:
        writer.extend(pairs)
    return folder


@given(
    vocabulary=st.sampled_from([50, 65_536, 65_537, 200_000]),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_what_is_written_is_read_back(vocabulary, data):
    sentence = st.lists(st.integers(1, vocabulary - 1), max_size=12)
    pairs = data.draw(st.lists(st.tuples(sentence, sentence), max_size=20))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(written(Path(folder) / "store", pairs, vocabulary))
        assert len(store) == len(pairs)
        assert [(store.source(i).tolist(), store.target(i).tolist()) for i in range(len(store))] == pairs
        assert [tuple(side.tolist() for side in store.pair(i)) for i in range(len(store))] == pairs
        assert store.source_lengths.tolist() == [len(source) for source, _ in pairs]
        assert store.target_lengths.tolist() == [len(target) for _, target in pairs]
        assert store.source_lengths.dtype == store.target_lengths.dtype == np.int32
        assert store.tokens == (sum(len(source) for source, _ in pairs), sum(len(target) for _, target in pairs))


def test_what_passes_through_many_buffers_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr("saccade.data.store._BUFFERED_IDS", 7)
    pairs = [(list(range(4, 4 + n % 11)), list(range(4, 4 + n % 7))) for n in range(200)]
    store = Store(written(tmp_path / "store", pairs))
    assert [tuple(side.tolist() for side in store.pair(i)) for i in range(len(store))] == pairs


def test_a_small_vocabulary_takes_two_bytes_a_token_and_a_large_one_four(tmp_path):
    small, large = written(tmp_path / "small", vocabulary=65_536), written(tmp_path / "large", vocabulary=65_537)
    assert (small / "tokens.bin").stat().st_size == 2 * 15
    assert (large / "tokens.bin").stat().st_size == 4 * 15


def test_a_store_keeps_the_vocabularies_it_was_made_for(tmp_path):
    with StoreWriter(tmp_path / "store", source_vocabulary=30, target_vocabulary=40):
        pass
    store = Store(tmp_path / "store")
    assert (store.source_vocabulary, store.target_vocabulary, len(store)) == (30, 40, 0)


def test_arrays_can_be_appended_as_well_as_lists(tmp_path):
    store = Store(written(tmp_path / "store", [(np.array([5, 6]), np.array([], dtype=np.int64))]))
    assert store.source(0).tolist() == [5, 6]
    assert store.target(0).tolist() == []


@pytest.mark.parametrize("i", [-1, 3])
def test_a_pair_outside_the_store_is_refused(tmp_path, i):
    with pytest.raises(IndexError, match=f"pair {i} of a store of 3"):
        Store(written(tmp_path / "store")).pair(i)


@pytest.mark.parametrize("ids", [[4, 100], [0, 5], [-1]])
def test_an_id_that_is_no_token_is_refused_and_leaves_nothing(tmp_path, ids):
    with pytest.raises(
        ValueError, match=r"target of pair 1: ids .* above PAD=0 and below the vocabulary's 100; encode"
    ):
        written(tmp_path / "store", [([4], [4]), ([4], ids)])
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def pairs():
        yield [4], [5]
        raise RuntimeError("bad line")

    with pytest.raises(RuntimeError, match="bad line"):
        written(tmp_path / "store", pairs())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_not_overwritten(tmp_path):
    folder = written(tmp_path / "store")
    with pytest.raises(SaccadeError, match=r"store: already there; remove it, or write the token store somewhere else"):
        written(folder, [])
    assert len(Store(folder)) == len(PAIRS)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaccadeError, match=r"store: cannot write the token store after 0 pairs: .*; make room or give"):
        written(tmp_path / "file" / "deeper" / "store")


FULL_DISK = """
import resource, sys
from saccade.data.store import StoreWriter
from saccade.errors import SaccadeError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with StoreWriter(sys.argv[1], source_vocabulary=100, target_vocabulary=100) as writer:
        writer.extend(([5] * 20, [6] * 20) for _ in range(10_000))
except SaccadeError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, tmp_path / "store"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "store: cannot write the token store after 6," in result.stdout
    assert result.stdout.endswith("make room or give access there, or write it somewhere else\n")
    assert list(tmp_path.iterdir()) == []


ENDLESS = """
import sys
from saccade.data.store import StoreWriter
with StoreWriter(sys.argv[1], source_vocabulary=100, target_vocabulary=100) as writer:
    for number in range(10**12):
        writer.append([5] * 20, [6] * 20)
        if number == 50_000:
            print("writing", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_killed_writer_leaves_no_store_that_opens(tmp_path):
    command = [sys.executable, "-c", ENDLESS, tmp_path / "store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "store").exists()
    (tokens,) = tmp_path.glob(".store.*.partial/store/tokens.bin")
    assert tokens.stat().st_size > 0
    with pytest.raises(SaccadeError, match=r"store\.json: not there, so .* is no token store; prepare the data again"):
        Store(tokens.parent)
    sweep_partials(tmp_path)
    assert len(Store(written(tmp_path / "store"))) == len(PAIRS)


@pytest.mark.parametrize("name", ["tokens.bin", "source.bin", "target.bin"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_named_with_the_remedy(tmp_path, name, change):
    folder = written(tmp_path / "store")
    size = (folder / name).stat().st_size
    os.truncate(folder / name, size + change)
    message = (
        rf"{name}: it has {size + change} bytes where store.json says {size}; remove .*store if it is a token store"
    )
    with pytest.raises(SaccadeError, match=message):
        Store(folder)


def test_a_missing_file_is_named(tmp_path):
    folder = written(tmp_path / "store")
    (folder / "tokens.bin").unlink()
    with pytest.raises(SaccadeError, match=r"tokens\.bin: it is missing; .* prepare the data again"):
        Store(folder)


@pytest.mark.parametrize("lengths", [[3, 0, 8], [-3, 0, 15]])
def test_lengths_that_do_not_add_up_are_refused(tmp_path, lengths):
    folder = written(tmp_path / "store")
    (folder / "source.bin").write_bytes(np.array(lengths, "<i4").tobytes())
    with pytest.raises(SaccadeError, match=r"source\.bin: its lengths do not add up to the 12 tokens of store\.json"):
        Store(folder)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{", r"store\.json: it is not JSON; remove"),
        ("\xff\xfe", r"store\.json: it is not JSON; remove"),
        ("[]", r"store\.json: its format is not saccade-store-1; remove"),
        ('{"format": "other"}', r"store\.json: its format is not saccade-store-1; remove"),
        ({"pairs": -1}, r"store\.json: pairs is -1, not a count; remove"),
        ({"source_tokens": "12"}, r"store\.json: source_tokens is '12', not a count; remove"),
        ({"dtype": "float64"}, r"store\.json: dtype is 'float64', neither uint16 nor uint32; remove"),
    ],
)
def test_a_foreign_header_is_refused(tmp_path, header, message):
    path = written(tmp_path / "store") / "store.json"
    if isinstance(header, dict):
        header = json.dumps(json.loads(path.read_text()) | header)
    path.write_bytes(header.encode("latin-1"))
    with pytest.raises(SaccadeError, match=message):
        Store(path.parent)


def test_a_header_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "store.json").mkdir()
    with pytest.raises(SaccadeError, match=r"store\.json: cannot read it: Is a directory; make it readable"):
        Store(tmp_path)


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SaccadeError, match=r"store\.json: not there, so .* is no token store"):
            Store(folder)


def test_a_file_cut_short_while_in_use_is_noticed(tmp_path):
    store = Store(written(tmp_path / "store"))
    os.truncate(tmp_path / "store" / "tokens.bin", 4)
    with pytest.raises(SaccadeError, match=r"tokens\.bin: it became shorter while it was in use"):
        store.pair(2)


def test_a_store_gives_its_file_back(tmp_path):
    store = Store(written(tmp_path / "store"))
    descriptor = store._descriptor
    del store
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
