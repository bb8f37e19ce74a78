"""Which pairs are not learned from, and why, told with examples.

    report = CleaningReport()
    for corpus in corpora:
        for pair in clean(corpus, settings, report): ...
    print("\\n".join(report.lines()))

A pair is kept exactly as it is, spaces at its ends included, or dropped under the first of these names that fits:

| name                  | dropped                                                                                   |
|-----------------------|-------------------------------------------------------------------------------------------|
| line break            | `\\n` or `\\r` inside a side: what is read from one line must fit on one line                |
| both sides blank      | nothing but white space on both sides                                                     |
| source blank          | nothing but white space in the source                                                     |
| target blank          | nothing but white space in the target                                                     |
| too long              | more than `max_characters` on either side                                                 |
| control character     | NUL, other control characters (a tab is kept), U+2028 and U+2029                          |
| replacement character | U+FFFD: the text was broken before it came here                                           |
| length ratio          | one side `max_ratio` times as long as the other, where the longer has over 20 characters  |
| copy                  | source equals target but for spaces around it, and holds a letter: "1992" → "1992" is kept |
| duplicate             | the same pair came before, in this corpus or an earlier one of the same report            |

Where every source is empty (`monolingual`), a blank source is no flaw and no length ratio is taken.

With cleaning off only *line break* applies: such a pair could never be written out and read back.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from saccade.config import CleaningConfig
from saccade.data.corpora import Corpus, Pair

Reason = Literal[
    "line break",
    "both sides blank",
    "source blank",
    "target blank",
    "too long",
    "control character",
    "replacement character",
    "length ratio",
    "copy",
    "duplicate",
]

EXAMPLES = 3
EXCERPT = 40
# "Ja." and "Yes, of course." are a fair pair: a ratio says little about a few words.
RATIO_FROM = 20
MUCH_DROPPED = 0.2

_LETTER = re.compile(r"[^\W\d_]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")


class Example(NamedTuple):
    """One dropped pair: where it stands and how it begins."""

    corpus: str
    line: int
    excerpt: str


@dataclass
class Dropped:
    """The pairs dropped for one reason: how many, and the first few."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass
class CleaningReport:
    """What one pass over one or more corpora kept and dropped, counted as it goes.

    It also remembers a 64-bit hash of each kept pair, by which duplicates are found across corpora: begin each pass
    with a new report. (Among 100 million pairs the chance that even one is mistaken for another is 1 in 3,700.)
    """

    read: int = 0
    kept: int = 0
    reasons: dict[Reason, Dropped] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set, repr=False)

    @property
    def dropped(self) -> int:
        return self.read - self.kept

    @property
    def share_kept(self) -> float:
        return self.kept / self.read if self.read else 1.0

    def drop(self, pair: Pair, corpus: str, reason: Reason) -> None:
        """Count a pair as dropped, and keep it as an example if it is among the first."""
        dropped = self.reasons.setdefault(reason, Dropped())
        dropped.count += 1
        if len(dropped.examples) < EXAMPLES:
            excerpt = f"{_excerpt(pair.source)} → {_excerpt(pair.target)}"
            dropped.examples.append(Example(corpus, pair.line, excerpt))

    def lines(self) -> list[str]:
        """The report for people: a summary, then each reason with its examples, the most frequent first."""
        if not self.dropped:
            return [f"kept all {self.read:,} pairs"]
        # Rounded to one digit, 28,999 of 29,000 would read as 100.0%.
        share = min(max(round(100 * self.share_kept, 1), 0.1 if self.kept else 0.0), 99.9)
        lines = [f"kept {self.kept:,} of {self.read:,} pairs ({share:.1f}%), dropped {self.dropped:,}:"]
        for reason, dropped in sorted(self.reasons.items(), key=lambda item: -item[1].count):
            lines.append(f"  {dropped.count:,} {reason}")
            lines += [f"    {example.corpus}:{example.line}: {example.excerpt}" for example in dropped.examples]
        if self.dropped > MUCH_DROPPED * self.read:
            lines.append(
                f"warning: {100 - share:.1f}% of the pairs were dropped; if the examples are good pairs, change "
                "data.cleaning, or keep every pair with --no-clean"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "read": self.read,
            "kept": self.kept,
            "share_kept": self.share_kept,
            "dropped": {
                reason: {"count": dropped.count, "examples": [example._asdict() for example in dropped.examples]}
                for reason, dropped in self.reasons.items()
            },
        }


def clean(
    corpus: Corpus, settings: CleaningConfig, report: CleaningReport, monolingual: bool = False
) -> Iterator[Pair]:
    """The pairs of `corpus` worth learning from, unchanged; what is dropped goes into `report`."""
    for pair in corpus:
        reason = flaw_of(pair, settings, monolingual)
        if settings.enabled and settings.drop_duplicates:
            reason = reason or _repeated(pair, report)
        report.read += 1
        if reason is None:
            report.kept += 1
            yield pair
        else:
            report.drop(pair, corpus.name, reason)


def flaw_of(pair: Pair, settings: CleaningConfig, monolingual: bool = False) -> Reason | None:
    """What is wrong with a pair by itself."""
    return _line_break(pair) or (_flaw(pair, settings, monolingual) if settings.enabled else None)


def _line_break(pair: Pair) -> Reason | None:
    source, target, _ = pair
    return "line break" if "\n" in source or "\n" in target or "\r" in source or "\r" in target else None


def _flaw(pair: Pair, settings: CleaningConfig, monolingual: bool) -> Reason | None:
    source, target, _ = pair
    bare_source, bare_target = source.strip(), target.strip()
    has_source = bool(bare_source) or monolingual
    if not has_source or not bare_target:
        return "target blank" if has_source else "source blank" if bare_target else "both sides blank"
    shorter, longer = sorted((len(source), len(target)))
    if longer > settings.max_characters:
        return "too long"
    if _CONTROL.search(source) or _CONTROL.search(target):
        return "control character"
    if "\ufffd" in source or "\ufffd" in target:
        return "replacement character"
    if not monolingual and longer > RATIO_FROM and longer >= settings.max_ratio * shorter:
        return "length ratio"
    if settings.drop_copies and bare_source == bare_target and _LETTER.search(bare_source):
        return "copy"
    return None


def digest_of(source: str, target: str) -> int:
    """A number that stands for a pair. Neither side holds a line break, so the joined text stands for it alone."""
    # Python's own hash() differs from run to run, and with it a collision would.
    text = f"{source}\n{target}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _repeated(pair: Pair, report: CleaningReport) -> Reason | None:
    digest = digest_of(pair.source, pair.target)
    if digest in report.seen:
        return "duplicate"
    report.seen.add(digest)
    return None


def _excerpt(text: str) -> str:
    """The beginning of `text`, quoted, with what a terminal would not show spelled out."""
    start = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:EXCERPT])
    return f"“{start}…” ({len(text):,} characters)" if len(text) > EXCERPT else f"“{start}”"
