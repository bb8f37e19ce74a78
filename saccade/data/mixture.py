"""Several corpora as one: how much of each, and what stands before its sources.

With weights, corpus i has the share wᵢ / Σ w. Without, it has

    pᵢ ∝ nᵢ^(1/T)        (Arivazhagan et al. 2019, 4.2)

for nᵢ pairs and the temperature T: 1 takes all pairs equally often, more brings small corpora up, ∞ makes all equal.

Shares become whole numbers once (`apportioned`), and every epoch, or every window of a stream, has exactly those: no
draw decides which corpus comes next, so nothing has to be remembered of it. Which of a corpus's pairs they are is a
walk through a shuffled corpus: an epoch takes up where the last one stopped, and at the end the corpus is shuffled
anew, so that no pair comes a second time before all have come once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saccade.config import CorpusConfig, DataConfig
from saccade.data.corpora import Corpus, open_corpora
from saccade.errors import SaccadeError

Numbers = npt.NDArray[np.uint32] | npt.NDArray[np.int64]  # of pairs


class Part(NamedTuple):
    """A corpus of a mixture in a store: how many pairs it has there, and how many of them an epoch takes."""

    pairs: int
    taken: int


@dataclass(frozen=True)
class Member:
    """A corpus of a mixture; a corpus alone is a mixture of one."""

    name: str
    corpora: list[Corpus]
    weight: float | None = None
    tag: str = ""

    @property
    def prefix(self) -> str:
        """What stands before each source."""
        return f"{self.tag} " if self.tag else ""


def open_members(data: DataConfig) -> list[Member]:
    """The corpora of `data.mixture`, each checked to be there."""
    return [Member(name_of(item), open_files(data, item.train, item), item.weight, item.tag) for item in data.mixture]


def open_validation(data: DataConfig) -> list[Member]:
    """The validation corpora of those of `data.mixture` that have some."""
    return [
        Member(name_of(item), open_files(data, item.valid, item), tag=item.tag) for item in data.mixture if item.valid
    ]


def open_files(data: DataConfig, files: Sequence[str], item: CorpusConfig | None = None) -> list[Corpus]:
    """The corpora of some files, read as `data` says, or as its item does where that says otherwise."""
    return open_corpora(
        files,
        source=(item and item.source) or data.source,
        target=(item and item.target) or data.target,
        source_field=data.source_field,
        target_field=data.target_field,
        monolingual=bool(data.monolingual),
    )


def name_of(item: CorpusConfig) -> str:
    """A corpus as a person would say it."""
    return f"{item.tag} {' '.join(item.train)}".strip()


def check_mixture(data: DataConfig) -> None:
    """Refuse a mixture that does not say what it is."""
    if not data.mixture:
        if data.temperature != 1:
            raise SaccadeError(
                f"data.temperature={data.temperature:g} is for data.mixture, which lists no corpora; leave it out"
            )
        return
    if data.train:
        raise SaccadeError(
            f"data.train={data.train} and data.mixture are both given; make the files a corpus of the mixture"
        )
    weighted = [item.weight is not None for item in data.mixture]
    if any(weighted) and not all(weighted):
        raise SaccadeError(
            f"data.mixture.{weighted.index(False)}: has no weight, and others have; give one to all, or to none"
        )
    if all(weighted) and data.temperature != 1:
        raise SaccadeError(
            f"data.temperature={data.temperature:g} makes weights of sizes, and data.mixture has weights; leave one out"
        )
    for number, item in enumerate(data.mixture):
        if item.tag and item.tag.split() != [item.tag]:
            raise SaccadeError(f"data.mixture.{number}.tag={item.tag!r} is not one word; write it without spaces")
        if item.tag and data.monolingual:
            raise SaccadeError(
                f"data.mixture.{number}.tag={item.tag!r} stands before a source, and data.monolingual=true has none; "
                "leave it out"
            )
    if data.replay or data.replay_share:
        raise SaccadeError(
            "data.replay and data.replay_share mix one old corpus in; with data.mixture, make it a corpus of the "
            "mixture with a weight of its own"
        )


def shares(sizes: Sequence[int], weights: Sequence[float | None], temperature: float) -> list[float]:
    """The share of each corpus, by weights or by sizes."""
    if any(weight is None for weight in weights):
        # By the largest, so that no power is too large for a float.
        given = (np.array(sizes, np.float64) / max(sizes)) ** (1 / temperature)
    else:
        given = np.array(weights, np.float64)
    return [float(share) for share in given / given.sum()]


def apportioned(share: Sequence[float], total: int) -> list[int]:
    """`total` in whole numbers by shares (largest remainders), but at least one each."""
    if total < len(share):
        raise SaccadeError(f"{total} pairs cannot hold some of {len(share)} corpora; raise data.stream_window")
    wanted = np.array(share) * total
    whole = np.maximum(np.floor(wanted).astype(int), 1)
    while whole.sum() < total:
        whole[np.argmax(wanted - whole)] += 1
    while whole.sum() > total:
        whole[np.argmax(np.where(whole > 1, whole - wanted, -np.inf))] -= 1
    return [int(count) for count in whole]


def numbers(pairs: int) -> Numbers:
    """0, 1, …, a number for each of so many pairs, in four bytes where that will do."""
    return np.arange(pairs, dtype=np.uint32 if pairs <= 1 << 32 else np.int64)


def drawn(parts: Sequence[Part], seed: int, epoch: int) -> Numbers:
    """The pairs of an epoch, as numbers in a store that holds the parts one after the other."""
    found = []
    everyone = numbers(sum(part.pairs for part in parts))
    offset = 0
    for number, (pairs, taken) in enumerate(parts):
        start, end = epoch * taken, (epoch + 1) * taken
        while start < end:
            walk, place = divmod(start, pairs)
            until = min(pairs, place + end - start)
            order = np.random.default_rng([seed % 2**64, number, walk]).permutation(everyone[offset : offset + pairs])
            found.append(order[place:until].copy())
            start += until - place
        offset += pairs
    return np.concatenate(found)


def told(names: Sequence[str], sizes: Sequence[int], taken: Sequence[int], about: bool = False) -> list[dict[str, Any]]:
    """The proportions, for the folder's records."""
    total = sum(taken)
    return [
        {"corpus": name, "pairs": size, "taken": count, "share": count / total, "about": about}
        for name, size, count in zip(names, sizes, taken, strict=True)
    ]


def lines_of(report: Sequence[dict[str, Any]]) -> list[str]:
    """The same, for a reader."""
    return [
        f"mixture: {row['share']:.2%} {row['corpus']} ({'about ' if row['about'] else ''}{row['pairs']:,} pairs)"
        for row in report
    ]
