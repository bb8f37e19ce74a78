"""Streams: the same batches whoever reads them, from any place, and every pair once."""

import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import saccade
from saccade.config import CleaningConfig, Config
from saccade.data import builtin, shards
from saccade.data.arrow import ParquetCorpus
from saccade.data.batching import START, Batch, Batcher, Position
from saccade.data.cleaning import digest_of
from saccade.data.corpora import expanded, open_corpora
from saccade.data.shards import Place, ShardedCorpus
from saccade.data.store import Store, StoreWriter
from saccade.data.streams import Encoder, Source, Stream
from saccade.data.tokenizers import BOS, EOS, PAD, Tokenizer, Tokenizers
from saccade.data.windows import StreamBatcher, arrange
from saccade.errors import SaccadeError
from saccade.training import checkpoint

TOKENIZER = Tokenizer.train([], "bytes", 300)
PAIRS = list(dict.fromkeys(islice(builtin.pairs("en", "de", seed=3), 280)))[:260]
KINDS = ("parquet", "jsonl", "text")


def put(folder: Path, kind: str, pairs=PAIRS, files: int = 5) -> list[str]:
    """The pairs in some files; returns what names them all."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        part = pairs[number::files]
        sides = [[pair[side] for pair in part] for side in (0, 1)]
        if kind == "parquet":
            table = pa.table({"source": sides[0], "target": sides[1]})
            pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=11)
        elif kind == "jsonl":
            lines = [json.dumps({"source": source, "target": target}) + "\n" for source, target in part]
            with gzip.open(folder / f"part-{number}.jsonl.gz", "wt", encoding="utf-8") as file:
                file.writelines(lines)
        else:
            for language, side in zip(("en", "de"), sides, strict=True):
                with gzip.open(folder / f"part-{number}.{language}.gz", "wt", encoding="utf-8") as file:
                    file.writelines(line + "\n" for line in side)
    return [f"{folder}/*.en.gz", f"{folder}/*.de.gz"] if kind == "text" else [str(folder)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(shards, "BLOCK", 7)


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, list[str]]:
    return {kind: put(tmp_path_factory.mktemp("shards") / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Store:
    folder = tmp_path_factory.mktemp("sample") / "store"
    with StoreWriter(folder, source_vocabulary=300, target_vocabulary=300) as writer:
        writer.extend((TOKENIZER.encode(source), TOKENIZER.encode(target)) for source, target in PAIRS[::4])
    return Store(folder)


def stream_of(files: list[str], window: int = 60, workers: int = 0, seed: int = 1, **encoder: Any) -> Stream:
    encode = Encoder(Tokenizers(TOKENIZER, TOKENIZER), **{"cleaning": CleaningConfig(drop_copies=False)} | encoder)
    corpus = ShardedCorpus.of("all", open_corpora(files), (seed, 0), 3)
    return Stream([Source(corpus, "", window)], encode, len(PAIRS), workers)


def batcher_of(stream: Stream, sample: Store, **keywords: Any) -> StreamBatcher:
    return StreamBatcher(stream, Batcher(sample, batch_tokens=400, seed=1), seed=1, **keywords)


def texts(batch: Batch) -> list[tuple[str, str]]:
    sides = [
        [[int(id) for id in row if id not in (PAD, BOS, EOS)] for row in side] for side in (batch.source, batch.target)
    ]
    return [(TOKENIZER.decode(source), TOKENIZER.decode(target)) for source, target in zip(*sides, strict=True)]


def flat(batch: Batch) -> tuple[Any, ...]:
    return batch.source.tolist(), batch.target.tolist(), batch.indices.tolist()


def first_epoch(batcher: StreamBatcher) -> list[Batch]:
    """An epoch is over when its position says so; what is left of a pass then is nothing."""
    return [batch for _, batch in takewhile(lambda item: item[0].epoch == 0, _begun(batcher))]


def _begun(batcher: StreamBatcher):
    """Each batch with the position before it."""
    before = START
    for after, batch in batcher.stream():
        yield before, batch
        before = after


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_has_every_pair_once_and_the_next_has_them_in_another_order(kind, places, sample):
    windows = []
    for window in stream_of(places[kind]).windows():
        if window.begin.places[0].number == 2:
            break
        windows.append((window.begin.places[0].number, window.pairs))
    epochs = [[(a.tobytes(), b.tobytes()) for n, pairs in windows for a, b in pairs if n == epoch] for epoch in (0, 1)]
    assert len(set(epochs[0])) == len(epochs[0]) == len(PAIRS)
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


def test_the_batches_of_an_epoch_are_its_pairs_as_they_were_written(places, sample):
    batches = first_epoch(batcher_of(stream_of(places["parquet"]), sample))
    found = Counter(pair for batch in batches for pair in texts(batch))
    assert set(found) <= set(PAIRS)
    assert max(found.values()) == 1
    assert len(found) == len(PAIRS)
    numbers = sorted(number for batch in batches for number in batch.indices.tolist())
    assert numbers == list(range(len(PAIRS)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(kind, workers, places, sample):
    alone, helped = (batcher_of(stream_of(places[kind], workers=n), sample) for n in (0, workers))
    for (one, batch), (other, same) in islice(zip(alone.stream(), helped.stream(), strict=True), 60):
        assert one == other
        assert flat(batch) == flat(same)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_out_the_batches_of_one(world, places, sample):
    stream = stream_of(places["jsonl"])
    whole = batcher_of(stream, sample).stream()
    ranks = [batcher_of(stream, sample, rank=rank, world=world).stream() for rank in range(world)]
    for (position, batch), *shares in islice(zip(whole, *ranks, strict=True), 50):
        assert {place.batch for place, _ in shares} == {position.batch}
        assert {share.source.shape[1:] for _, share in shares} == {batch.source.shape[1:]}
        held = [share for _, share in shares if share.target_tokens]
        rows = sorted(row for share in held for row in zip(*flat(share), strict=True))
        assert rows == sorted(zip(*flat(batch), strict=True))


@given(
    taken=st.integers(0, 90), kind=st.sampled_from(KINDS), workers=st.sampled_from([0, 2]), window=st.integers(3, 90)
)
@settings(deadline=None, max_examples=40)
def test_a_stream_goes_on_after_any_position_as_if_it_had_not_stopped(places, sample, taken, kind, workers, window):
    items = list(islice(batcher_of(stream_of(places[kind], window), sample).stream(), taken + 12))
    position = items[taken - 1][0] if taken else START
    kept = json.loads(json.dumps(vars(position)))  # as a checkpoint keeps it
    going_on = batcher_of(stream_of(places[kind], window, workers), sample).stream(Position(**kept))
    for (one, batch), (other, same) in zip(items[taken:], going_on, strict=False):
        assert json.dumps(vars(one)) == json.dumps(vars(other))
        assert flat(batch) == flat(same)


def test_going_on_does_not_read_row_groups_that_are_done(places, monkeypatch):
    corpus = stream_of(places["parquet"]).sources[0].corpus
    *_, last = islice(corpus.blocks(Place()), 24)
    reads: list[int] = []
    pairs = shards.ParquetCorpus.of_groups

    def counted(self: ParquetCorpus, groups, skip=0):
        for pair in pairs(self, groups, skip):
            reads.append(pair.line)
            yield pair

    monkeypatch.setattr(shards.ParquetCorpus, "of_groups", counted)
    again = next(corpus.blocks(last.place))
    assert again.pairs == last.pairs
    assert len(reads) == len(last.pairs)


def test_the_order_depends_on_the_seed_and_files_are_read_in_turns(places):
    orders = []
    for seed in (1, 1, 2):
        blocks = list(stream_of(places["parquet"], seed=seed).sources[0].corpus.blocks(Place()))
        orders.append([(block.shard, block.first) for block in blocks])
        assert len({shard for shard, _ in orders[-1][:3]}) == 3
    assert orders[0] == orders[1] != orders[2]


@given(data=st.data(), budget=st.integers(1, 90), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=80)
def test_arranging_holds_the_budget_loses_nothing_and_leaves_few_batches_half_full(data, budget, seed):
    side = st.integers(1, 40)
    lengths = np.array(data.draw(st.lists(st.tuples(side, side), min_size=1, max_size=120)))
    shapes = np.array(data.draw(st.lists(st.tuples(side, side), min_size=1, max_size=8, unique=True)))
    batches = arrange(lengths, shapes, budget, np.random.default_rng(seed))
    rows = sorted(row for found, _ in batches for row in found.tolist())
    assert rows == list(range(len(lengths)))
    partial = Counter()
    for found, shape in batches:
        assert (lengths[found] <= shape).all()
        assert len(found) * max(shape) <= budget or len(found) == 1
        if len(found) < max(1, budget // max(shape)):
            partial[shape] += 1
    assert all(count == 1 for count in partial.values())


def test_the_shapes_are_those_planned_for_the_sample(places, sample):
    batcher = batcher_of(stream_of(places["parquet"]), sample)
    seen = {(batch.source.size(1), batch.inputs.size(1)) for _, batch in islice(batcher.stream(), 80)}
    longest = np.array(batcher.shapes).max(axis=0)
    assert {shape for shape in seen if (np.array(shape) <= longest).all()} <= set(batcher.shapes)
    assert len(seen & set(batcher.shapes)) > 1


def test_a_duplicate_is_dropped_within_its_window_and_counted(tmp_path):
    files = put(tmp_path, "jsonl", [*PAIRS[:20], *PAIRS[:20]], files=2)
    wide = next(stream_of(files, window=100).windows())
    assert len(wide.pairs) == 20
    assert wide.end.tally == {"read": 40, "duplicate": 20, "kept": 20}
    narrow = list(islice(stream_of(files, window=5).windows(), 8))
    assert sum(len(window.pairs) for window in narrow) > 20


def test_what_was_held_out_or_is_too_long_is_left_out_and_counted(tmp_path):
    files = put(tmp_path, "parquet", [*PAIRS[:30], ("", "x"), ("a" * 90, "b" * 90)], files=2)
    stream = stream_of(files, 100, held_out=frozenset([digest_of(*PAIRS[4])]), longest=80)
    window = next(stream.windows())
    assert window.end.tally == {"read": 32, "source blank": 1, "held out": 1, "too many pieces": 1, "kept": 29}
    together = replace(stream, encode=replace(stream.encode, longest=40, together=True))
    assert all(len(source) + len(target) <= 38 for source, target in next(together.windows()).pairs)


def test_the_tally_is_the_same_when_a_run_was_stopped(places):
    stream = stream_of(places["text"], window=13)
    windows = list(islice(stream.windows(), 30))
    for number in (1, 7, 20, 25):
        resumed = list(islice(stream.windows(windows[number].begin), 30 - number))
        assert [window.end for window in resumed] == [window.end for window in windows[number:]]


def test_subwords_are_dropped_anew_in_each_pass_and_by_nothing_but_the_seed(places):
    tokenizer = Tokenizer.train([side for pair in PAIRS for side in pair], "bpe", 400)
    passes = []
    for workers in (0, 3):
        stream = stream_of(places["parquet"], 300, workers, dropout=0.3)
        stream = replace(stream, encode=replace(stream.encode, tokenizers=Tokenizers(tokenizer, tokenizer)))
        passes.append([[source.tolist() for source, _ in window.pairs] for window in islice(stream.windows(), 2)])
    assert passes[0] == passes[1]
    first, second = ({tokenizer.decode(ids): ids for ids in windowed} for windowed in passes[0])
    assert first.keys() == second.keys()
    assert first != second


def test_both_directions_of_a_window(places, sample):
    batches = first_epoch(batcher_of(stream_of(places["jsonl"]), sample, both_ways=True))
    found = {pair for batch in batches for pair in texts(batch)}
    assert found == {*PAIRS, *((target, source) for source, target in PAIRS)}


# Whole runs

STREAMED = ("data.stream=true", "data.stream_window=70", "data.stream_sample=200", "data.stream_interleave=2")
SHORT = ("training.batch_tokens=200", "training.validate_every=3", "training.log_every=1", "training.average=1")


def weights(folder: Path) -> dict[str, Any]:
    tensors = checkpoint.load_tensors(checkpoint.latest(folder / "resume") / "model.safetensors")
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def test_a_run_stopped_in_a_window_goes_on_with_the_very_pairs_and_other_workers(tmp_path, places, tiny):
    files = places["parquet"]
    settings = [*files, *tiny, *STREAMED, *SHORT]
    saccade.train(*settings, "training.max_steps=14", out=tmp_path / "whole", quiet=True)
    saccade.train(*settings, "training.max_steps=7", "training.warmup_steps=1", out=tmp_path / "two", quiet=True)
    more = ("training.max_steps=14", "training.warmup_steps=1", "training.stream_workers=3")
    saccade.train(*settings, *more, out=tmp_path / "two", quiet=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "two")
    states = [checkpoint.latest(tmp_path / name / "resume") / "state.json" for name in ("whole", "two")]
    kept = [json.loads(state.read_text())["place"] for state in states]
    assert kept[0] == kept[1]
    assert kept[0]["window"] > 0


def test_a_run_that_met_a_damaged_file_goes_on_once_it_is_mended(tmp_path, tiny, command):
    put(tmp_path / "shards", "jsonl")
    shard = tmp_path / "shards" / "part-3.jsonl.gz"
    files = ["train", tmp_path / "shards", *tiny, *STREAMED, *SHORT, "training.max_steps=130", "data.stream_sample=30"]
    assert command(*files, "--out", tmp_path / "whole").status == 0
    whole = shard.read_bytes()
    shard.write_bytes(gzip.compress(gzip.decompress(whole)[:-5]))
    done = command(*files, "--out", tmp_path / "run")
    assert done.status == 2
    assert f"error: {shard}, line 52: " in done.err
    assert checkpoint.latest(tmp_path / "run" / "resume") is not None
    shard.write_bytes(whole)
    done = command(*files, "--out", tmp_path / "run")
    assert done.status == 0, done.err
    assert f"stream: {shard} changed since the run began, which goes on with what is there now" in done.err
    assert weights(tmp_path / "whole") == weights(tmp_path / "run")
    assert command(*files, "--out", tmp_path / "run", "data.stream_window=71").status == 2


def test_a_streamed_run_prepares_a_sample_and_says_what_it_is(tmp_path, places, tiny, command):
    done = command(
        "train", *places["text"], *tiny, *STREAMED, *SHORT, "training.max_steps=4", "--out", tmp_path / "run"
    )
    assert done.status == 0, done.err
    assert "pairs in 5 files, a window of 70 at a time" in done.err
    assert "duplicates are dropped within a window, not beyond it" in done.err
    said = re.search(r"stream: read ([\d,]+) pairs, trained on ([\d,]+): (.*)", done.err)
    assert said is not None
    read, kept, *others = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", said[0]))
    assert read == kept + sum(others), "no pair that was read is unaccounted for"
    assert "read ahead" in said[3]
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["data"]["streamed"]["read"] > 0
    about = record["data"]["train_pairs"]
    assert len(PAIRS) / 2 < about < len(PAIRS) * 2  # judged by the bytes of small files
    assert len(Store(tmp_path / "run" / "resume" / "data" / "train")) == 180
    assert Config.load(tmp_path / "run" / "config.yaml").data.target == "de"


def test_no_pair_of_the_validation_set_is_trained_on(tmp_path, places, tiny, monkeypatch):
    seen: set[tuple[str, str]] = set()
    windows = Stream.windows

    def watched(self, start=None):
        for window in windows(self, start):
            decode = self.encode.tokenizers.source.decode
            seen.update((decode(source.tolist()), decode(target.tolist())) for source, target in window.pairs)
            yield window

    monkeypatch.setattr(Stream, "windows", watched)
    out = tmp_path / "run"
    saccade.train(*places["jsonl"], *tiny, *STREAMED, *SHORT, "training.max_steps=15", out=out, quiet=True)
    tokenizer = Tokenizers.load(out).source
    valid = Store(out / "resume" / "data" / "valid")
    held = {tuple(tokenizer.decode(side.tolist()) for side in valid.pair(i)) for i in range(len(valid))}
    assert len(held) == 20
    assert len(seen) > 100
    assert seen <= set(PAIRS) - held


def test_what_cannot_be_streamed_is_refused(tmp_path, tiny, places):
    def refusal(*arguments: str) -> str:
        with pytest.raises(SaccadeError) as error:
            saccade.train(*tiny, *arguments, out=tmp_path / "no", quiet=True)
        return str(error.value)

    assert "data.stream=true reads files; name them" in refusal("data.stream=true")
    assert "standard input can be read only once" in refusal("-", "data.stream=true")
    assert "no file has such a name" in refusal(f"{tmp_path}/*.parquet", "data.stream=true")
    assert not (tmp_path / "no").exists()


def test_patterns_and_folders_stand_for_their_files_in_order(tmp_path):
    for name in ("b.en", "a.en", "a.de", "b.de", "x.tsv", "y.jsonl.gz"):
        (tmp_path / name).write_text("one\ttwo\n")
    found = expanded([f"{tmp_path}/*.en", f"{tmp_path}/*.de", str(tmp_path)])
    assert [Path(file).name for file in found] == ["a.en", "a.de", "b.en", "b.de", "x.tsv", "y.jsonl.gz"]
    (tmp_path / "c.en").write_text("one\n")
    with pytest.raises(SaccadeError, match="should pair up, but the first is 3 files and the second 2"):
        expanded([f"{tmp_path}/*.en", f"{tmp_path}/*.de"])
    with pytest.raises(SaccadeError, match="no file has such a name; check the pattern"):
        expanded([f"{tmp_path}/*.nothing"])
