"""What each head does, in numbers, summed over batches.

| measure   | what it is                                                                                          |
|-----------|-----------------------------------------------------------------------------------------------------|
| entropy   | of its weights, in nats: 0 looks at one place                                                       |
| distance  | mean |i - j| between where it stands and where it looks                                             |
| offsets   | share of positions whose strongest weight is at i - 1, i, i + 1 (Voita et al. 2019, 5.1)            |
| delimiter | mean weight on the ends of sentences and on punctuation (Clark et al. 2019, 3.2)                    |
| rare      | share whose strongest weight is on the rarest piece of the sentence (Voita et al. 2019, 5.3)        |
| copying   | where the piece that is written (in self-attention: that stands here) is among those it may look at:|
|           | share whose strongest weight is on it                                                               |

Positions i are steps: step i reads piece i - 1 of the target and writes piece i.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saccade.data.batching import Batch
from saccade.data.tokenizers import PAD, UNK, Tokenizer, Tokenizers
from saccade.models.heads import Site

OFFSETS = (-1, 0, 1)


@dataclass(frozen=True)
class Pieces:
    """What is known of the pieces of the two sides."""

    delimiter: tuple[Tensor, Tensor]  # (V,) of the source, of the target: ends and punctuation
    counts: tuple[Tensor, Tensor]  # (V,): how often each came up in the data
    as_source: Tensor  # (V of the target,): the same piece of the source side; -1: there is none

    @classmethod
    def of(cls, tokenizers: Tokenizers, batches: Sequence[Batch], device: torch.device) -> "Pieces":
        counts = []
        for side, tokenizer in enumerate(tokenizers):
            count = torch.zeros(tokenizer.size, dtype=torch.long, device=device)
            for batch in batches:
                count += torch.bincount((batch.target if side else batch.source).flatten(), minlength=tokenizer.size)
            counts.append(count)
        places = {piece: i for i, piece in enumerate(tokenizers.source.piece_bytes) if i > UNK}
        same = [i if i <= UNK else places.get(piece, -1) for i, piece in enumerate(tokenizers.target.piece_bytes)]
        return cls(
            (_delimiters(tokenizers.source, device), _delimiters(tokenizers.target, device)),
            (counts[0], counts[1]),
            torch.tensor(same, device=device),
        )


def _delimiters(tokenizer: Tokenizer, device: torch.device) -> Tensor:
    texts = [piece.decode("utf-8", "replace").strip() for piece in tokenizer.piece_bytes]
    signs = [bool(text) and all(unicodedata.category(c).startswith("P") for c in text) for text in texts]
    return torch.tensor([i <= UNK or sign for i, sign in enumerate(signs)], device=device)


@dataclass
class Sums:
    """Running sums for the heads of one attention, (H,) each, and of how much."""

    rows: Tensor | None = None
    sums: dict[str, Tensor] = field(default_factory=dict)
    chances: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, value: Tensor, where: Tensor) -> None:
        """`value` (B, H, Q) summed where `where` (B, Q) holds."""
        mask = where.unsqueeze(1)
        self.sums[name] = self.sums.get(name, 0) + (value.double() * mask).sum((0, 2))
        self.chances[name] = self.chances.get(name, 0) + where.sum().double()

    def mean(self, name: str) -> list[float]:
        return (self.sums[name] / self.chances[name].clamp(min=1)).tolist()


def add_up(sums: Sums, site: Site, weights: Tensor, batch: Batch, pieces: Pieces) -> None:
    """Take in what one attention did for one batch, weights (B, H, Q, K)."""
    keys_side = 1 if site.stack == "decoder" else 0
    keys = batch.inputs if keys_side else batch.source  # (B, K)
    here = batch.source if site.stack == "encoder" else batch.inputs  # (B, Q)
    written = batch.source if site.stack == "encoder" else batch.gold
    real = written != PAD
    seen = keys != PAD
    B, _, Q, K = weights.shape
    i, j = torch.arange(Q, device=weights.device), torch.arange(K, device=weights.device)
    distance = (i[:, None] - j[None, :]).abs()
    best = weights.argmax(-1)  # (B, H, Q)
    sums.add("entropy", torch.special.entr(weights).sum(-1), real)
    sums.add("distance", (weights * distance).sum(-1), real)
    last = seen.sum(1, keepdim=True)
    for offset in OFFSETS:
        there = (i + offset >= 0) & (i + offset < last)  # (B, Q): the place exists
        if site.stack == "decoder" and offset > 0:
            there = torch.zeros_like(there)
        sums.add(f"offset{offset:+d}", best == i + offset, real & there)
    delimiter = pieces.delimiter[keys_side][keys]  # (B, K)
    sums.add("delimiter", (weights * delimiter[:, None, None]).sum(-1), real)
    visible = seen[:, None, :] & (j <= i[:, None]) if site.stack == "decoder" else seen[:, None, :].expand(B, Q, K)
    counts = pieces.counts[keys_side][keys].masked_fill((keys <= UNK) | ~seen, torch.iinfo(torch.long).max)
    rows = counts.unsqueeze(1).expand(B, Q, K).masked_fill(~visible, torch.iinfo(torch.long).max)
    rarest = (rows == rows.amin(-1, keepdim=True)) & (rows < torch.iinfo(torch.long).max)
    some = real & rarest.any(-1) & (visible.sum(-1) > 1)
    sums.add("rare", _at(rarest, best), some)
    chance = (rarest.sum(-1) / visible.sum(-1).clamp(min=1)).unsqueeze(1)
    sums.add("rare by chance", chance.expand_as(best), some)
    _copying(sums, site, (here, written), keys, visible, best, pieces, real)


def _copying(
    sums: Sums,
    site: Site,
    words: tuple[Tensor, Tensor],
    keys: Tensor,
    visible: Tensor,
    best: Tensor,
    pieces: Pieces,
    real: Tensor,
) -> None:
    here, written = words
    Q, K = visible.shape[1:]
    if site.stack == "cross":
        wanted = {"copying": pieces.as_source[written], "copying, read": pieces.as_source[here]}
    else:
        wanted = {"copying": here}
    for name, tokens in wanted.items():
        same = (tokens.unsqueeze(2) == keys.unsqueeze(1)) & visible & (tokens > UNK).unsqueeze(2)
        if site.stack != "cross":  # looking at oneself is no copying
            same &= ~torch.eye(Q, K, dtype=torch.bool, device=same.device)
        sums.add(name, _at(same, best), real & same.any(-1))


def _at(marked_BQK: Tensor, best_BHQ: Tensor) -> Tensor:
    """Whether the strongest weight of each head is on a marked place."""
    return marked_BQK.unsqueeze(1).expand(-1, best_BHQ.size(1), -1, -1).gather(3, best_BHQ.unsqueeze(3)).squeeze(3)
