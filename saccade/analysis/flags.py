"""Signs of trouble in a translation: it says things twice, leaves things out, or was not looking.

Coverage of a source word is the attention it got from all steps together. A word with less than 0.2 was ignored
(Berard et al. 2019; Guerreiro et al. 2023, 3.2, *Attn-ign-SRC*). A translation whose steps look at the end of the
source rather than at its words is detached from it (Lee et al. 2018, 5).
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from saccade.alignment.looks import forced, in_batches, read_at
from saccade.translator import Translator

IGNORED = 0.2  # coverage, below which a word was ignored
UNDER = 0.5  # share of ignored words, above which much was left out
DETACHED = 0.6  # share of the attention that went to the end of the source
GRAMS = (1, 2, 3, 4)
TIMES = {4: 2, 3: 2, 2: 3, 1: 4}  # how often words must follow themselves


class Looks(NamedTuple):
    """How one translation looked at its source."""

    ignored: float  # share of source words with little coverage
    at_end: float  # share of the attention that went to the end of the source
    left_out: list[int]  # the ignored words

    @property
    def under(self) -> bool:
        return self.ignored > UNDER

    @property
    def detached(self) -> bool:
        return self.at_end > DETACHED

    @property
    def flags(self) -> list[str]:
        found = [f"ignores {self.ignored:.0%} of the source"] if self.under else []
        return [*found, f"{self.at_end:.0%} of its attention is on the end of the source"] if self.detached else found


@torch.inference_mode()
def looks_of(translator: Translator, sources: Sequence[str], translations: Sequence[str]) -> list[Looks | None]:
    """One a pair, by the mean of all heads of the upper half of the layers; None: one side has no words."""
    found: list[Looks | None] = [None] * len(sources)
    for pairs in in_batches(translator, sources, translations):
        looked = forced(translator.model.eval(), pairs.batch)
        upper = max(layer for layer, _ in looked.heads) + 1
        places = [i for i, (layer, _) in enumerate(looked.heads) if layer >= upper // 2]
        weights = read_at(looked.weights[:, places].mean(1), False)  # (B, T, S)
        real = pairs.target.sum(2, keepdim=True)  # (B, T, 1): 1 for a piece of a word
        coverage = ((weights * real).sum(1, keepdim=True) @ pairs.source).squeeze(1)  # (B, words)
        ends = (pairs.batch.source_mask.sum(1) - 1).view(-1, 1, 1)
        to_end = (weights * real).gather(2, ends.expand(-1, weights.size(1), 1)).sum((1, 2)) / real.sum((1, 2))
        for row, (i, (_, words)) in enumerate(zip(pairs.indices, pairs.sizes, strict=True)):
            ignored = (coverage[row, :words] < IGNORED).nonzero().flatten().tolist()
            found[i] = Looks(len(ignored) / words, float(to_end[row]), ignored)
    return found


def repeated(text: str, source: str) -> str | None:
    """Words that follow themselves more often than in the source; None: there are none."""
    words, known = text.split(), Counter(source.split())
    for n in GRAMS:
        for start in range(len(words) - n * TIMES[n] + 1):
            gram = words[start : start + n]
            times = 1
            while words[start + times * n : start + (times + 1) * n] == gram:
                times += 1
            if times >= TIMES[n] and times > max(known[word] for word in gram):
                return " ".join(gram)
    return None
