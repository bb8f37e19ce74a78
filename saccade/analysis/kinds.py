"""Heads sorted by what they do: positional, delimiter, rare-word, syntactic, copying.

After Voita et al. 2019, 5, and Clark et al. 2019, 3.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from saccade.analysis.capture import all_weights
from saccade.analysis.measures import Pieces, Sums, add_up
from saccade.analysis.syntax import Relation
from saccade.data.batching import Batch, collate
from saccade.engines.pytorch import by_tokens, longest_first
from saccade.errors import SaccadeError
from saccade.models.heads import HeadName, Site, sites
from saccade.translator import Translator

TOKENS = 2048  # of a batch, padding counted

# From where on a head is called what it is called.
POSITIONAL = 0.9  # share of positions; Voita et al.'s
DELIMITER = 0.5  # weight
RARE = 0.5  # share, and twice what chance would give
COPYING = 0.5  # share
LEAST = 20  # chances to copy, below which nothing is said


@dataclass(frozen=True)
class HeadReport:
    """What is known of one head."""

    name: HeadName
    entropy: float  # nats
    distance: float  # pieces
    offsets: dict[str, float]  # share at previous, diagonal, next
    delimiter: float
    rare: float
    rare_by_chance: float
    copying: float | None  # None: there was too little to copy
    relation: Relation | None = None  # the dependency it follows best
    kinds: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        facts["name"] = str(self.name)
        facts["relation"] = None if self.relation is None else self.relation._asdict()
        return facts


def pair_batches(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[Batch]:
    """All pairs, like lengths together."""
    if len(sources) != len(targets):
        raise SaccadeError(f"{len(sources):,} sources but {len(targets):,} targets; give as many of each")
    tokenizers = translator.tokenizers
    pairs = list(
        zip(tokenizers.source.encode_batch(list(sources)), tokenizers.target.encode_batch(list(targets)), strict=True)
    )
    translator.check_pairs(pairs)
    lengths = [[0] * (max(map(len, pair)) + 1) for pair in pairs]
    return [
        collate([pairs[i] for i in chosen], chosen).to(translator.device)
        for chosen in by_tokens(longest_first(lengths), lengths, TOKENS)
    ]


def describe(
    translator: Translator,
    batches: Sequence[Batch],
    relations: dict[HeadName, Relation] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[HeadReport]:
    """Every head, measured on pairs that are forced, and sorted."""
    model = translator.model.eval()
    if translator.one_sequence or not sites(model):
        family = translator.config.model
        raise SaccadeError(
            f"model.family={family.family}, model.wiring={getattr(family, 'wiring', '-')}: heads are sorted in a "
            "Transformer of two stacks; train one with model.wiring=encoder-decoder"
        )
    pieces = Pieces.of(translator.tokenizers, batches, translator.device)
    sums: dict[Site, Sums] = {site: Sums() for site in sites(model)}
    for number, batch in enumerate(batches, start=1):
        with torch.inference_mode():
            for site, weights in all_weights(model, batch).items():
                add_up(sums[site], site, weights.float(), batch, pieces)
        if progress is not None:
            progress(number)
    reports = []
    for site, summed in sums.items():
        for head in range(len(summed.mean("entropy"))):
            reports.append(_report(HeadName(*site, head), summed, (relations or {}).get(HeadName(*site, head))))
    return reports


def _report(name: HeadName, sums: Sums, relation: Relation | None) -> HeadReport:
    mean = {measure: sums.mean(measure)[name.head] for measure in sums.sums}
    offsets = {"previous": mean["offset-1"], "diagonal": mean["offset+0"], "next": mean["offset+1"]}
    copied = [
        mean[each] for each in ("copying", "copying, read") if each in mean and float(sums.chances[each]) >= LEAST
    ]
    report = HeadReport(
        name,
        mean["entropy"],
        mean["distance"],
        offsets,
        mean["delimiter"],
        mean["rare"],
        mean["rare by chance"],
        max(copied, default=None),
        relation,
    )
    return HeadReport(**{**report.__dict__, "kinds": kinds_of(report)})


def kinds_of(report: HeadReport) -> tuple[str, ...]:
    """All that a head is, the most telling first; none: mixed."""
    place = max(report.offsets, key=lambda each: report.offsets[each])
    found = []
    if report.offsets[place] >= POSITIONAL:
        found.append(f"positional ({place})")
    if report.relation is not None and report.relation.tells:
        found.append(f"syntactic ({report.relation.name})")
    if report.rare >= max(RARE, 2 * report.rare_by_chance):
        found.append("rare-word")
    if report.copying is not None and report.copying >= COPYING:
        found.append("copying")
    if report.delimiter >= DELIMITER:
        found.append("delimiter")
    return tuple(found) or ("mixed",)


def counts(reports: Sequence[HeadReport]) -> dict[str, int]:
    """How many heads are first of all what."""
    first = [report.kinds[0].partition(" ")[0] for report in reports]
    names, numbers = np.unique(first, return_counts=True)
    return {str(name): int(number) for name, number in zip(names, numbers, strict=True)}
