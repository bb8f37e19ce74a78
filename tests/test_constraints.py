"""Phrases that must appear: they always do, and without them the search is beam search."""

from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from models_under_test import make, sentences
from test_invariants import assert_same, every_model, forced
from test_placeholders import untrained
from test_search import TableModel, brute_force

import saccade
from saccade.data.batching import collate
from saccade.data.tokenizers import KINDS, Tokenizer
from saccade.errors import SaccadeError
from saccade.generation.constraints import ConstrainedBeam
from saccade.generation.loop import generate
from saccade.generation.search import Beam
from saccade.generation.words import Speller, Spelling
from saccade.text.placeholders import Protection
from saccade.text.placing import mark, place

LINES = ["Der Hund und die Katze (ein Haus) um 12 Uhr.", "Die Katze, der Hund: zwei Häuser, 21 Uhr!"] * 3
WRITTEN = ["der", "Hund", "{x}", "{name}", "https://x.org/y", "<b>", "%s", "7", "x.org", "läuft."]


def phrase(*ids):
    return (Spelling(ids),)


def search(model, sources, phrases, beam, limits=None):
    batch = collate([(source, []) for source in sources], range(len(sources)))
    limits = torch.tensor(limits or [2 * len(source) + 3 for source in sources])
    constrained = ConstrainedBeam(beam, [[phrase(*ids) for ids in several] for several in phrases])
    return generate(model, batch.source, batch.source_mask, constrained, limits)


def occurrences(tokens, ids):
    """How often `ids` are in `tokens`, not overlapping itself."""
    place = count = 0
    while place <= len(tokens) - len(ids):
        here = tokens[place : place + len(ids)] == list(ids)
        count, place = count + here, place + (len(ids) if here else 1)
    return count


def assert_holds(hypothesis, phrases):
    for ids in phrases:
        assert occurrences(hypothesis.tokens, ids) >= phrases.count(ids)


few = st.lists(st.integers(4, 8), min_size=1, max_size=4)  # of five tokens: they overlap and repeat each other


@every_model
@settings(max_examples=5, deadline=None)
@given(
    phrases=st.lists(st.lists(few, max_size=3), min_size=1, max_size=3),
    beam=st.sampled_from([1, 2, 5]),
    tight=st.booleans(),
    seed=st.integers(0, 99),
)
def test_whatever_is_returned_holds_all_its_phrases(name, phrases, beam, tight, seed):
    model = make(name)
    sources = sentences([3] * len(phrases), seed=seed)
    room = [sum(map(len, several)) + 1 + (0 if tight else 6) for several in phrases]
    found = search(model, sources, phrases, Beam(beam, 1.0, 0.0, n_best=beam), room)
    for source, several, hypotheses, limit in zip(sources, phrases, found, room, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            assert_holds(hypothesis, several)
            assert len(hypothesis.tokens) < limit
            log_probs, batch = forced(model, [(source, hypothesis.tokens)])
            own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).sum().item()
            assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)


@every_model
@pytest.mark.parametrize("beam", [Beam(3, 0.8, 0.0, 3), Beam(1), Beam(4, 1.0, 0.0, 2, stop_at_size=True)])
def test_without_phrases_it_is_beam_search(name, beam):
    model, sources = make(name), sentences([2, 5, 8, 3], seed=9)
    batch = collate([(source, []) for source in sources], range(len(sources)))
    limits = torch.tensor([2 * len(source) + 3 for source in sources])
    plain = generate(model, batch.source, batch.source_mask, beam, limits)
    for found, expected in zip(search(model, sources, [[]] * 4, beam), plain, strict=True):
        assert_same(found, expected)
    # … also for those whose neighbours have some
    for found, expected in zip(
        search(model, sources, [[[7, 8]], [], [[4], [5]], []], beam)[1::2], plain[1::2], strict=True
    ):
        assert_same(found, expected)


def test_a_coverage_penalty_counts_as_in_beam_search():
    model, beam = make("rnn bahdanau"), Beam(3, 0.8, 0.5, 3)
    sources = sentences([2, 5, 8], seed=9)
    batch = collate([(source, []) for source in sources], range(3))
    limits = torch.tensor([2 * len(source) + 3 for source in sources])
    plain = generate(model, batch.source, batch.source_mask, beam, limits)
    for found, expected in zip(search(model, sources, [[]] * 3, beam), plain, strict=True):
        assert_same(found, expected)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    phrases=st.lists(st.lists(st.integers(4, 6), min_size=1, max_size=2), min_size=1, max_size=2),
)
def test_a_wide_beam_finds_the_best_of_all_that_hold_the_phrases(seed, phrases):
    # Room is kept for each phrase by itself, so one that ends within another just before the limit is not found.
    assume(len(phrases) == 1 or phrases[0] == phrases[1] or not {*phrases[0]} & {*phrases[1]})
    assume(sum(map(len, phrases)) < 5)
    model, limit, beam = TableModel(seed), 5, Beam(81 * 5, 1.0, 0.0, 3)
    source = torch.zeros(1, 3, dtype=torch.long)
    constrained = ConstrainedBeam(beam, [[phrase(*ids) for ids in phrases]])
    (found,) = generate(model, source, torch.ones_like(source, dtype=torch.bool), constrained, torch.tensor([limit]))
    expected = [
        (score, words)
        for score, words, _ in brute_force(model, 0, beam, limit)
        if all(occurrences(words, ids) >= phrases.count(ids) for ids in phrases)
    ]
    assert [h.tokens for h in found] == [words for _, words in expected[:3]]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected[:3]])


@every_model
def test_phrases_of_others_never_change_an_answer(name):
    model, sources = make(name), sentences([4, 6, 3], seed=5)
    phrases, beam = [[[5, 6], [7]], [[9, 9, 4]], []], Beam(4, 1.0, 0.0, 2)
    together = search(model, sources, phrases, beam)
    for source, several, found in zip(sources, phrases, together, strict=True):
        assert_same(found, search(model, [source], [several], beam)[0])


def test_phrases_that_do_not_fit_are_refused_by_name():
    with pytest.raises(SaccadeError, match=r"sentence 2: its phrases \(search.must\) take 4 pieces.*may have 3"):
        search(make("rnn cho"), sentences([2, 2]), [[], [[4, 5], [6, 7]]], Beam(3), [9, 4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_phrase_is_spelled_as_the_tokenizer_spells_it_within_a_sentence(kind):
    tokenizer = Tokenizer.train(LINES, kind, 330)
    speller = Speller(tokenizer)
    for text in ("Katze", "der Hund", "12 Uhr"):
        spaced, bare = (list(spelling.ids) for spelling in speller.phrase(text, "must"))
        for sentence, ids in ((f"und {text}.", spaced), (f"und ({text})", bare)):
            assert occurrences(tokenizer.encode(sentence), ids) == 1
    assert not speller.phrase("Katze", "must")[1].after_letters
    assert speller.phrase("猫", "must")[1].after_letters


def test_must_in_python_is_for_all_or_for_each(trained):
    translator = saccade.load(trained)
    texts = ["January 5, 2021", "seventeen", "8:15 PM and seven euros"]
    own = [["Katze"], [], ["zwei Uhr", "Haus"]]
    for translation, phrases in zip(translator.translate(texts, must=own), own, strict=True):
        for text in phrases:
            assert text in translation.text
    assert all("Katze" in t.text for t in translator.translate(texts, must=["Katze"], beam=1))
    alone = translator.translate(texts[0], must=["Haus", "Haus"], n_best=3)
    assert all(t.text.count("Haus") >= 2 for t in alone.n_best)
    assert translator.translate(texts[1], must=[]).text == translator.translate(texts[1]).text


TOLD = ["https://x.org/y", "{name}", "a <b> c", "%s and www.z.de", "Saccade {x}"]


@pytest.mark.parametrize("phrase", TOLD)
def test_what_a_translation_is_told_to_hold_is_not_taken_for_invented(phrase):
    translator = untrained("transformer pre-norm", "search.terms=[Saccade]")
    for text in ["hello", "say {x} <i>now</i>", f"hello {phrase}"]:
        assert phrase in translator.translate(text, must=[phrase], beam=3).text
        assert translator.translate(text, prefix=phrase).text.startswith(phrase)
    assert phrase in translator.translate("<b> {x}", must=[phrase], beam=3).text
    own = translator.translate(["{x} hello", "hello"], must=[[], [phrase]], beam=3)
    assert own[0].text == translator.translate("{x} hello", beam=3).text


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("<b>hello</b> there", "<b>Hund"),
        ("<b>hello</b> there", "<b>Hund</b> und"),
        ("hello<br/>there", "<br/>Hund"),
        ("<i><b>hello there</b></i>", "Hund"),
        ("{x}: hello", "Hund"),
    ],
)
def test_a_translation_begins_as_told_and_has_what_stands_there_no_second_time(text, prefix):
    found = untrained("transformer pre-norm").translate(text, prefix=prefix).text
    assert found.startswith(prefix)
    count = Counter(span.text for span in Protection().exact(found))
    assert count == Counter(span.text for span in Protection().exact(text))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(TOLD), st.sampled_from(TOLD), st.lists(st.sampled_from(WRITTEN), max_size=9))
def test_phrases_stay_whole_where_placeholders_are_put_in(phrase, of_source, words):
    told = phrase.replace("Saccade ", "").replace(" ", " Hund ")
    protection = Protection(terms=["Saccade"])
    marked = mark(f"the <i>dog</i> {of_source} 7 runs", protection)._replace(told=(told,))
    written = " ".join([*words, told, *reversed(words)])
    placed, _ = place(marked, written, [], protection)
    assert placed.count(told) >= 1
    assert protection.losses(marked.line, marked.spans, placed, [told]) == []


def test_a_line_that_is_told_nothing_keeps_its_numbers_beside_one_that_is():
    translator = untrained("transformer pre-norm")
    texts = ["17 of 94", "hello"]
    alone = translator.translate(texts[0], beam=3)
    assert "94" in alone.text
    for told in ({"must": [[], ["Hund"]]}, {"prefix": ["", "Hund"]}, {"allowed": [None, ["Hund"]]}):
        assert translator.translate(texts, beam=3, **told)[0].text == alone.text
