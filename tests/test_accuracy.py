"""Accuracy and confusions, by hand."""

import pytest

from saccade.evaluation import Confusion, compare_systems, confusions, metrics_for, score_corpus

RIGHT = ["cat", "dog", "dog", "Bird"]
GUESSED = ["cat", "cat", "cat ", "bird"]


def test_accuracy_counts_labels_that_are_right_to_the_letter():
    (score,) = score_corpus(GUESSED, RIGHT, metrics=["accuracy"])
    assert (score.metric, score.value) == ("Accuracy", 25)
    assert score.signature.startswith("nrefs:1|case:mixed|version:")
    (lower,) = score_corpus(GUESSED, RIGHT, metrics=["accuracy"], lowercase=True)
    assert lower.value == 50
    assert "case:lc" in lower.signature


def test_any_of_several_references_will_do_and_spaces_around_do_not_count():
    (score,) = score_corpus(GUESSED, [RIGHT, ["x", "x", " cat", "x"]], metrics=["accuracy"])
    assert score.value == 50
    assert "nrefs:2" in score.signature


def test_confusions_are_named_the_most_frequent_first():
    found = confusions(GUESSED, [RIGHT])
    assert found == [Confusion("dog", "cat", 2), Confusion("Bird", "bird", 1)]
    assert str(found[0]) == "2 × 'dog' taken for 'cat'"
    assert confusions(GUESSED, [RIGHT], lowercase=True) == [Confusion("dog", "cat", 2)]
    assert confusions(RIGHT, [RIGHT]) == []


def test_two_classifiers_are_told_apart_by_the_paired_bootstrap():
    references = ["yes", "no"] * 50
    worse = ["yes"] * 60 + ["no"] * 40
    (found,) = compare_systems(worse, references, references, metrics=["accuracy"], samples=100)
    wrong = sum(a != b for a, b in zip(worse, references, strict=True))
    assert (found.baseline, found.system) == (pytest.approx(100 - wrong), 100)
    assert found.significant


def test_labels_are_judged_by_accuracy_and_sentences_are_not():
    assert metrics_for("classifier") == ("accuracy",)
    assert metrics_for("transformer") == ("bleu", "chrf", "ter")
