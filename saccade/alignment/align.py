"""Links between the words of pairs: read off attention or a trained head, in one direction or two."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from saccade.alignment.choice import Candidates, Choice, choose
from saccade.alignment.head import HeadReader
from saccade.alignment.looks import Head, forced, in_batches, nothing, word_weights
from saccade.alignment.symmetry import METHODS, Links, symmetrise
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.translator import Translator

Floats = npt.NDArray[np.float32]

AT_ONCE = 2**22  # cells of word matrices that are symmetrised together


class Aligned(NamedTuple):
    """The links of one pair, (source word, target word) counted from 0, and how sure each is, from 0 to 1."""

    links: list[tuple[int, int]]
    probabilities: list[float]

    @property
    def pharaoh(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in self.links)


class Reader(Protocol):
    """Says of pairs which source word each target word belongs to."""

    def read(self, sources: Sequence[str], targets: Sequence[str], first: int = 1) -> list[Floats]:
        """Probabilities of each pair, (target words, source words)."""

    def links(self, probabilities: Floats) -> Links:
        """Which of them are links: any leading axes, padding is zero."""


class AttentionReader:
    """The mean of the chosen heads; each target word links to the source word that is looked at most."""

    def __init__(self, translator: Translator, choice: Choice) -> None:
        self.translator = translator
        self.choice = choice

    @torch.inference_mode()
    def read(self, sources: Sequence[str], targets: Sequence[str], first: int = 1) -> list[Floats]:
        model = self.translator.model.eval()
        found = nothing(sources, targets)
        for pairs in in_batches(self.translator, sources, targets, first):
            looked = forced(model, pairs.batch)
            own, later = (self._places(looked.heads, when) for when in (False, True))
            total = sum(
                word_weights(pairs, looked.weights[:, places].sum(1), when)
                for when, places in ((False, own), (True, later))
                if places
            )
            assert isinstance(total, torch.Tensor)
            words = (total / len(self.choice.readings)).cpu().numpy()
            for row, (i, (T, S)) in enumerate(zip(pairs.indices, pairs.sizes, strict=True)):
                found[i] = words[row, :T, :S]
        return found

    def _places(self, heads: list[Head], later: bool) -> list[int]:
        places = [
            heads.index((r.layer, r.head))
            for r in self.choice.readings
            if r.later == later and (r.layer, r.head) in heads
        ]
        if len(places) < sum(r.later == later for r in self.choice.readings):
            raise SaccadeError("the heads that were chosen once are not those of this model; remove its alignment.json")
        return places

    def links(self, probabilities: Floats) -> Links:
        best = probabilities.argmax(-1)[..., None] == np.arange(probabilities.shape[-1])
        return np.asarray(best & (probabilities > 0))


class Aligner:
    """One reader, or two that read in opposite directions and are made one.

    `both_ways`: one reader stands for both directions; each source word then also links to the target word that looks
    at it most.
    """

    def __init__(
        self,
        forward: Reader,
        backward: Reader | None = None,
        method: str = "grow-diag-final-and",
        both_ways: bool = False,
    ) -> None:
        if method not in METHODS:
            raise SaccadeError(f"--symmetrise={method}: is not known; use {', '.join(METHODS)}")
        self.forward, self.backward, self.method = forward, backward, method
        self.both_ways = both_ways and backward is None

    def align(self, sources: Sequence[str], targets: Sequence[str], first: int = 1) -> list[Aligned]:
        """The links of each pair, in their order; `first` is the number by which a refused pair is named."""
        there = self.forward.read(sources, targets, first)
        back = there if self.both_ways else None
        if self.backward is not None:
            back = [matrix.T for matrix in self.backward.read(targets, sources, first)]
        found: list[Aligned] = [Aligned([], [])] * len(there)
        for group in _groups([each.shape for each in there]):
            probabilities, links = self._together([there[i] for i in group], back and [back[i] for i in group])
            rows, t, s = links.nonzero()
            sure = probabilities[rows, t, s]
            ends = np.searchsorted(rows, np.arange(1, len(group) + 1))
            for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                order = np.lexsort((t[start:end], s[start:end])) + start
                pairs = list(zip(s[order].tolist(), t[order].tolist(), strict=True))
                found[group[row]] = Aligned(pairs, sure[order].tolist())
        return found

    def _together(self, there: list[Floats], back: list[Floats] | None) -> tuple[Floats, Links]:
        one = _padded(there)
        links = self.forward.links(one)
        if back is None:
            return one, links
        other = _padded(back)
        returned = (self.backward or self.forward).links(other.swapaxes(1, 2)).swapaxes(1, 2)
        return np.asarray((one + other) / 2, np.float32), symmetrise(links, returned, self.method)

    def stream(
        self, pairs: Iterator[tuple[str, str]], window: int, progress: Callable[[int], None] | None = None
    ) -> Iterator[Aligned]:
        """`align` for as many pairs as there are, `window` of them held at once."""
        done = 0
        while held := list(islice(pairs, window)):
            sources, targets = zip(*held, strict=True)
            yield from self.align(sources, targets, first=done + 1)
            done += len(held)
            if progress is not None:
                progress(done)


class Held(NamedTuple):
    """Text to choose heads on."""

    sources: Sequence[str]
    targets: Sequence[str]


def attention_readers(
    translator: Translator, reverse: Translator | None, text: Held, display: Display
) -> tuple[AttentionReader, AttentionReader | None]:
    """Readers of the heads that are best on `text`, whose links nobody knows."""
    there = AttentionReader(translator, choose(Candidates(translator, text.sources, text.targets, display)))
    if reverse is None:
        return there, None
    return there, AttentionReader(reverse, choose(Candidates(reverse, text.targets, text.sources, display)))


def reader_for(translator: Translator, folder: Path, by: str) -> Reader | None:
    """A reader of what the folder keeps: its trained head, or the heads once chosen; None: it keeps neither."""
    if by not in ("auto", "attention", "head"):
        raise SaccadeError(f"--by={by}: is not known; use attention, head or auto")
    if by != "attention":
        head = HeadReader.load(translator, folder)
        if head is not None:
            return head
        if by == "head":
            raise SaccadeError(f"{folder}: has no alignment head; train one with: saccade train-aligner {folder} …")
    choice = Choice.load(folder)
    return None if choice is None else AttentionReader(translator, choice)


def _padded(matrices: list[Floats]) -> Floats:
    T, S = (max(each.shape[side] for each in matrices) for side in (0, 1))
    padded = np.zeros((len(matrices), T, S), np.float32)
    for row, each in enumerate(matrices):
        padded[row, : each.shape[0], : each.shape[1]] = each
    return padded


def _groups(shapes: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """Like sizes together, at most `AT_ONCE` cells each; what has no words on either side has no links."""
    order = sorted((i for i, (T, S) in enumerate(shapes) if T and S), key=lambda i: max(shapes[i]))
    group: list[int] = []
    for i in order:
        if group and (len(group) + 1) * max(shapes[i]) ** 2 > AT_ONCE:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
