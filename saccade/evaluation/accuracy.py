"""Accuracy: how many labels are right, and which are taken for which.

A metric of sacrebleu's make, so that it is signed, and compared between two systems, as BLEU is.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from sacrebleu.metrics.base import Metric, Score, Signature


class _AccuracySignature(Signature):  # type: ignore[misc]  # sacrebleu gives no types
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self._abbr["case"] = "c"
        self.info["case"] = "lc" if args["lowercase"] else "mixed"


class Accuracy(Metric):  # type: ignore[misc]
    """The percentage of lines that equal one of their references, but for spaces around them."""

    _SIGNATURE_TYPE = _AccuracySignature

    def __init__(self, lowercase: bool = False) -> None:
        super().__init__()
        self.lowercase = lowercase

    def _preprocess_segment(self, sent: str) -> str:
        return sent.strip().lower() if self.lowercase else sent.strip()

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"labels": set(refs)}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        return [int(hypothesis in ref_kwargs["labels"]), 1]

    def _compute_score_from_stats(self, stats: Any) -> Score:
        right, lines = stats
        return Score("Accuracy", 100 * float(right) / float(lines))

    def _aggregate_and_compute(self, stats: list[list[int]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])


class Confusion(NamedTuple):
    """How often one label was taken for another."""

    reference: str
    hypothesis: str
    times: int

    def __str__(self) -> str:
        return f"{self.times:,} × {self.reference!r} taken for {self.hypothesis!r}"


def confusions(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> list[Confusion]:
    """What was taken for what, the most frequent first. Where a line has several references, its first is named."""
    told = Accuracy(lowercase)._preprocess_segment
    counts: Counter[tuple[str, str]] = Counter()
    for hypothesis, right in zip(map(told, hypotheses), zip(*references, strict=True), strict=True):
        if hypothesis not in (known := [told(reference) for reference in right]):
            counts[known[0], hypothesis] += 1
    return [Confusion(*pair, count) for pair, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
