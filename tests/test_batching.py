import tempfile
import threading
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.batching import Batch, Batcher, Position, collate, prefetch
from saccade.data.store import Store, StoreWriter
from saccade.data.tokenizers import BOS, EOS, PAD
from saccade.errors import SaccadeError

VOCABULARY = 1000

sentences = st.integers(0, 70).map(lambda length: [4 + length] * length)
corpora = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=120)
budgets = st.sampled_from([1, 7, 33, 64, 100, 301, 4096])
properties = settings(deadline=None, max_examples=60)


@contextmanager
def stored(pairs):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with StoreWriter(path, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY) as writer:
            writer.extend(pairs)
        yield Store(path)


@pytest.fixture(scope="module")
def store():
    """4,000 pairs whose lengths are spread as those of captions are."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(2.5, 0.4, 4000), 1, 60).astype(int)
    others = np.clip(lengths * random.normal(1.05, 0.2, 4000), 1, 60).astype(int)
    pairs = [
        (random.integers(4, VOCABULARY, length).tolist(), random.integers(4, VOCABULARY, other).tolist())
        for length, other in zip(lengths, others, strict=True)
    ]
    with stored(pairs) as store:
        yield store


def doubling(store, chance=0.2):
    """Re-encodes by splitting some tokens in two, as subword dropout does."""

    def encode(index, epoch):
        random = np.random.default_rng([index, epoch])
        source, target = (np.repeat(ids, 1 + (random.random(len(ids)) < chance)) for ids in store.pair(index))
        return source.tolist(), target.tolist()

    return encode


def equal(left, right):
    return all(
        torch.equal(a, b)
        for a, b in ((left.source, right.source), (left.target, right.target), (left.indices, right.indices))
    )


def all_equal(left, right):
    left, right = list(left), list(right)
    return len(left) == len(right) and all(map(equal, left, right))


def content(row):
    return row[row != PAD].tolist()


# --- the batch


def test_collating_by_hand():
    batch = collate([([5, 6], [7]), ([8], [9, 10, 11])], [3, 1])
    assert batch.source.tolist() == [[5, 6, EOS], [8, EOS, PAD]]
    assert batch.target.tolist() == [[BOS, 7, EOS, PAD, PAD], [BOS, 9, 10, 11, EOS]]
    assert batch.inputs.tolist() == [[BOS, 7, EOS, PAD], [BOS, 9, 10, 11]]
    assert batch.gold.tolist() == [[7, EOS, PAD, PAD], [9, 10, 11, EOS]]
    assert batch.source_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.indices.tolist() == [3, 1]
    assert batch.target_tokens == 6
    assert batch.source.dtype == batch.target.dtype == batch.indices.dtype == torch.int64


def test_a_given_shape_is_padded_up_to():
    batch = collate([([5], [6])], [0], (4, 3))
    assert batch.source.tolist() == [[5, EOS, PAD, PAD]]
    assert batch.inputs.tolist() == [[BOS, 6, EOS]]
    assert batch.gold.tolist() == [[6, EOS, PAD]]


def test_empty_sentences_are_only_their_marks():
    batch = collate([([], []), ([], [])], [0, 1])
    assert batch.source.tolist() == [[EOS], [EOS]]
    assert batch.target.tolist() == [[BOS, EOS], [BOS, EOS]]


def test_a_shape_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="a sentence needs 3 columns with EOS, but the shape has 2"):
        collate([([5, 6], [7])], [0], (2, 9))
    with pytest.raises(ValueError, match="no pairs to collate"):
        collate([], [])


@given(corpora, st.integers(0, 9), st.integers(0, 9))
@properties
def test_padding_is_only_at_the_right(pairs, wider, longer):
    columns = max(len(source) for source, _ in pairs) + 1 + wider
    target_columns = max(len(target) for _, target in pairs) + 1 + longer
    batch = collate(pairs, range(len(pairs)), (columns, target_columns))
    assert batch.source.shape == (len(pairs), columns)
    assert batch.gold.shape == batch.inputs.shape == (len(pairs), target_columns)
    for row, target_row, (source, target) in zip(batch.source, batch.target, pairs, strict=True):
        assert row.tolist() == [*source, EOS] + [PAD] * (columns - len(source) - 1)
        assert target_row.tolist() == [BOS, *target, EOS] + [PAD] * (target_columns - len(target) - 1)
    assert batch.target_tokens == sum(len(target) + 1 for _, target in pairs)


def test_a_moved_batch_is_the_same_batch_and_does_not_count_again():
    batch = collate([([5, 6], [7])], [0])
    moved = batch.to("meta")  # a device that nothing can be read back from
    assert moved.source.device.type == moved.target.device.type == moved.indices.device.type == "meta"
    assert moved.target_tokens == 2
    assert equal(batch.to("cpu", non_blocking=True), batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory is pinned for a GPU")
def test_a_pinned_batch_is_the_same_batch():
    batch = collate([([5, 6], [7])], [0])
    assert batch.pin_memory().source.is_pinned()
    assert equal(batch.pin_memory(), batch)


# --- the batcher


@given(corpora, budgets, st.integers(-3, 2**63), st.integers(0, 5), st.sampled_from([1, 2, 64]))
@properties
def test_every_pair_comes_exactly_once_an_epoch_as_it_was_stored(pairs, budget, seed, number, max_shapes):
    with stored(pairs) as store:
        batcher = Batcher(store, batch_tokens=budget, seed=seed, max_shapes=max_shapes)
        batches = list(batcher.epoch(number))
        assert batcher.batches_in(number) == len(batches)
        assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(len(pairs)))
        for batch in batches:
            for row, target_row, index in zip(batch.source, batch.target, batch.indices.tolist(), strict=True):
                source, target = pairs[index]
                assert content(row) == [*source, EOS]
                assert content(target_row) == [BOS, *target, EOS]


@given(corpora, budgets, st.sampled_from([1, 2, 64]))
@properties
def test_the_budget_holds_but_for_pairs_that_are_longer_alone(pairs, budget, max_shapes):
    with stored(pairs) as store:
        batcher = Batcher(store, batch_tokens=budget, seed=1, max_shapes=max_shapes)
        longest = [max(len(source), len(target)) + 1 for source, target in pairs]
        alone = 0
        for batch in batcher.epoch(0):
            if max(batch.source.numel(), batch.inputs.numel()) > budget:
                assert len(batch.indices) == 1
                assert longest[batch.indices.item()] > budget
                alone += 1
        assert batcher.oversized == sum(length > budget for length in longest)
        assert alone == batcher.oversized


@given(corpora, budgets, st.sampled_from([1, 2, 64]))
@properties
def test_waste_is_the_share_of_padding_in_the_tensors(pairs, budget, max_shapes):
    with stored(pairs) as store:
        batcher = Batcher(store, batch_tokens=budget, seed=1, max_shapes=max_shapes)
        tensors = [tensor for batch in batcher.epoch(3) for tensor in (batch.source, batch.target)]
        padding = sum(int((tensor == PAD).sum()) for tensor in tensors)
        assert batcher.waste(3) == pytest.approx(padding / sum(tensor.numel() for tensor in tensors), abs=1e-12)


@given(corpora, budgets, st.integers(0, 3), st.booleans(), st.data())
@properties
def test_a_resumed_epoch_yields_what_was_left(pairs, budget, number, anew, data):
    with stored(pairs) as store:
        encode = doubling(store) if anew else None
        whole = list(Batcher(store, batch_tokens=budget, seed=7, encode=encode).epoch(number))
        start = data.draw(st.integers(0, len(whole)))
        resumed = Batcher(store, batch_tokens=budget, seed=7, encode=encode).epoch(number, start=start)
        assert all_equal(resumed, whole[start:])


@given(corpora, budgets, st.integers(1, 5))
@properties
def test_ranks_share_each_batch_of_one_rank_out_exactly_once(pairs, budget, world):
    with stored(pairs) as store:
        whole = list(Batcher(store, batch_tokens=budget, seed=1).epoch(2))
        ranks = [Batcher(store, batch_tokens=budget, seed=1, rank=rank, world=world) for rank in range(world)]
        for batch, *shares in zip(whole, *(rank.epoch(2) for rank in ranks), strict=True):
            assert sum(share.target_tokens for share in shares) == batch.target_tokens
            assert {(share.source.size(1), share.target.size(1)) for share in shares} == {
                (batch.source.size(1), batch.target.size(1))
            }
            rows = [len(share.indices) for share in shares if share.target_tokens]
            assert max(rows) - min(rows) <= 1
            seen = [i for share in shares if share.target_tokens for i in share.indices.tolist()]
            assert sorted(seen) == sorted(batch.indices.tolist())


@given(corpora, budgets, st.integers(1, 6), st.booleans())
@properties
def test_pieces_of_a_batch_are_its_rows(pairs, budget, number, exactly):
    with stored(pairs) as store:
        batch = next(Batcher(store, batch_tokens=budget, seed=1).epoch(0))
        pieces = batch.pieces(number, exactly)
        assert len(pieces) == (number if exactly else min(number, len(batch.indices)))
        held = [piece for piece in pieces if piece.target_tokens]
        assert torch.equal(torch.cat([piece.source for piece in held]), batch.source)
        assert torch.equal(torch.cat([piece.target for piece in held]), batch.target)
        assert sum(piece.target_tokens for piece in pieces) == batch.target_tokens


@given(corpora, budgets)
@properties
def test_the_longest_batch_is_one_of_the_first_epoch_and_none_has_more_tokens_of_longer_sentences(pairs, budget):
    def size(batch):
        columns = batch.source.size(1) + batch.inputs.size(1)
        return len(batch.indices) * columns**2

    with stored(pairs) as store:
        batcher = Batcher(store, batch_tokens=budget, seed=1)
        longest = batcher.longest()
        assert size(longest) == max(map(size, batcher.epoch(0)))
        assert any(all_equal([longest], [batch]) for batch in batcher.epoch(0))


def test_the_order_depends_on_nothing_but_seed_and_epoch(store):
    batcher = Batcher(store, batch_tokens=512, seed=1)
    first = list(batcher.epoch(1))
    list(batcher.epoch(0))
    assert all_equal(batcher.epoch(1), first)
    assert all_equal(Batcher(store, batch_tokens=512, seed=1).epoch(1), first)
    assert not all_equal(batcher.epoch(2), first)
    assert not all_equal(Batcher(store, batch_tokens=512, seed=2).epoch(1), first)


def test_epochs_mix_the_pairs_anew(store):
    batcher = Batcher(store, batch_tokens=512, seed=1)

    def groups(number):
        return {frozenset(batch.indices.tolist()) for batch in batcher.epoch(number)}

    assert len(groups(0) & groups(1)) <= 0.05 * batcher.batches_in(0)


def test_long_and_short_batches_come_in_no_order(store):
    batcher = Batcher(store, batch_tokens=512, seed=1)
    widths = np.array([[batch.source.shape[1] for batch in batcher.epoch(number)] for number in range(20)])
    place = np.arange(widths.shape[1])
    assert abs(np.mean([np.corrcoef(place, row)[0, 1] for row in widths])) < 0.1


def test_padding_is_little_and_shapes_are_few(store):
    batcher = Batcher(store, batch_tokens=512, seed=1)
    assert batcher.waste() < 0.08
    assert len(batcher.shapes) <= 64
    used = {(batch.source.shape[1], batch.inputs.shape[1]) for batch in batcher.epoch(0)}
    assert sorted(used) == batcher.shapes


def test_batches_are_not_tiny(store):
    batcher = Batcher(store, batch_tokens=512, seed=1)
    filled = [max(batch.source.numel(), batch.inputs.numel()) / 512 for batch in batcher.epoch(0)]
    assert np.mean(filled) > 0.8


def test_one_long_pair_does_not_pad_all_the_others():
    with stored([([5] * 10, [6] * 10)] * 200 + [([5] * 400, [6] * 400)]) as store:
        batcher = Batcher(store, batch_tokens=4096, seed=1)
        assert batcher.batches_in(0) == 2
        assert batcher.waste() < 0.01


@properties
@given(pairs=corpora, budget=budgets)
def test_no_batch_is_wider_than_the_longest_sentence(pairs, budget):
    """A model's learned positions may hold just that."""
    with stored(pairs) as store:
        for batch in Batcher(store, batch_tokens=budget, seed=1).epoch(0):
            assert batch.source.size(1) <= max(len(source) for source, _ in pairs) + 1
            assert batch.target.size(1) <= max(len(target) for _, target in pairs) + 2


def test_a_bounded_number_of_shapes_is_kept_to(store):
    assert len(Batcher(store, batch_tokens=512, seed=1, max_shapes=5).shapes) == 5


def test_skipped_batches_are_not_read(store):
    asked = []

    def encode(index, epoch):
        asked.append(index)
        return store.pair(index)

    batcher = Batcher(store, batch_tokens=512, seed=1, encode=encode)
    asked.clear()
    (last,) = batcher.epoch(0, start=batcher.batches_in(0) - 1)
    assert asked == last.indices.tolist()


# --- encoding anew


def test_pairs_encoded_anew_differ_by_epoch_and_stay_near_the_budget(store):
    batcher = Batcher(store, batch_tokens=512, seed=1, encode=doubling(store))
    encode = doubling(store)
    sizes = []
    for number in (0, 1):
        seen = []
        for batch in batcher.epoch(number):
            seen += batch.indices.tolist()
            sizes.append(max(batch.source.numel(), batch.inputs.numel()))
            for row, target_row, index in zip(batch.source, batch.target, batch.indices.tolist(), strict=True):
                source, target = encode(index, number)
                assert content(row) == [*source, EOS]
                assert content(target_row) == [BOS, *target, EOS]
        assert sorted(seen) == list(range(len(store)))
    assert max(sizes) < 1.3 * 512
    assert np.mean(np.array(sizes) > 512) < 0.1
    assert np.mean(sizes) > 0.7 * 512


def test_waste_counts_what_encoding_anew_pads(store):
    batcher = Batcher(store, batch_tokens=512, seed=1, encode=doubling(store))
    tensors = [tensor for batch in batcher.epoch(1) for tensor in (batch.source, batch.target)]
    padding = sum(int((tensor == PAD).sum()) for tensor in tensors)
    assert batcher.waste(1) == pytest.approx(padding / sum(tensor.numel() for tensor in tensors))


# --- the stream


def test_a_stream_goes_on_after_any_position_as_if_it_had_not_stopped():
    with stored([([5] * n, [6] * (n % 7)) for n in range(30)]) as store:
        batcher = Batcher(store, batch_tokens=64, seed=1)
        count = 2 * batcher.batches_in(0) + 3
        whole = list(islice(batcher.stream(), count))
        assert all_equal([batch for _, batch in whole[: batcher.batches_in(0)]], batcher.epoch(0))
        for done in range(count):
            position, _ = whole[done]
            assert Position(position.epoch, position.batch) == position
            resumed = list(islice(batcher.stream(position), count - done - 1))
            assert [after for after, _ in resumed] == [after for after, _ in whole[done + 1 :]]
            assert all_equal([batch for _, batch in resumed], [batch for _, batch in whole[done + 1 :]])


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    with stored([([5], [6])]) as store:
        batcher = Batcher(store, batch_tokens=64, seed=1)
        assert [position for position, _ in islice(batcher.stream(), 2)] == [Position(1, 0), Position(2, 0)]
        assert next(batcher.stream(Position(0, 1)))[0] == Position(2, 0)


def test_a_position_beyond_the_epoch_is_refused():
    with stored([([5], [6])]) as store:
        batcher = Batcher(store, batch_tokens=64, seed=1)
        message = "batch 9 of epoch 3: this epoch has 1 batches; resume with the corpus, batch_tokens and number of"
        with pytest.raises(SaccadeError, match=message):
            batcher.epoch(3, start=9)
        with pytest.raises(SaccadeError, match=message):
            next(batcher.stream(Position(3, 9)))


# --- what cannot be batched


def test_an_empty_store_is_refused():
    with (
        stored([]) as store,
        pytest.raises(SaccadeError, match="store: has no pairs to make batches of; check the corpus"),
    ):
        Batcher(store, batch_tokens=64, seed=1)


def test_impossible_settings_are_refused():
    with stored([([5], [6])] * 3) as store:
        with pytest.raises(SaccadeError, match="batch_tokens=0: a batch has at least one token; try 4096"):
            Batcher(store, batch_tokens=0, seed=1)
        with pytest.raises(ValueError, match="rank 2 of a world of 2"):
            Batcher(store, batch_tokens=64, seed=1, rank=2, world=2)


# --- prefetching


def workers():
    return [thread for thread in threading.enumerate() if thread.name == "saccade-prefetch"]


@pytest.mark.parametrize("depth", [1, 4])
def test_prefetching_changes_nothing_and_leaves_no_thread(store, depth):
    batcher = Batcher(store, batch_tokens=512, seed=1)
    assert all_equal(prefetch(batcher.epoch(0), depth), batcher.epoch(0))
    assert workers() == []


def test_prefetching_runs_ahead_but_no_further_than_asked():
    made = []
    third = threading.Event()

    def source():
        for number in range(100):
            made.append(number)
            if number == 3:
                third.set()
            yield number

    items = prefetch(source(), depth=2)
    assert next(items) == 0
    assert third.wait(10)  # 0 was taken, 1 and 2 are ready, 3 waits for room
    assert made == [0, 1, 2, 3]
    items.close()


def test_an_error_while_prefetching_reaches_the_consumer_after_the_items_before_it():
    def source():
        yield 1
        raise SaccadeError("broken pair")

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(SaccadeError, match="broken pair"):
        next(items)
    assert workers() == []


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("taken", [1, 7])
def test_a_consumer_that_stops_early_ends_the_thread_and_the_source(depth, taken):
    closed = threading.Event()

    def source():
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.set()

    items = prefetch(source(), depth)
    assert list(islice(items, taken)) == list(range(taken))
    del items
    assert closed.is_set()
    assert workers() == []


def test_a_consumer_that_fails_ends_the_thread(store):
    def consume():
        for batch in prefetch(Batcher(store, batch_tokens=512, seed=1).epoch(0)):
            assert isinstance(batch, Batch)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        consume()
    assert workers() == []
