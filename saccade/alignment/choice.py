"""Which heads to read, chosen on text without links.

A head can be read at a word's own step or one step later: two readings. Candidates are the layers (the mean of their
heads) in either reading. The judge needs no gold: it is how likely the links are to IBM Model 1, which knows words and
nothing of any head, the mean over the links of its p (`saccade.alignment.model1`), counted on the same text. The winner
then takes in or leaves out one reading at a time, as long as it makes the judge happier.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from saccade.alignment import model1
from saccade.alignment.looks import Head, forced, in_batches, word_weights
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import read_json, write_text
from saccade.translator import Translator

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


class Reading(NamedTuple):
    """A head, from 0, and when it is read: at the step that writes a word, or one later."""

    layer: int
    head: int
    later: bool


PAIRS = 1000  # of the text that is given, so many are looked at
MOST_READINGS = 12
LEAST_GAIN = 1e-3  # less is chance
_FILE = "alignment.json"


@dataclass(frozen=True)
class Choice:
    """Readings whose mean is the alignment."""

    readings: tuple[Reading, ...]
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
        return cls(readings, kept["judge"], kept["score"])

    def __str__(self) -> str:
        """In words, layers and heads counted from 1."""
        parts = []
        for later in (False, True):
            named = [f"{layer + 1}.{head + 1}" for layer, head, at in self.readings if at == later]
            if named:
                parts.append(f"{', '.join(named)} {'one step later' if later else 'at the own step'}")
        judged = "" if self.judge == "given" else f" ({self.judge} {self.score:.3f})"
        return f"reads heads (layer.head) {'; '.join(parts)}{judged}"


class Candidates:
    """What every head says of some pairs, as words; links of any combination are quick to have."""

    def __init__(
        self, translator: Translator, sources: Sequence[str], targets: Sequence[str], display: Display
    ) -> None:
        """Of many pairs, `PAIRS` from all parts of the text."""
        usable = [i for i in range(len(sources)) if sources[i].strip() and targets[i].strip()]
        if not usable:
            raise SaccadeError("there is no pair with words on both sides, so no heads can be chosen; give some text")
        taken = [usable[i] for i in np.linspace(0, len(usable) - 1, min(len(usable), PAIRS)).astype(int)]
        texts = [[side[i] for i in taken] for side in (sources, targets)]
        S, T = (max(len(text.split()) for text in side) for side in texts)
        self.readings: list[Reading] = []
        self._looks = np.zeros((0, len(taken), T, S), np.float16)  # one a reading
        with torch.inference_mode(), display.task("choosing heads", len(taken)) as progress:
            done = 0
            for pairs in in_batches(translator, texts[0], texts[1]):
                looked = forced(translator.model.eval(), pairs.batch)
                if not self.readings:
                    self.readings = [Reading(*head, later) for later in (False, True) for head in looked.heads]
                    self._looks = np.zeros((len(self.readings), len(taken), T, S), np.float16)
                both = [word_weights(pairs, looked.weights, later) for later in (False, True)]
                words = torch.cat(both, dim=1).cpu().numpy()
                self._looks[:, pairs.indices, : words.shape[2], : words.shape[3]] = words.swapaxes(0, 1)
                done += len(pairs.indices)
                progress(done)
        self._likely = np.zeros((len(taken), T, S), np.float32)
        counted = sorted({*taken, *usable[: model1.PAIRS]})  # all that are looked at, and others to learn words from
        found = model1.likely_links([sources[i] for i in counted], [targets[i] for i in counted])
        for row, i in enumerate(taken):
            links = found[bisect_left(counted, i)]
            self._likely[row, : links.shape[0], : links.shape[1]] = links
        lengths = np.array([len(text.split()) for text in texts[1]])
        self.real = np.arange(T) < lengths[:, None]  # (pairs, T)

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

    def likely(self, total: Floats) -> float:
        """How likely the links of a sum of readings are to Model 1, in the mean."""
        chosen = np.take_along_axis(self._likely, total.argmax(-1)[..., None], 2)[..., 0]
        return float(chosen[self.real].mean())

    def grow(self, places: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
        """Change one reading at a time, as long as it helps; what came of it, and how likely its links are."""
        total = self.total(places)
        score = self.likely(total)
        while True:
            judged = [(self.likely(total - self._looks[out]), out) for out in places if len(places) > 1]
            if len(places) < MOST_READINGS:
                others = set(range(len(self.readings))) - set(places)
                judged += [(self.likely(total + self._looks[new]), new) for new in sorted(others)]
            best, changed = max(judged, default=(score, -1))
            if best <= score + LEAST_GAIN:
                return places, score
            score = best
            places = tuple(p for p in places if p != changed) if changed in places else (*places, changed)
            total = self.total(places)


def choose(candidates: Candidates) -> Choice:
    """By how likely links are to Model 1."""
    start = max(candidates.layers, key=lambda layer: candidates.likely(candidates.total(layer)))
    places, score = candidates.grow(start)
    return Choice(tuple(candidates.readings[i] for i in sorted(places)), "Model 1", score)


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
