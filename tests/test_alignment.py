"""Alignments against links drawn by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import saccade
from saccade.errors import SaccadeError
from saccade.evaluation.alignment import Gold, read_pharaoh, score_alignment

LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1)


def test_sure_and_possible_links_are_read(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0-0 1?2 3p1\n\n2-1\n")
    first, second, third = read_pharaoh(str(path))
    assert first == Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (3, 1)}))
    assert second == Gold(frozenset(), frozenset())
    assert third.sure == {(2, 1)}


def test_what_is_not_a_link_is_refused_by_line(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0-0\n1:2\n")
    with pytest.raises(SaccadeError, match=r"line 2: '1:2' is not a link"):
        read_pharaoh(str(path))


def test_the_error_rate_is_och_and_neys():
    """|A| = 3, |S| = 2, one sure and two possible found: AER = 1 - (1 + 2) / (3 + 2)."""
    gold = [Gold(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 2)}))]
    score = score_alignment([frozenset({(0, 0), (2, 2), (3, 3)})], gold)
    assert score.error_rate == pytest.approx(1 - 3 / 5)
    assert (score.precision, score.recall) == (pytest.approx(2 / 3), pytest.approx(1 / 2))


@given(LINKS)
def test_the_gold_itself_has_no_error_and_nothing_in_common_is_all_error(links):
    gold = [Gold(links, links)]
    assert score_alignment([links], gold) == (0.0, 1.0, 1.0)
    elsewhere = frozenset((s + 10, t) for s, t in links)
    assert score_alignment([elsewhere], gold) == (1.0, 0.0, 0.0)


def test_as_many_alignments_as_gold_lines():
    with pytest.raises(SaccadeError, match="1 alignments but 0 lines"):
        score_alignment([frozenset()], [])


def test_a_translation_that_is_given_has_the_score_and_the_attention_of_one_that_is_found(trained):
    translator = saccade.load(trained)
    found = translator.translate("January 5, 2021")
    forced = translator.forced("January 5, 2021", found.text)
    assert forced.tokens == found.tokens
    assert forced.score == pytest.approx(found.score, abs=1e-4)
    assert forced.alignment == found.alignment
