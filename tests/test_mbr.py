"""Minimum Bayes risk: the utility is sacrebleu's, and the choice is the definition's."""

import math
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

import saccade
from saccade.errors import SaccadeError
from saccade.generation.mbr import by_risk, chrf_matrix
from saccade.generation.search import Hypothesis

LINES = ["January 5, 2021", "seventeen", "", "8:15 PM and seven euros", "Friday, March 28, 1986"]
text = st.text(st.sampled_from("abcä 日.\t"), max_size=14)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(text, min_size=1, max_size=6))
@example(texts=["", " ", "a", "ab", "the cat sat on the mat", "the cat sits on a mat"])
def test_the_utility_is_sacrebleus_chrf_of_each_pair(texts):
    metric, ours = CHRF(), chrf_matrix(texts)
    expected = [[metric.sentence_score(h, [r]).score for r in texts] for h in texts]
    np.testing.assert_allclose(ours, expected, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(text, min_size=1, max_size=6), data=st.data())
def test_the_first_has_the_highest_expected_utility(texts, data):
    log_probs = data.draw(st.lists(st.floats(-30, 0), min_size=len(texts), max_size=len(texts)))
    hypotheses = [Hypothesis([i], log_prob, log_prob) for i, log_prob in enumerate(log_probs)]
    metric = CHRF()
    for sampled in (True, False):
        weights = [1.0 if sampled else math.exp(x - max(log_probs)) for x in log_probs]
        expected = {
            h: sum(w * metric.sentence_score(h, [r]).score for w, r in zip(weights, texts, strict=True)) / sum(weights)
            for h in texts
        }
        ranked = by_risk(hypotheses, texts, sampled)
        assert len(ranked) == len(set(texts)), "each text once"
        assert [h.score for h in ranked] == pytest.approx([expected[texts[h.tokens[0]]] for h in ranked])
        assert [h.score for h in ranked] == pytest.approx(sorted(expected.values(), reverse=True))
        assert all(h.log_prob == log_probs[h.tokens[0]] for h in ranked)


def test_what_most_agree_on_wins_over_what_is_likeliest():
    texts = ["something else altogether", "the cat sat on the mat", "the cat sat on a mat", "the cats sat on the mat"]
    likely = [Hypothesis([i], -1.0 - i / 10, 0.0) for i in range(4)]
    assert by_risk(likely, texts, sampled=True)[0].tokens == [1]
    sure = [Hypothesis([i], -0.1 if i == 0 else -9.0, 0.0) for i in range(4)]
    assert by_risk(sure, texts, sampled=False)[0].tokens == [0], "hypotheses of a beam count by their probability"


def test_a_text_drawn_twice_counts_twice_and_equals_keep_their_order():
    drawn = [Hypothesis([i], -1.0, 0.0) for i in range(3)]
    assert [h.tokens for h in by_risk(drawn, ["abcdef", "uvwxyz", "uvwxyz"], sampled=True)] == [[1], [0]]
    assert [h.tokens for h in by_risk(drawn[:2], ["abcdef", "uvwxyz"], sampled=True)] == [[0], [1]]


def test_a_folder_chooses_by_risk_from_its_own_samples_or_beam(trained: Path) -> None:
    translator = saccade.load(trained)
    for options in ({"method": "sample", "temperature": 0.8}, {"beam": 8}):
        pool = translator.translate(LINES, **options, n_best=8)
        chosen = translator.translate(LINES, **options, mbr=8, n_best=2)
        assert chosen[2].text == ""
        for candidates, translation in zip(pool, chosen, strict=True):
            if not candidates.n_best:
                continue
            texts = [t.text for t in candidates.n_best]
            hypotheses = [Hypothesis([], t.score, t.score) for t in candidates.n_best]
            best = by_risk(hypotheses, texts, sampled="method" in options)[0].score
            utilities = dict(zip(texts, _expected(texts, hypotheses, "method" in options), strict=True))
            assert utilities[translation.text] == pytest.approx(best)
            assert 1 <= len(translation.n_best or [translation]) <= 2
            score = {t.text: t.score for t in reversed(candidates.n_best)}[translation.text]
            assert translation.score == pytest.approx(score, abs=1e-4), "the score stays the log-probability"
        again = translator.translate(LINES[::-1], **options, mbr=8)[::-1]
        assert [t.text for t in again] == [t.text for t in chosen]


def _expected(texts, hypotheses, sampled):
    weights = np.array([1.0 if sampled else math.exp(h.log_prob - hypotheses[0].log_prob) for h in hypotheses])
    return chrf_matrix(texts) @ (weights / weights.sum())


def test_the_command_line_chooses_by_risk(trained: Path, command: Command) -> None:
    done = command("translate", trained, "--method", "sample", "--mbr", 6, stdin="\n".join(LINES).encode())
    chosen = saccade.load(trained).translate(LINES, method="sample", mbr=6)
    assert done.out.split("\n")[:-1] == [t.text for t in chosen]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mbr": 9}, "search.mbr=9 is more than search.beam=5; widen the beam or set search.method=sample"),
        ({"mbr": 3, "n_best": 4}, "search.n_best=4 is more than search.mbr=3; find more candidates"),
        ({"method": "sample", "mbr": 3, "n_best": 4}, "search.n_best=4 is more than search.mbr=3"),
    ],
)
def test_more_than_there_is_to_choose_from_is_refused_by_name(trained: Path, options, said) -> None:
    with pytest.raises(SaccadeError, match=said):
        saccade.load(trained).translate("seventeen", **options)
