"""Mixtures: exact proportions, each corpus gone through evenly, the same on resuming, stored or streamed."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import saccade
from saccade import api
from saccade.config import Config
from saccade.data.batching import Batcher
from saccade.data.mixture import Part, apportioned, check_mixture, drawn, shares
from saccade.data.store import Store, StoreWriter
from saccade.data.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.training import checkpoint

SHORT = ("training.batch_tokens=150", "training.validate_every=3", "training.log_every=1", "training.average=1")
parts = st.lists(st.builds(Part, st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=4)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A large corpus and a small one."""
    for name, count in (("large", 120), ("small", 20)):
        lines = [f"{name} {number}\t{number} {name[::-1]}\n" for number in range(count)]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    return [str(tmp_path / "large.tsv"), str(tmp_path / "small.tsv")]


def mixture(files: list[str], **more: object) -> dict[str, object]:
    tags = ("<L>", "<S>")
    return {"mixture": [{"train": [file], "tag": tag} | more for file, tag in zip(files, tags, strict=True)]}


def test_shares_by_temperature_by_hand():
    assert shares([900, 100], [None, None], 1.0) == pytest.approx([0.9, 0.1])
    assert shares([900, 100], [None, None], 2.0) == pytest.approx([0.75, 0.25])  # 30 : 10
    assert shares([900, 100], [None, None], 1e9) == pytest.approx([0.5, 0.5])
    assert shares([900, 100], [3.0, 1.0], 1.0) == [0.75, 0.25]


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=6), st.integers(6, 1000))
def test_whole_numbers_are_as_near_to_the_shares_as_can_be(weights, total):
    share = np.array(weights) / sum(weights)
    counts = apportioned(share.tolist(), total)
    assert sum(counts) == total
    assert min(counts) >= 1
    assert all(abs(count - part * total) < len(counts) for count, part in zip(counts, share, strict=True))


@given(mixed=parts, seed=st.integers(0, 5), epochs=st.integers(1, 6))
@settings(deadline=None)
def test_each_epoch_has_the_shares_and_no_pair_comes_twice_before_all_came_once(mixed, seed, epochs):
    total: Counter[int] = Counter()
    begin = np.cumsum([0, *(part.pairs for part in mixed)])
    for epoch in range(epochs):
        found = drawn(mixed, seed, epoch)
        corpora = np.searchsorted(begin, found, side="right") - 1
        assert np.bincount(corpora, minlength=len(mixed)).tolist() == [part.taken for part in mixed]
        total.update(found.tolist())
    for number in range(len(mixed)):
        times = [total[pair] for pair in range(begin[number], begin[number + 1])]
        assert max(times) - min(times) <= 1


@given(mixed=parts, budget=st.integers(8, 60), world=st.integers(1, 3), data=st.data())
@settings(deadline=None, max_examples=40)
def test_batches_of_a_mixture_resume_and_are_shared_out_like_others(tmp_path_factory, mixed, budget, world, data):
    folder = tmp_path_factory.mktemp("mixed") / "store"
    with StoreWriter(folder, source_vocabulary=90, target_vocabulary=90) as writer:
        writer.extend(([4 + n % 80] * (n % 7), [4 + n % 80] * (n % 5)) for n in range(sum(p.pairs for p in mixed)))
    keywords = {"batch_tokens": budget, "seed": 3, "mixture": mixed}
    batcher = Batcher(Store(folder), **keywords)
    taken = data.draw(st.integers(0, 3 * batcher.batches_in(0)))
    items = list(islice(batcher.stream(), taken + 5))
    for epoch in (0, 1):
        rows = sorted(n for batch in batcher.epoch(epoch) for n in batch.indices.tolist())
        assert rows == sorted(drawn(mixed, 3, epoch).tolist())
    going_on = Batcher(Store(folder), **keywords).stream(*[items[taken - 1][0]] * bool(taken))
    for (one, batch), (other, same) in zip(items[taken:], going_on, strict=False):
        assert one == other
        assert batch.indices.tolist() == same.indices.tolist()
    ranks = [Batcher(Store(folder), rank=rank, world=world, **keywords).epoch(1) for rank in range(world)]
    for batch, *held in zip(batcher.epoch(1), *ranks, strict=True):
        rows = [n for share in held for n in share.indices.tolist() if share.target_tokens]
        assert sorted(rows) == sorted(batch.indices.tolist())


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_has_the_proportions_it_says_tags_in_front_and_resumes(stream, tmp_path, files, tiny):
    data = mixture(files) | {"temperature": 2.0, "stream": stream, "stream_window": 40, "valid_pairs": 8}
    arguments = [setting for setting in tiny if not setting.startswith("data.")]
    whole, two = tmp_path / "whole", tmp_path / "two"
    steps = ("training.warmup_steps=1", *SHORT)
    saccade.train(*arguments, *steps, "training.max_steps=9", data=data, out=whole, quiet=True)
    for most in (5, 9):
        saccade.train(*arguments, *steps, f"training.max_steps={most}", data=data, out=two, quiet=True)
    one, other = (checkpoint.latest(run / "resume") / "model.safetensors" for run in (whole, two))
    assert one.read_bytes() == other.read_bytes()

    report = json.loads((whole / "record.json").read_text())["data"]
    sizes, taken = ([row[key] for row in report["mixture"]] for key in ("pairs", "taken"))
    assert sum(taken) == (40 if stream else 132)
    assert taken == apportioned(shares(sizes, [None, None], 2.0), sum(taken))
    tokenizers = Tokenizers.load(whole)
    assert len(tokenizers.source.encode("<L> large")) == 1 + len(tokenizers.source.encode("large"))
    store = Store(whole / "resume" / "data" / "train")
    texts = [tokenizers.source.decode(store.source(i).tolist()) for i in range(len(store))]
    assert all(text.startswith(("<L> large ", "<S> small ")) for text in texts)
    assert any(text.startswith("<S>") for text in texts)


def test_streams_of_a_mixture_begin_anew_each_by_itself(tmp_path, files, tiny, monkeypatch):
    from saccade.data.streams import Stream

    seen: list[list[str]] = []
    windows = Stream.windows

    def watched(self, start=None):
        for window in windows(self, start):
            seen.append([self.encode.tokenizers.source.decode(source.tolist()) for source, _ in window.pairs])
            yield window

    monkeypatch.setattr(Stream, "windows", watched)
    data = mixture(files, weight=1.0) | {"stream": True, "stream_window": 60, "valid_pairs": 4}
    arguments = [setting for setting in tiny if not setting.startswith("data.")]
    saccade.train(*arguments, *SHORT, "training.max_steps=12", data=data, out=tmp_path / "run", quiet=True)
    for window in seen:
        assert Counter(text.split()[0] for text in window) == {"<L>": 30, "<S>": 30}
    small = Counter(text for window in seen for text in window if text.startswith("<S>"))
    assert max(small.values()) - min(small.values()) <= 1
    assert min(small.values()) >= 1


def test_each_corpus_may_have_validation_files_of_its_own(tmp_path, files, tiny):
    (tmp_path / "held.tsv").write_text("held one\teno dleh\nheld two\towt dleh\n")
    data = mixture(files)
    data["mixture"][1]["valid"] = [str(tmp_path / "held.tsv")]
    arguments = [setting for setting in tiny if not setting.startswith("data.")]
    api.prepare(*arguments, data=data, out=tmp_path / "run", quiet=True)
    folder = tmp_path / "run" / "resume" / "data"
    tokenizers, valid = Tokenizers.load(folder), Store(folder / "valid")
    assert [tokenizers.source.decode(valid.source(i).tolist()) for i in range(2)] == ["<S> held one", "<S> held two"]
    assert len(Store(folder / "train")) == 140


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"temperature": 2}, r"data\.temperature=2 is for data\.mixture"),
        ({"train": ["a"], "mixture": [{"train": ["b"]}]}, r"data\.train=\['a'\] and data\.mixture are both given"),
        ({"mixture": [{"train": ["a"], "weight": 1}, {"train": ["b"]}]}, r"data\.mixture\.1: has no weight"),
        ({"mixture": [{"train": ["a"], "weight": 1}], "temperature": 3}, "has weights; leave one out"),
        ({"mixture": [{"train": ["a"], "tag": "to de"}]}, r"tag='to de' is not one word"),
        ({"mixture": [{"train": ["a"], "tag": "<a>"}], "monolingual": True}, "stands before a source"),
        ({"mixture": [{"train": ["a"]}], "replay_share": 0.2}, "make it a corpus of the mixture"),
    ],
)
def test_a_mixture_that_says_two_things_is_refused(data, message):
    with pytest.raises(SaccadeError, match=message):
        check_mixture(Config.of({"data": data}).data)


def test_a_misspelt_setting_of_a_corpus_is_named_with_the_nearest():
    with pytest.raises(SaccadeError, match=r"unknown setting data\.mixture\.0\.wieght; did you mean .*weight"):
        Config.of({"data": {"mixture": [{"train": ["a"], "wieght": 2}]}})
