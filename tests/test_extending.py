"""Vocabularies that grow: new pieces stand where old ones stood, and nothing else changes."""

from collections import Counter
from functools import cache
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from saccade.data import builtin
from saccade.data.extending import learn_pieces, origins, with_terms
from saccade.data.tokenizers import KINDS, Tokenizer
from saccade.errors import SaccadeError

TERMS = ["<BT>", "X-Ray", "Zug"]


def lines_of(source, target, pairs=300):
    return [side for pair in islice(builtin.pairs(source, target, seed=1, split="train"), pairs) for side in pair]


OLD, NEW = lines_of("en", "de"), lines_of("fr", "es")


@pytest.fixture(scope="module")
def old():
    return {kind: Tokenizer.train(OLD, kind, 400) for kind in KINDS}


@pytest.fixture(scope="module")
def grown(old):
    return {kind: learn_pieces(with_terms(old[kind], TERMS), NEW, 60) for kind in ("bpe", "words", "characters")}


@cache
def cached_origins(old, new):
    return origins(old, new)


def expanded(ids, old, new):
    made_of = cached_origins(old, new)
    return [part for id in ids for part in ([id] if id < old.size else made_of[id - old.size])]


texts = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*TERMS, "x", "(", ",", "Zugx", " ", "<", "BT>", *NEW[:40], *OLD[:40]])).map(" ".join),
    st.lists(st.sampled_from([*TERMS, "a", "'", " ", "cent", "vingt", "ß", "1"])).map("".join),
)


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_where_a_new_piece_stands_the_old_vocabulary_has_just_the_pieces_it_is_made_of(kind, old, grown, text):
    ids = grown[kind].encode(text)
    assert expanded(ids, old[kind], grown[kind]) == old[kind].encode(text)
    assert grown[kind].decode(ids) == old[kind].decode(old[kind].encode(text))


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
def test_new_pieces_make_new_text_shorter(kind, old, grown):
    assert grown[kind].size > old[kind].size + len(TERMS)
    before, after = (sum(len(t[kind].encode(line)) for line in NEW) for t in (old, grown))
    assert after < before
    assert grown[kind].symbols[: old[kind].size] == old[kind].symbols


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters"])
def test_text_without_a_term_is_cut_as_before(kind, old):
    new = with_terms(old[kind], ["<BT>", "X-Ray"])
    assert new.encode_batch(OLD + NEW) == old[kind].encode_batch(OLD + NEW)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters"])
def test_a_term_is_one_piece_wherever_it_stands_as_a_word(kind, old):
    new = with_terms(old[kind], ["<BT>", "X-Ray"])
    text = "<BT> one <BT> X-Ray, X-Rays"
    pieces = [piece.strip("▁") for piece in new.pieces(new.encode(text))]
    assert (pieces.count("<BT>"), pieces.count("X-Ray")) == (2, 1)
    assert new.decode(new.encode(text)) == text
    assert "<BT>" not in [piece.strip("▁") for piece in old[kind].pieces(old[kind].encode(text))]


def test_subword_dropout_never_splits_a_term(grown):
    for seed in range(50):
        ids = grown["bpe"].sample("<BT> Thursday X-Ray", 0.5, seed)
        pieces = grown["bpe"].pieces(ids)
        assert pieces[0] == "▁<BT>"
        assert pieces[-1] == "▁X-Ray"
        assert grown["bpe"].decode(ids) == "<BT> Thursday X-Ray"


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
def test_a_grown_vocabulary_survives_its_file(kind, grown, tmp_path):
    grown[kind].save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.kind == kind
    assert sorted(again.terms) == sorted(TERMS)
    assert again.encode_batch(NEW) == grown[kind].encode_batch(NEW)
    text = "<BT> vingt X-Ray, Zugx"
    other = Library.from_file(str(tmp_path / "tokenizer.json"))  # as any program that reads such files
    assert other.encode(text).ids == grown[kind].encode(text)
    assert other.decode(other.encode(text).ids) == text


def test_a_vocabulary_may_grow_again(old):
    first = with_terms(old["bpe"], ["<BT>"])
    second = learn_pieces(with_terms(first, ["<BT>", "<DE>"]), NEW, 20)
    assert second.terms == ["<BT>", "<DE>"]
    assert second.size == first.size + 21
    text = "<DE> vingt <BT> x"
    assert expanded(second.encode(text), first, second) == first.encode(text)


def test_a_term_that_is_a_piece_already_gets_no_second_one(old):
    word = next(piece for piece in old["bpe"].pieces(range(300, 400)) if piece.startswith("▁") and len(piece) > 3)
    new = with_terms(old["bpe"], [word[1:]])
    assert new.size == old["bpe"].size
    assert new.sample(word[1:], 0.9, 1) == old["bpe"].encode(word[1:])


def test_learned_merges_are_those_of_a_plain_count_after_every_merge(old):
    """Parity with algorithm 1 of Sennrich et al. 2016, counted anew each time."""
    tokenizer = old["bpe"]
    words = Counter(word for line in NEW for word in line.split(" "))
    cut = Counter()
    for word, times in words.items():
        for run in tokenizer.runs(" " + word):
            cut[tuple(tokenizer.merged(run))] += times
    names, found = tokenizer.symbols, []
    while len(found) < 25:
        pairs = Counter()
        for ids, times in cut.items():
            for pair in pairwise(ids):
                pairs[pair] += times
        fresh = {pair: n for pair, n in pairs.items() if names[pair[0]] + names[pair[1]] not in names}
        best = min(fresh, key=lambda pair: (-fresh[pair], pair))
        names.append(names[best[0]] + names[best[1]])
        found.append(names[-1])
        merged = Counter()
        for ids, times in cut.items():
            made = list(ids)
            for place in range(len(made) - 1):
                if tuple(made[place : place + 2]) == best:
                    made[place : place + 2] = [len(names) - 1, -1]
            merged[tuple(id for id in made if id >= 0)] += times
        cut = merged
    assert learn_pieces(tokenizer, NEW, 25).symbols[tokenizer.size :] == found


@pytest.mark.parametrize(
    ("kind", "terms", "said"),
    [
        ("bpe", ["two words"], r"tokenizer\.terms: 'two words' is not one word"),
        ("bpe", [""], r"tokenizer\.terms: '' is not one word"),
        ("bytes", ["<BT>"], "no pieces but bytes"),
        ("unigram", ["Zug"], "may stand inside other words"),
    ],
)
def test_terms_that_cannot_be_had_are_refused(kind, terms, said, old):
    with pytest.raises(SaccadeError, match=said):
        with_terms(old[kind], terms)


@pytest.mark.parametrize("kind", ["unigram", "bytes"])
def test_kinds_that_cannot_learn_more_say_so(kind, old):
    with pytest.raises(SaccadeError, match=r"tokenizer\.new_pieces=5.*cannot grow"):
        learn_pieces(old[kind], NEW, 5)


def test_pieces_of_another_vocabulary_have_no_origins(old):
    with pytest.raises(SaccadeError, match="does not begin with the old one"):
        origins(old["bpe"], old["words"])
