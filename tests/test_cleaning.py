"""Cleaning: a pair is kept as it is or dropped under a name, and the report adds up."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.config import CleaningConfig
from saccade.data.cleaning import CleaningReport, Dropped, Example, Reason, clean
from saccade.data.corpora import Pair


@dataclass(frozen=True)
class Listed:
    """A corpus in memory."""

    pairs: list[tuple[str, str]]
    name: str = "train.de + train.en"

    def __iter__(self) -> Iterator[Pair]:
        for line, (source, target) in enumerate(self.pairs, 1):
            yield Pair(source, target, line)


def cleaned(*pairs: tuple[str, str], **changes: object) -> tuple[list[tuple[str, str]], CleaningReport]:
    report = CleaningReport()
    kept = clean(Listed(list(pairs)), CleaningConfig.model_validate(changes), report)
    return [(pair.source, pair.target) for pair in kept], report


def reason(source: str, target: str, **changes: object) -> Reason | None:
    _, report = cleaned((source, target), **changes)
    return next(iter(report.reasons), None)


SIDE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["", " ", "\t", "1992", "Berlin", "a\nb", "a\rb", "\0", "\ufffd", "x" * 50, "ein Hund", "a dog"]
)


@settings(max_examples=300, deadline=None)
@given(
    pairs=st.lists(st.tuples(SIDE, SIDE), max_size=12),
    enabled=st.booleans(),
    drop_copies=st.booleans(),
    drop_duplicates=st.booleans(),
)
def test_kept_pairs_are_unchanged_and_in_order_and_the_counts_add_up(
    pairs: list[tuple[str, str]], enabled: bool, drop_copies: bool, drop_duplicates: bool
) -> None:
    config = CleaningConfig(
        enabled=enabled, drop_copies=drop_copies, drop_duplicates=drop_duplicates, max_characters=45
    )
    report = CleaningReport()
    kept = list(clean(Listed(pairs), config, report))
    assert all((pair.source, pair.target) == pairs[pair.line - 1] for pair in kept)
    assert [pair.line for pair in kept] == sorted({pair.line for pair in kept})
    assert report.read == len(pairs)
    assert report.kept == len(kept)
    assert report.dropped == sum(dropped.count for dropped in report.reasons.values())
    for dropped in report.reasons.values():
        assert len(dropped.examples) == min(3, dropped.count)
    json.dumps(report.to_dict())
    assert all(line.isprintable() for line in report.lines())


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("", " \t\u3000", "both sides blank"),
        (" ", "a dog", "source blank"),
        ("ein Hund", "", "target blank"),
        ("x" * 2001, "y" * 2001, "too long"),
        ("x" * 2000, "y" * 2000, None),
        ("ein\0Hund", "a dog", "control character"),
        ("ein Hund", "a \x1b[31mdog", "control character"),
        ("ein Hund", "a\x85dog", "control character"),
        ("ein\u2028Hund", "a dog", "control character"),
        ("ein\tHund", "a\tdog", None),
        ("sch\ufffdn", "beautiful", "replacement character"),
        ("ein\nHund", "a dog", "line break"),
        ("ein Hund", "a dog\r", "line break"),
        ("Berlin", "Berlin", "copy"),
        (" Berlin", "Berlin ", "copy"),
        ("1992", "1992", None),
        ("3,14 %", "3,14 %", None),
        ("北京", "北京", "copy"),
        ("Berlin", "berlin", None),
        ("می‌خواهم", "I want it", None),
        ("  ein Hund ", " a dog\u00a0", None),
    ],
)
def test_each_flaw_has_its_name(source: str, target: str, expected: Reason | None) -> None:
    assert reason(source, target) == expected


def test_the_length_ratio_counts_only_where_the_longer_side_is_more_than_a_few_words() -> None:
    assert reason("x" * 21, "yz") == "length ratio"
    assert reason("yz", "x" * 21) == "length ratio"
    assert reason("x" * 20, "y") is None
    assert reason("x" * 90, "y" * 10) == "length ratio"
    assert reason("x" * 89, "y" * 10) is None
    assert reason("x" * 40, "y" * 20, max_ratio=2.0) == "length ratio"
    assert reason("我们明天早上去看望他的祖父母。", "Tomorrow morning we are going to visit his grandparents.") is None


def test_the_most_characters_can_be_changed() -> None:
    assert reason("Hund", "dog", max_characters=3) == "too long"
    assert reason("x" * 100_000, "y" * 100_000, max_characters=100_000) is None


def test_copies_and_duplicates_can_be_kept() -> None:
    pairs = [("Berlin", "Berlin"), ("Berlin", "Berlin")]
    assert cleaned(*pairs, drop_copies=False, drop_duplicates=False)[0] == pairs
    assert cleaned(*pairs, drop_copies=False)[0] == pairs[:1]


def test_a_duplicate_is_a_pair_whose_two_sides_came_before() -> None:
    kept, report = cleaned(("a", "b"), ("a", "c"), ("ab", "c"), ("a", "bc"), ("a", "b"), ("a", "b "))
    assert kept == [("a", "b"), ("a", "c"), ("ab", "c"), ("a", "bc"), ("a", "b ")]
    assert report.reasons == {"duplicate": Dropped(1, [Example("train.de + train.en", 5, "“a” → “b”")])}


def test_duplicates_are_found_across_corpora_of_one_report_only() -> None:
    report = CleaningReport()
    first, second = Listed([("a", "b")], "first"), Listed([("a", "b"), ("c", "d")], "second")
    kept = [pair for corpus in (first, second) for pair in clean(corpus, CleaningConfig(), report)]
    assert kept == [Pair("a", "b", 1), Pair("c", "d", 2)]
    assert report.reasons["duplicate"].examples == [Example("second", 1, "“a” → “b”")]
    assert len(list(clean(first, CleaningConfig(), CleaningReport()))) == 1


def test_with_cleaning_off_only_what_does_not_fit_on_a_line_is_dropped() -> None:
    pairs = [("", ""), ("a", "a"), ("a", "a"), ("\0", "\ufffd"), ("x" * 9999, "y")]
    kept, report = cleaned(*pairs, ("a\nb", "c"), ("a", "b\r\nc"), enabled=False)
    assert kept == pairs
    assert (report.read, report.kept) == (7, 5)
    assert {name: dropped.count for name, dropped in report.reasons.items()} == {"line break": 2}


def test_the_report_shows_counts_and_three_examples_each() -> None:
    blank = [("", f"dog {n}") for n in range(4)]
    good = [(f"Hund {n}", f"dog {n}") for n in range(1994)]
    _, report = cleaned(*good, *blank, ("a\x1bb", "x" * 41), ("schön\ufffd", "nice"))
    assert report.lines() == [
        "kept 1,994 of 2,000 pairs (99.7%), dropped 6:",
        "  4 source blank",
        "    train.de + train.en:1995: “” → “dog 0”",
        "    train.de + train.en:1996: “” → “dog 1”",
        "    train.de + train.en:1997: “” → “dog 2”",
        "  1 control character",
        f"    train.de + train.en:1999: “a\\x1bb” → “{'x' * 40}…” (41 characters)",
        "  1 replacement character",
        "    train.de + train.en:2000: “schön\ufffd” → “nice”",
    ]


def test_the_report_is_plain_data_for_json() -> None:
    _, report = cleaned(("a", "b"), ("", "c"))
    assert json.loads(json.dumps(report.to_dict())) == {
        "read": 2,
        "kept": 1,
        "share_kept": 0.5,
        "dropped": {
            "source blank": {
                "count": 1,
                "examples": [{"corpus": "train.de + train.en", "line": 2, "excerpt": "“” → “c”"}],
            }
        },
    }


def test_the_share_is_never_rounded_to_all_or_nothing() -> None:
    assert CleaningReport(100_000, 99_999).lines()[0] == "kept 99,999 of 100,000 pairs (99.9%), dropped 1:"
    assert CleaningReport(100_000, 1).lines()[0] == "kept 1 of 100,000 pairs (0.1%), dropped 99,999:"
    assert CleaningReport(2, 0).lines()[0] == "kept 0 of 2 pairs (0.0%), dropped 2:"
    assert CleaningReport(29_000, 29_000).lines() == ["kept all 29,000 pairs"]
    assert CleaningReport().share_kept == 1.0


def test_more_than_a_fifth_dropped_is_a_warning() -> None:
    good = [(f"Hund {n}", f"dog {n}") for n in range(8)]
    _, fifth = cleaned(*good, ("", ""), ("", ""))
    assert not any("warning" in line for line in fifth.lines())
    _, more = cleaned(*good, *[("", "")] * 4)
    assert more.lines()[-1] == (
        "warning: 33.3% of the pairs were dropped; if the examples are good pairs, change data.cleaning, "
        "or keep every pair with --no-clean"
    )


def test_a_pass_that_stops_early_has_counted_what_it_saw() -> None:
    report = CleaningReport()
    pairs = clean(Listed([("", ""), ("a", "b"), ("c", "d")]), CleaningConfig(), report)
    assert next(pairs) == Pair("a", "b", 2)
    assert (report.read, report.kept) == (2, 1)
