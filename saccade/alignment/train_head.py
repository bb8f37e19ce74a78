"""Train the alignment head of a folder from links: those of `saccade align`, or anyone's."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from saccade.alignment.head import AlignmentHead, HeadReader, loss_of, piece_links, states_of
from saccade.alignment.looks import Corpus, Pairs
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.evaluation.alignment import Links
from saccade.translator import Translator

WINDOW = 20_000  # pairs among which like lengths are put together
TOKENS = 8192  # of a batch, padding counted; of a small text, so many that an epoch has some steps
FEWEST_TOKENS, STEPS = 256, 50
THRESHOLDS = tuple(step / 20 for step in range(2, 17))


class Text(NamedTuple):
    """Pairs with their links, (source word, target word)."""

    sources: Sequence[str]
    targets: Sequence[str]
    links: Sequence[Links]

    def some(self, indices: Sequence[int]) -> "Text":
        return Text(*([side[i] for i in indices] for side in self))  # type: ignore[arg-type]


class Trained(NamedTuple):
    """A head, and how well it finds links that it was not trained on, against those given."""

    reader: HeadReader
    agreement: float  # F1
    steps: int


def train_head(
    translator: Translator,
    text: Text,
    *,
    epochs: int = 2,
    rate: float = 1e-3,
    seed: int = 1,
    held_out: int = 1000,
    display: Display | None = None,
) -> Trained:
    """Learn from all pairs but `held_out` (at most a tenth of them), on which the threshold is chosen."""
    _check(text)
    order = np.random.default_rng(seed).permutation(len(text.sources)).tolist()
    few = min(held_out, max(1, len(order) // 10))
    judged, learned = text.some(order[:few]), text.some(order[few:])
    corpus = Corpus(translator, learned.sources, learned.targets)
    if not corpus.usable:
        raise SaccadeError("there is no pair with words on both sides to learn from; give some text")
    model = translator.model.eval()
    plan = [batch for epoch in range(epochs) for batch in _shuffled(corpus, seed + epoch)]
    states = states_of(model, corpus.batch(plan[0]).batch)
    torch.manual_seed(seed)
    head = AlignmentHead(states.queries.size(-1), states.keys.size(-1)).to(translator.device)
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=0.01)
    with (display or Display(quiet=True)).task("training the alignment head", len(plan)) as progress:
        for step, chosen in enumerate(plan):
            for group in optimizer.param_groups:  # a short warm-up, then down to nothing
                group["lr"] = rate * min(1.0, (step + 1) / (1 + len(plan) / 20)) * (1 - step / len(plan))
            pairs = corpus.batch(chosen)
            loss = loss_of(head, states_of(model, pairs.batch), _wanted(learned.links, pairs))
            if step % 100 == 0 and not math.isfinite(loss.item()):
                raise SaccadeError(f"the loss of the alignment head is {loss.item()}; lower --rate={rate}")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            progress(step + 1)
    reader = HeadReader(translator, head, 0.5)
    threshold, agreement = _threshold(reader, judged)
    return Trained(HeadReader(translator, head, threshold), agreement, len(plan))


def _check(text: Text) -> None:
    if len({len(side) for side in text}) > 1:
        raise SaccadeError(
            f"{len(text.sources):,} sources, {len(text.targets):,} targets, {len(text.links):,} lines of links; "
            "give as many of each"
        )
    if len(text.sources) < 2:
        raise SaccadeError(f"{len(text.sources)} pairs: an alignment head needs two or more; give more text")
    for number, (source, target, links) in enumerate(zip(*text, strict=True), start=1):
        words = len(source.split()), len(target.split())
        beyond = [link for link in links if link[0] >= words[0] or link[1] >= words[1]]
        if beyond:
            raise SaccadeError(
                f"line {number:,}: link {beyond[0][0]}-{beyond[0][1]}, but the pair has {words[0]} and {words[1]} "
                "words; are the links those of this text, in this direction (--flipped)?"
            )


def _shuffled(corpus: Corpus, seed: int) -> Iterator[list[int]]:
    """Batches of an epoch: like lengths of each window together, in any order."""
    random = np.random.default_rng(seed)
    order = random.permutation(corpus.usable).tolist()
    tokens = min(TOKENS, max(FEWEST_TOKENS, sum(map(corpus.length, order)) // STEPS))
    for start in range(0, len(order), WINDOW):
        window = corpus.longest_first(order[start : start + WINDOW])
        batches, first = [], 0
        while first < len(window):
            size = max(1, tokens // corpus.length(window[first]))
            batches.append(window[first : first + size])
            first += size
        random.shuffle(batches)
        yield from batches


def _wanted(links: Sequence[Links], pairs: Pairs) -> Tensor:
    """Links between pieces, (B, T, S)."""
    words = np.zeros((len(pairs.indices), pairs.target.size(2), pairs.source.size(2)), np.float32)
    cells = [(row, t, s) for row, i in enumerate(pairs.indices) for s, t in links[i]]
    if cells:
        words[tuple(zip(*cells, strict=True))] = 1.0
    return piece_links(torch.from_numpy(words).to(pairs.target.device), pairs)


def _threshold(reader: HeadReader, judged: Text) -> tuple[float, float]:
    """The one with which the links of `judged` are found best, and F1 = 2|A ∩ B| / (|A| + |B|) with it."""
    found = np.zeros(len(THRESHOLDS))
    right = np.zeros(len(THRESHOLDS))
    for probabilities, links in zip(reader.read(judged.sources, judged.targets), judged.links, strict=True):
        levels = np.array(THRESHOLDS)[:, None, None]
        chosen = probabilities > levels
        found += chosen.sum((1, 2))
        for s, t in links:
            right += chosen[:, t, s]
    wanted = sum(map(len, judged.links))
    scores = 2 * right / np.maximum(found + wanted, 1)
    best = int(scores.argmax())
    return THRESHOLDS[best], float(scores[best])
