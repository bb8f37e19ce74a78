"""Rules: each forbids exactly what it says, keeps the model's own values, and does so for every model and search."""

import math
import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import make, sentences
from test_invariants import every_model, forced

import saccade
from saccade.data.batching import collate
from saccade.data.tokenizers import EOS, KINDS, Tokenizer
from saccade.errors import SaccadeError
from saccade.generation.columns import Columns
from saccade.generation.loop import generate
from saccade.generation.rules import (
    DEFAULT_RULES,
    Prefixes,
    forced_prefix,
    min_length,
    no_repeat_ngram,
    repetition_penalty,
    shortlist,
)
from saccade.generation.search import Beam, Greedy
from saccade.generation.words import Speller

V = 12
SEARCHES = [Greedy(), Beam(3, 1.0, 0.0, 3)]
LINES = ["Der Hund und die Katze (ein Haus) um 12 Uhr.", "Die Katze, der Hund: zwei Häuser, 21 Uhr, hier her!"] * 3
TOKENIZERS = {kind: Tokenizer.train(LINES, kind, 330) for kind in KINDS}
TEXTS = ["January 5, 2021", "seventeen", "8:15 PM and seven euros"]


def prefixes(tokens, limits=None):
    R = len(tokens)
    written = torch.tensor(tokens, dtype=torch.long).reshape(R, -1)
    return Prefixes(written, torch.arange(R), torch.tensor(limits or [99] * R))


def values(rows, size=V):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64).log_softmax(-1)


def forbidden_by(rule, where, size=V):
    """For each row the tokens that a rule takes away; the others must keep their values."""
    before = values(where.tokens.size(0), size)
    after = rule(before.clone(), where)
    taken = torch.isinf(after)
    assert torch.equal(after[~taken], before[~taken])
    return [set(row.nonzero().flatten().tolist()) for row in taken]


def answers(model, sources, search, rules=(), weighings=(), limits=None):
    batch = collate([(s, []) for s in sources], range(len(sources)))
    limits = torch.tensor(limits or [2 * len(s) + 3 for s in sources])
    return generate(model, batch.source, batch.source_mask, search, limits, [*DEFAULT_RULES, *rules], weighings)


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 4), length=st.integers(0, 12), data=st.data())
def test_no_ngram_comes_twice(n, length, data):
    row = st.lists(st.integers(4, 6), min_size=length, max_size=length)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    found = forbidden_by(no_repeat_ngram(n), prefixes(rows))
    for tokens, forbidden in zip(rows, found, strict=True):
        there = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
        last = tuple(tokens[length - n + 1 :]) if length >= n - 1 else None
        assert forbidden == {v for v in range(V) if last is not None and (*last, v) in there}


def test_no_end_before_the_minimum_or_the_limit():
    assert forbidden_by(min_length(3), prefixes([[4, 5], [4, 5]], [9, 3])) == [{EOS}, set()]
    assert forbidden_by(min_length(3), prefixes([[4, 5, 6]])) == [set()]


def test_only_the_shortlist_and_the_end_are_written():
    allowed = torch.zeros(2, V, dtype=torch.bool)
    allowed[0, [5, 6]] = allowed[1, [7]] = True
    assert forbidden_by(shortlist(allowed[0]), prefixes([[], []])) == [{*range(V)} - {EOS, 5, 6}] * 2
    own = Prefixes(torch.empty(3, 0, dtype=torch.long), torch.tensor([1, 0, 1]), torch.tensor([9, 9, 9]))
    rest = {*range(V)} - {EOS}
    assert forbidden_by(shortlist(allowed), own) == [rest - {7}, rest - {5, 6}, rest - {7}]


def test_a_prefix_comes_first_and_the_rules_after_it():
    wanted = torch.tensor([[5, 5, 6], [7, -1, -1]])
    rule = forced_prefix(wanted, [no_repeat_ngram(1)])
    assert forbidden_by(rule, prefixes([[5], [7]])) == [{*range(V)} - {5}, {7}]
    assert forbidden_by(rule, prefixes([[5, 5, 6], [7, 8, 9]])) == [{5, 6}, {7, 8, 9}]


@pytest.mark.parametrize("theta", [1.0, 1.3, 4.0])
def test_the_repetition_penalty_is_keskars_formula(theta):
    before = values(2)
    after = repetition_penalty(theta)(before.clone(), prefixes([[5, 6, 5], [7, 7, 7]]))
    for row, written in enumerate([{5, 6}, {7}]):
        x = [before[row, v].item() * (theta if v in written else 1.0) for v in range(V)]
        total = sum(math.exp(value) for value in x)
        assert after[row].tolist() == pytest.approx([math.log(math.exp(value) / total) for value in x])


@every_model
@pytest.mark.parametrize("search", SEARCHES)
def test_scores_under_rules_and_weighings_are_the_models_own_log_probabilities(name, search):
    model, sources = make(name), sentences([2, 5, 8, 3], seed=11)
    plain = answers(model, sources, search)
    weighed = answers(model, sources, search, [no_repeat_ngram(2), min_length(4)], [repetition_penalty(1.7)])
    for source, found in zip(sources, weighed, strict=True):
        for hypothesis in found:
            log_probs, batch = forced(model, [(source, hypothesis.tokens)])
            own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).sum().item()
            assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)
            assert len(hypothesis.tokens) >= 4
            pairs = list(zip(hypothesis.tokens, hypothesis.tokens[1:], strict=False))
            assert len(set(pairs)) == len(pairs)
    assert [h[0].tokens for h in weighed] != [h[0].tokens for h in plain]


@every_model
def test_rules_never_make_an_answer_depend_on_the_batch(name):
    model, sources = make(name), sentences([4, 7, 2], seed=4)
    rules, weighings = [no_repeat_ngram(2), min_length(3)], [repetition_penalty(1.4)]
    together = answers(model, sources, Beam(3, 1.0, 0.0, 2), rules, weighings)
    for source, found in zip(sources, together, strict=True):
        (alone,) = answers(model, [source], Beam(3, 1.0, 0.0, 2), rules, weighings)
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in alone], abs=1e-9)


def test_a_sentence_that_joins_others_keeps_the_prefix_that_is_its_own(trained):
    translator = saccade.load(trained, engine="torch")
    numbers = [*range(2, 32)]
    sources = [f"January {n}, 2021" for n in numbers]
    begun = translator.translate(
        sources, prefix=[f"{n} x" for n in numbers], protect=[], guard=False, beam=2, batch_tokens=40
    )
    assert [t.text.split(" x")[0] for t in begun] == [str(n) for n in numbers]


def ends_in_word(text: bytes, word: str) -> bool:
    whole = text.decode("utf-8", "replace")
    return whole.endswith(word) and not re.search(r"\w\Z", whole[: -len(word)])


BANNED = ["her", "die Katze", "12"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.sampled_from([" her", "her", " die Katze", "die ", "Katze", " 12", "1", "hier", " (", "für"])),
    cut=st.integers(1, 9),
    random=st.randoms(use_true_random=False),
)
def test_a_banned_word_is_stopped_in_whatever_pieces_it_comes(kind, texts, cut, random):
    """After any text, in any pieces: what is forbidden is what would make the text end in a banned word."""
    tokenizer = TOKENIZERS[kind]
    ids = {piece: v for v, piece in enumerate(tokenizer.piece_bytes) if piece}
    text = "".join(texts).encode()[:-cut]
    tokens, place = [], 0
    while place < len(text):
        piece = random.choice([text[place:end] for end in range(place + 1, len(text) + 1) if text[place:end] in ids])
        tokens.append(ids[piece])
        place += len(piece)
    rule = Speller(tokenizer).banned(BANNED, torch.device("cpu"))
    (forbidden,) = forbidden_by(rule, prefixes([tokens]), tokenizer.size)
    assert forbidden == {v for piece, v in ids.items() if any(ends_in_word(text + piece, word) for word in BANNED)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", SEARCHES)
def test_what_is_banned_is_never_in_the_text(kind, search):
    tokenizer = TOKENIZERS[kind]
    model = make("rnn bahdanau", vocabulary=tokenizer.size)
    sources = sentences([4, 6, 9, 5], vocabulary=tokenizer.size)
    limits = [30] * 4
    free = [tokenizer.decode(h.tokens) for found in answers(model, sources, search, limits=limits) for h in found]
    words = sorted({word for text in free for word in re.findall(r"\w+", text) if "\ufffd" not in word})[:20]
    assert words, "the model must write something to ban"
    ban = Speller(tokenizer).banned(words, torch.device("cpu"))
    for found in answers(model, sources, search, [ban], limits=limits):
        for hypothesis in found:
            assert not {*words} & {*re.findall(r"\w+", tokenizer.decode(hypothesis.tokens))}


def test_all_of_it_from_python_per_call(trained, tmp_path):
    # The model's own words: numbers that it leaves out are not put in.
    translate = partial(saccade.load(trained).translate, protect=[])
    free = translate(TEXTS)
    assert [t.text for t in translate(TEXTS, no_repeat_ngram=0, banned=[], must=[])] == [t.text for t in free]
    words = sorted({word for t in free for word in re.findall(r"\w+", t.text)})
    for t in translate(TEXTS, banned=words):
        assert not {*words} & {*re.findall(r"\w+", t.text)}
    for t in translate(TEXTS, min_length=12, max_length=14, no_repeat_ngram=1):
        assert 12 <= len(t.tokens) <= 14
        assert len(set(t.tokens)) == len(t.tokens)
    for beam in (1, 5):
        begun = translate(TEXTS, prefix=["Am Tag", "", " zwei Uhr "], beam=beam)
        assert [t.text.startswith(p) for t, p in zip(begun, ["Am Tag", "", "zwei Uhr"], strict=True)] == [True] * 3
        assert begun[1].text == translate(TEXTS[1], beam=beam).text
    assert translate(TEXTS[0], prefix="Am 5.").text.startswith("Am 5.")
    (tmp_path / "words.txt").write_text("Januar\n5 .\nFreitag\n")
    for told in ({"shortlist": str(tmp_path / "words.txt")}, {"allowed": ["Januar", "5", ".", "Freitag"]}):
        for t in translate(TEXTS, min_length=3, **told):
            assert {*t.text} <= {*"Januar 5.Freitag"}
            assert t.tokens
    each = translate(TEXTS, allowed=[["Januar"], ["zwei"], ["Uhr"]], min_length=1)
    assert [{*t.text} <= {*word, " "} for t, word in zip(each, ["Januar", "zwei", "Uhr"], strict=True)] == [True] * 3


def test_what_cannot_be_is_refused_by_name(trained, tmp_path):
    translator = saccade.load(trained)
    with pytest.raises(SaccadeError, match=r"search.min_length=9 is more than search.max_length=4"):
        translator.translate(TEXTS, min_length=9, max_length=4)
    with pytest.raises(SaccadeError, match=r"line 2: its prefix and the phrases it must hold take \d+ pieces"):
        translator.translate(TEXTS, must=[[], ["Donnerstag, 14. August 1992"], []], max_length=3)
    with pytest.raises(SaccadeError, match="line 1: no translation keeps to all that it was told"):
        translator.translate(TEXTS[0], must=["Katze"], banned=["Katze"])
    with pytest.raises(SaccadeError, match="must: 2 for 3 texts"):
        translator.translate(TEXTS, must=[["a"], []])
    with pytest.raises(SaccadeError, match=r"write \['Haus'\]"):
        translator.translate(TEXTS, must="Haus")
    with pytest.raises(SaccadeError, match=r"search.banned: ' ' is no word"):
        translator.translate(TEXTS, banned=[" "])
    with pytest.raises(SaccadeError, match=r"none.txt: cannot read it"):
        translator.translate(TEXTS, shortlist=str(tmp_path / "none.txt"))
    with pytest.raises(SaccadeError, match=r"search.repetition_penalty=0.5"):
        translator.translate(TEXTS, repetition_penalty=0.5)


def test_the_columns_of_the_command_line(trained, command):
    lines = "January 5, 2021\tAm Tag\tHaus\tzwei Uhr\nseventeen\n\neight\t\tKatze\n"
    told = command("translate", trained, "--prefix-column", "--constraints-column", "--no-guard", stdin=lines.encode())
    first, second, third, fourth = told.out.split("\n")[:4]
    assert told.status == 0
    assert first.startswith("Am Tag")
    assert "Haus" in first
    assert "zwei Uhr" in first
    assert second == saccade.load(trained).translate("seventeen", guard=False).text
    assert third == ""
    assert "Katze" in fourth
    wrong = command("translate", trained, "--prefix-column", stdin=b"one\ntwo\tzwei\tdrei\n")
    assert wrong.status == 2
    assert "line 2: 3 columns" in wrong.err


def test_the_options_of_the_command_line_reach_the_search(trained, command):
    options = ["--banned", "Januar", "--must", "Haus", "--must", "zwei Uhr", "--no-repeat-ngram", "2", "--no-guard"]
    lengths = ["--min-length", "8", "--max-length", "40", "--repetition-penalty", "1.2"]
    said = command("translate", trained, *options, *lengths, stdin=b"January 5, 2021\n")
    expected = saccade.load(trained).translate(
        "January 5, 2021",
        banned=["Januar"],
        must=["Haus", "zwei Uhr"],
        no_repeat_ngram=2,
        guard=False,
        min_length=8,
        max_length=40,
        repetition_penalty=1.2,
    )
    assert said.out == expected.text + "\n"
    assert "Haus" in expected.text


def test_without_columns_a_tab_is_part_of_the_source():
    assert Columns().read(["a\tb"]) == (["a\tb"], {})
    assert Columns(phrases=True, always=("x",)).read(["a\tb\t", "c"]) == (
        ["a", "c"],
        {"prefix": ["", ""], "must": [["x", "b"], ["x"]]},
    )
