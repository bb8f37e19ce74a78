"""Bidirectional pre-training: both directions first, then the one that is wanted."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from saccade import SaccadeError, api
from saccade.config import Config, TrainingConfig
from saccade.data.batching import START, Batcher
from saccade.data.both_ways import BothWays
from saccade.data.store import Store, StoreWriter
from saccade.display import Display
from saccade.training.run import train
from saccade.training.stages import stage_of, staged


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with StoreWriter(tmp_path / "store", source_vocabulary=90, target_vocabulary=90) as writer:
        writer.extend([([10 + i % 40] * (3 + i % 9), [50 + i % 40] * (2 + i % 11)) for i in range(200)])
    return Store(tmp_path / "store")


def test_both_ways_has_every_pair_once_in_each_direction(store: Store) -> None:
    both = BothWays(store)
    assert len(both) == 2 * len(store)
    for i in range(len(store)):
        source, target = store.pair(i)
        for one, other in zip(
            (*both.pair(i), *both.pair(len(store) + i)), (source, target, target, source), strict=True
        ):
            assert np.array_equal(one, other)
    assert [len(both.source(i)) for i in range(len(both))] == both.source_lengths.tolist()
    assert [len(both.target(i)) for i in range(len(both))] == both.target_lengths.tolist()
    assert both.tokens == (both.source_lengths.sum(), both.target_lengths.sum())
    with pytest.raises(IndexError):
        both.pair(2 * len(store))


def test_an_epoch_of_both_ways_reads_all_of_it(store: Store) -> None:
    both = Batcher(BothWays(store), batch_tokens=128, seed=1)
    seen = sorted(i for batch in both.epoch(0) for i in batch.indices.tolist())
    assert seen == list(range(400))


def test_the_stages_follow_each_other_and_go_on_from_any_place(store: Store) -> None:
    both, one = (Batcher(pairs, batch_tokens=128, seed=1) for pairs in (BothWays(store), store))
    stream = list(islice(staged(both, one, 50, START), 80))
    for done in (1, 49, 50, 51, 70):
        position = stream[done - 1][0]
        rest = list(islice(staged(both, one, 50 - done, position), 80 - done))
        for (after, batch), (same_after, same) in zip(stream[done:], rest, strict=True):
            assert after == same_after
            assert batch.source.tolist() == same.source.tolist()
    reversed_pairs = [bool((batch.source[:, 0] >= 50).any()) for _, batch in stream]
    assert any(reversed_pairs[:50])
    assert not any(reversed_pairs[50:])
    assert stream[49][0] == START, "the second stage begins at its beginning"


def test_each_stage_has_the_schedule_to_itself() -> None:
    settings = TrainingConfig(bidirectional_steps=20, max_steps=50)
    assert [stage_of(step, settings) for step in (1, 20, 21, 50)] == [(2, 1, 20), (2, 20, 20), (1, 1, 30), (1, 30, 30)]
    assert stage_of(7, TrainingConfig(max_steps=50)) == (1, 7, 50)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training.max_steps=9"], r"training\.bidirectional_steps=9 leaves nothing of training\.max_steps=9"),
        (["tokenizer.joint=false"], r"training\.bidirectional_steps=9 needs one vocabulary.*tokenizer\.joint=true"),
        (["data.monolingual=true"], r"training\.bidirectional_steps=9 needs two sides"),
    ],
)
def test_what_cannot_be_trained_both_ways_is_refused(tmp_path, tiny, settings, message):
    with pytest.raises(SaccadeError, match=message):
        api.train(*tiny, "training.bidirectional_steps=9", *settings, out=tmp_path / "run", quiet=True)


def test_what_is_trained_when_is_said_and_one_vocabulary_is_chosen(tmp_path: Path, tiny: list[str]) -> None:
    said: list[str] = []

    class Listening(Display):
        def say(self, line: str) -> None:
            said.append(line)

    settings = [*tiny, "data.target=ru", "training.bidirectional_steps=4", "training.max_steps=7"]
    translator = train(Config.load(None, settings), tmp_path / "run", display=Listening(quiet=True))
    assert translator.tokenizers.joint, "though the two sides share no letters"
    stages = [line for line in said if "direction" in line]
    assert [line.split()[1] for line in stages] == ["1", "5"]
    assert "both directions, for 4 steps" in stages[0]
    assert "one direction, the learning rate from its start, for 3 steps" in stages[1]
