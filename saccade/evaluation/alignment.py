"""Word alignments against links drawn by hand: the Pharaoh format, and the alignment error rate."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from saccade.data.lines import read_lines
from saccade.errors import SaccadeError

Links = frozenset[tuple[int, int]]  # (source word, target word), counted from 0
_LINK = re.compile(r"(\d+)([-?pP])(\d+)")


class Gold(NamedTuple):
    """What the annotators linked: surely, and at least possibly (the sure ones among them)."""

    sure: Links
    possible: Links


class AlignmentScore(NamedTuple):
    """How well links agree with the gold, over a whole corpus; each between 0 and 1."""

    error_rate: float
    precision: float
    recall: float


def read_pharaoh(path: str) -> list[Gold]:
    """One line a sentence, `0-0 1-2 2?1`: `source-target`, a link that is only possible with `?` or `p` between."""
    sentences = []
    for number, line in enumerate(read_lines(path), start=1):
        sure, possible = set(), set()
        for item in line.split():
            found = _LINK.fullmatch(item)
            if found is None:
                raise SaccadeError(f"{path}, line {number:,}: {item!r} is not a link; write source-target, such as 0-2")
            link = (int(found[1]), int(found[3]))
            possible.add(link)
            if found[2] == "-":
                sure.add(link)
        sentences.append(Gold(frozenset(sure), frozenset(possible)))
    return sentences


def check_links(path: str, gold: Sequence[Gold], sources: Sequence[str], targets: Sequence[str]) -> None:
    """Refuse links of other sentences than these, where it shows: as many, and each between two of their words."""
    if not len(gold) == len(sources) == len(targets):
        raise SaccadeError(f"{path} has the links of {len(gold):,} sentences, the text {len(sources):,}: give as many")
    for number, (linked, *sides) in enumerate(zip(gold, sources, targets, strict=True), start=1):
        words = [len(side.split()) for side in sides]
        for s, t in sorted(linked.possible):
            if s >= words[0] or t >= words[1]:
                raise SaccadeError(
                    f"{path}, line {number:,}: {s}-{t} links words that are not there, of {words[0]} and {words[1]}; "
                    "give the sentences that were linked, source first; words are counted from 0"
                )


def score_alignment(found: Sequence[Links], gold: Sequence[Gold]) -> AlignmentScore:
    """AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), for links A, sure S, possible P   (Och & Ney 2003, eq. 22).

    Precision is |A ∩ P| / |A|, recall |A ∩ S| / |S|; the counts are those of all sentences together.
    """
    if len(found) != len(gold):
        raise SaccadeError(f"{len(found):,} alignments but {len(gold):,} lines of gold links; give as many of each")
    links = sum(map(len, found))
    sure = sum(len(sentence.sure) for sentence in gold)
    found_sure = sum(len(links & sentence.sure) for links, sentence in zip(found, gold, strict=True))
    found_possible = sum(len(links & sentence.possible) for links, sentence in zip(found, gold, strict=True))
    return AlignmentScore(
        error_rate=1 - (found_sure + found_possible) / (links + sure) if links + sure else 0.0,
        precision=found_possible / links if links else 0.0,
        recall=found_sure / sure if sure else 0.0,
    )
