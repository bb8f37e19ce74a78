"""Which heads to read, chosen on text without links.

A head can be read at a word's own step or one step later: two readings. Candidates are the layers (the mean of their
heads) in either reading; the judge is IBM Model 1 (`saccade.alignment.model1`), which knows words and nothing of any
head, and expects an F1 of whatever links it is shown. The layer that it likes best then takes in or leaves out one
reading at a time, as long as that makes the judge happier. Last, a word that is looked at from nowhere with any weight
may be left without a link: below which weight, the same judge decides.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from saccade.alignment.looks import Head, forced, in_batches, word_weights
from saccade.alignment.model1 import Judge
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import read_json, write_text
from saccade.translator import Translator

Floats = npt.NDArray[np.float32]


class Reading(NamedTuple):
    """A head, from 0, and when it is read: at the step that writes a word, or one later."""

    layer: int
    head: int
    later: bool


MOST_READINGS = 12
LEAST_GAIN = 1e-3  # less is chance
THRESHOLDS = tuple(step / 40 for step in range(40))
_FILE = "alignment.json"


@dataclass(frozen=True)
class Choice:
    """Readings whose mean is the alignment, where it is more than `threshold`."""

    readings: tuple[Reading, ...]
    threshold: float = 0.0
    judge: str = "given"
    score: float = 0.0

    def save(self, folder: Path) -> None:
        """Beside the model, for later alignments."""
        write_text(folder / _FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Choice | None":
        """What `save` left; None: nothing."""
        if not (folder / _FILE).exists():
            return None
        kept = read_json(folder / _FILE, "remove the file, and the heads are chosen anew")
        readings = tuple(Reading(int(layer), int(head), bool(later)) for layer, head, later in kept["readings"])
        return cls(readings, kept.get("threshold", 0.0), kept["judge"], kept["score"])

    def __str__(self) -> str:
        """In words, layers and heads counted from 1."""
        parts = []
        for later in (False, True):
            named = [f"{layer + 1}.{head + 1}" for layer, head, at in self.readings if at == later]
            if named:
                parts.append(f"{', '.join(named)} {'one step later' if later else 'at the own step'}")
        judged = "" if self.judge == "given" else f" ({self.judge} expects F1 {self.score:.1%})"
        above = f", above {self.threshold:g}" if self.threshold else ""
        return f"reads heads (layer.head) {'; '.join(parts)}{above}{judged}"


class Candidates:
    """What every head says of the pairs that a judge knows, as words; links of any combination are quick to have."""

    def __init__(self, translator: Translator, judge: Judge, display: Display) -> None:
        self.judge = judge
        self.readings: list[Reading] = []
        self._looks = np.zeros((0, *judge.chances.shape), np.float16)  # one a reading
        with torch.inference_mode(), display.task("choosing heads", len(judge.sources)) as progress:
            done = 0
            for pairs in in_batches(translator, judge.sources, judge.targets):
                looked = forced(translator.model.eval(), pairs.batch)
                if not self.readings:
                    self.readings = [Reading(*head, later) for later in (False, True) for head in looked.heads]
                    self._looks = np.zeros((len(self.readings), *judge.chances.shape), np.float16)
                both = [word_weights(pairs, looked.weights, later) for later in (False, True)]
                words = torch.cat(both, dim=1).cpu().numpy()
                self._looks[:, pairs.indices, : words.shape[2], : words.shape[3]] = words.swapaxes(0, 1)
                done += len(pairs.indices)
                progress(done)
        lengths = np.array([len(text.split()) for text in judge.targets])
        self.real = np.arange(judge.chances.shape[1]) < lengths[:, None]  # (pairs, T)

    @property
    def layers(self) -> list[tuple[int, ...]]:
        """The readings of each layer, at the own step and later, as places in `readings`."""
        kinds = sorted({(layer, later) for layer, _, later in self.readings})
        return [
            tuple(i for i, (layer, _, later) in enumerate(self.readings) if (layer, later) == kind) for kind in kinds
        ]

    def total(self, places: Sequence[int]) -> Floats:
        """The sum of some readings, (pairs, T, S)."""
        total = np.zeros(self._looks.shape[1:], np.float32)
        for place in places:
            total += self._looks[place]
        return total

    def happiness(self, total: Floats) -> float:
        """What the judge expects when each target word is linked to the source word with most of a sum of readings."""
        chances = np.take_along_axis(self.judge.chances, total.argmax(-1)[..., None], 2)[..., 0]
        return self.judge.of_sums(float(chances[self.real].sum()), int(self.real.sum()))

    def grow(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Change one reading at a time, as long as the judge likes it better."""
        total = self.total(places)
        score = self.happiness(total)
        while True:
            judged = [(self.happiness(total - self._looks[out]), out) for out in places if len(places) > 1]
            if len(places) < MOST_READINGS:
                others = set(range(len(self.readings))) - set(places)
                judged += [(self.happiness(total + self._looks[new]), new) for new in sorted(others)]
            best, changed = max(judged, default=(score, -1))
            if best <= score + LEAST_GAIN:
                return places
            score = best
            places = tuple(p for p in places if p != changed) if changed in places else (*places, changed)
            total = self.total(places)

    def threshold(self, places: Sequence[int]) -> tuple[float, float]:
        """Below which mean weight a word has no link, and the F1 that is then expected."""
        total = self.total(places)
        weights = total.max(-1)[self.real] / len(places)
        chances = np.take_along_axis(self.judge.chances, total.argmax(-1)[..., None], 2)[..., 0][self.real]
        judged = []
        for level in THRESHOLDS:
            above = weights > level
            judged.append((self.judge.of_sums(float(chances[above].sum()), int(above.sum())), -level))
        score, level = max(judged)  # of equals the lowest
        return -level, score


def choose(candidates: Candidates) -> Choice:
    """The readings and the threshold of which most is expected."""
    places = candidates.grow(max(candidates.layers, key=lambda layer: candidates.happiness(candidates.total(layer))))
    threshold, score = candidates.threshold(places)
    return Choice(tuple(candidates.readings[i] for i in sorted(places)), threshold, "Model 1", score)


def parse_heads(named: str, later: bool, translator: Translator) -> Choice:
    """`5.1,5.3` or `5`: heads as people count them, from 1; `5` is a whole layer."""
    have = _all_heads(translator)
    chosen: list[Head] = []
    for item in named.split(","):
        layer, dot, head = item.strip().partition(".")
        if not layer.isdigit() or (dot and not head.isdigit()):
            raise SaccadeError(f"--heads={named}: {item.strip()!r} is no head; write 5.1, or 5 for all of layer 5")
        found = [each for each in have if each[0] + 1 == int(layer) and (not dot or each[1] + 1 == int(head))]
        if not found:
            last = f"{have[-1][0] + 1}.{have[-1][1] + 1}"
            raise SaccadeError(f"--heads={named}: the model has no {item.strip()}; its heads run from 1.1 to {last}")
        chosen += found
    return Choice(tuple(Reading(*head, later) for head in dict.fromkeys(chosen)))


@torch.inference_mode()
def _all_heads(translator: Translator) -> list[Head]:
    return forced(translator.model, next(in_batches(translator, ["a"], ["a"])).batch).heads
