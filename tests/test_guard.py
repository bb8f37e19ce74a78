"""The degeneration guard: what is sound is never touched, what is not is decoded again and reported."""

from itertools import islice

import pytest
from conftest import TINY
from hypothesis import given
from hypothesis import strategies as st

import saccade
from saccade.config import SearchConfig
from saccade.data import builtin
from saccade.data.tokenizers import Tokenizer
from saccade.generation.guard import (
    LOOP_AGAIN,
    LOOP_ROUNDS,
    LOOP_TOKENS,
    NGRAM,
    REPEATED_FROM,
    REPEATED_SHARE,
    SHORT_ROUNDS,
    SHORT_TOKENS,
    Tally,
    _again,
    examine,
    longest_cycle,
    repeated,
)
from saccade.generation.orders import Order, limit_of

TEXTS = ["January 5, 2021", "noon", "8:15 PM and seven euros", "", "Friday, March 28, 1986", "seventeen"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder after six steps of training: it says one thing over and over."""
    folder = tmp_path_factory.mktemp("barely") / "en-de"
    saccade.train(
        *TINY,
        "model.dropout=0",
        "training.batch_tokens=512",
        "training.learning_rate=0.01",
        "training.max_steps=6",
        "training.validate_every=6",
        "search.beam=1",
        out=folder,
        quiet=True,
    )
    return folder


@pytest.fixture(scope="module")
def barely(folder):
    return saccade.load(folder)


@pytest.mark.parametrize(
    ("tokens", "period", "rounds"),
    [
        ([4] * 20, 1, 20),
        ([9, 8, *[5, 6, 7] * 6, 5, 6], 3, 6),
        ([4, 5] * 8 + [9, 9], 2, 8),
        ([4, 5, 4, 5, 4, 5], 0, 0),
        ([], 0, 0),
    ],
)
def test_the_longest_cycle_is_found(tokens, period, rounds):
    assert longest_cycle(tokens, 4)[:2] == (period, rounds)


@given(st.lists(st.integers(4, 6), max_size=40))
def test_what_is_not_looked_at_closely_holds_no_cycle_and_no_repetition(tokens):
    if _again(tokens) < LOOP_AGAIN:
        assert longest_cycle(tokens, LOOP_ROUNDS).tokens < LOOP_TOKENS
        assert longest_cycle(tokens, SHORT_ROUNDS).tokens < SHORT_TOKENS
        assert len(tokens) < REPEATED_FROM or repeated(tokens) <= REPEATED_SHARE


@given(st.integers(1, 8), st.integers(0, 7), st.integers(4, 9), st.lists(st.integers(1, 3), max_size=8))
def test_a_cycle_is_always_looked_at_closely(period, more, rounds, before):
    cycle = [*before, *[4 + i % period for i in range(period * rounds + more)]]
    looped = longest_cycle(cycle, LOOP_ROUNDS).tokens >= LOOP_TOKENS
    if looped or longest_cycle(cycle, SHORT_ROUNDS).tokens >= SHORT_TOKENS:
        assert _again(cycle) >= LOOP_AGAIN


def test_the_share_of_what_was_said_before():
    assert repeated([4, 5, 6, 7, 8]) == 0
    assert repeated([4, 5, 6, 7] * 2) == pytest.approx(1 / 5)


def test_a_loop_a_repetition_and_a_runaway_are_named():
    source = [10, 11, 12, 13]
    assert "repeated a piece 20 times" in examine(source, [5] * 20, 40, 1.0).what
    assert "repeated 3 pieces 6 times" in examine(source, [9, *[5, 6, 7] * 6, 8], 40, 1.0).what
    assert "repeated a piece 9 times" in examine(source, [4, 5, *[6] * 9, 7], 40, 1.0).what
    assert "repeated 2 pieces 6 times" in examine(source, [*[5, 6] * 6, 7], 40, 1.0).what
    assert examine(source, [4, *[6] * 7, 7], 40, 1.0) is None
    assert examine([8] * 5, [4, *[6] * 9, 7], 40, 1.0) is None
    again = [part for i in range(4) for part in (*range(20, 32), 40 + i)]
    assert "of it before" in examine([*range(10, 30)], again, 90, 1.0).what
    assert "ran on for 27 pieces from 4" in examine(source, [*range(20, 47)], 28, 1.0).what
    assert "ran on for 39 pieces from 4" in examine(source, [*range(20, 59)], 500, 1.0).what


def test_a_source_that_repeats_itself_may_be_answered_in_kind():
    laugh = [5, 6] * 9
    assert examine(laugh, [7, 8] * 9, 60, 1.0) is None
    assert examine([*range(10, 28)], [7, 8] * 9, 60, 1.0) is not None


def test_an_output_cut_by_a_limit_that_was_asked_for_is_no_runaway():
    assert examine([*range(10, 30)], [*range(30, 40)], 11, 1.0) is None


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en"), ("fr", "es"), ("en", "ru")])
def test_what_people_would_write_is_never_touched(kind, languages):
    pairs = list(islice(builtin.pairs(*languages, split="train"), 1500))
    tokenizer = Tokenizer.train((side for pair in pairs for side in pair), kind, 900)
    sides = [tokenizer.encode_batch(list(side)) for side in zip(*pairs, strict=True)]
    ratio = sum(map(len, sides[1])) / sum(map(len, sides[0]))
    for source, target, pair in zip(*sides, pairs, strict=True):
        limit = limit_of(source, Order(), SearchConfig(max_length_factor=4.0), None)
        assert examine(source, target, limit, ratio) is None, pair


def test_with_and_without_the_guard_sound_answers_are_equal(trained):
    translator = saccade.load(trained)
    assert translator.config.search.length_ratio == pytest.approx(0.93, abs=0.2)
    texts = [source for source, _ in islice(builtin.pairs("en", "de", split="test"), 150)]
    guarded, bare = (translator.translate(texts, guard=guard, protect=[]) for guard in (True, False))
    sound = [g for g in guarded if not g.notes]
    assert len(sound) > 100
    assert not any(b.notes for b in bare)
    for g, b in zip(guarded, bare, strict=True):
        if not g.notes:
            assert (g.text, g.score) == (b.text, pytest.approx(b.score, abs=1e-4))


def test_a_model_that_says_one_thing_over_and_over_is_decoded_again(barely):
    bare = barely.translate(TEXTS, guard=False, protect=[])
    assert sum(longest_cycle(t._ids, 4).tokens >= 16 for t in bare) >= 4, "the model of this test must be degenerate"
    for before, after in zip(bare, barely.translate(TEXTS, protect=[]), strict=True):
        if longest_cycle(before._ids, 4).tokens >= 16:
            assert "repeated" in after.notes[0]
            assert f"decoded again without repeated {NGRAM}-grams" in after.notes[1]
        ngrams = [tuple(after._ids[i : i + NGRAM]) for i in range(len(after._ids) - NGRAM + 1)]
        assert not after.notes or len(set(ngrams)) == len(ngrams)


def test_one_word_never_yields_a_paragraph(barely):
    bare, guarded = (barely.translate("noon", guard=guard, max_length_extra=300) for guard in (False, True))
    assert len(bare.tokens) >= 300
    assert len(guarded.tokens) < 20
    assert guarded.notes


def test_the_guard_never_depends_on_the_batch(barely):
    together = barely.translate(TEXTS)
    for text, translation in zip(TEXTS, together, strict=True):
        alone = barely.translate(text)
        assert (alone.text, alone.notes) == (translation.text, translation.notes)


def test_a_second_try_still_does_what_it_was_told(barely):
    for translation in barely.translate(TEXTS[:3], must=["Haus"], prefix="Am Tag"):
        assert translation.text.startswith("Am Tag")
        assert "Haus" in translation.text


def test_the_command_line_counts_what_was_decoded_again(folder, barely, command):
    text = "".join(line + "\n" for line in TEXTS).encode()
    said = command("translate", folder, stdin=text)
    lines = [
        n for n, t in enumerate(barely.translate(TEXTS), start=1) if any(note.startswith("guard") for note in t.notes)
    ]
    assert f"guard: {len(lines)} of 6 lines" in said.err
    assert f"(line {', '.join(map(str, lines[:5]))}" in said.err
    assert "--no-guard" in said.err
    assert command("translate", folder, "--no-guard", stdin=text).err == ""
    assert said.out.count("\n") == 6


def test_nothing_is_said_where_nothing_was_done():
    tally = Tally()
    tally.count(1, [])
    assert tally.summary(1) is None
