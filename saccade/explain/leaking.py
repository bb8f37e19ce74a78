"""What a missing causal mask does: a loss too good to be true, and a model that cannot write."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.attention.masks import causal
from saccade.attention.multihead import initialise
from saccade.attention.positions import Absent
from saccade.attention.relative import Relative, Rotary, Unaware
from saccade.data.tokenizers import BOS, EOS, SPECIALS
from saccade.explain.fitting import fit
from saccade.explain.records import Trial
from saccade.models.transformer import Embedding, EncoderLayer, Shape

LETTERS, BACK, LENGTH, ROWS, PEAK, UNSEEN = 16, 4, 16, 32, 1e-2, 64
VOCABULARY = LETTERS + len(SPECIALS)
# The first letters are random, and all after them follow by the code: nats a token of LENGTH letters and the end.
FLOOR = BACK * math.log(LETTERS) / (LENGTH + 1)
SHAPE = Shape(width=32, feed_forward=64, heads=4, key_heads=4, dropout=0.0)


class Writer(nn.Module):
    """A decoder without a source: two layers that read what was written and say what comes next."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        table = nn.Embedding(VOCABULARY, SHAPE.width)
        nn.init.normal_(table.weight, std=SHAPE.width**-0.5)
        self.embedding = Embedding(table, Absent(SHAPE.width), 0.0)
        self.layers = stack(SHAPE, 2, Rotary)
        self.norm = nn.LayerNorm(SHAPE.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, V)."""
        mask = causal(tokens.size(1), tokens.size(1)) if self.masked else None
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x) @ self.embedding.table.weight.mT


class Leak(NamedTuple):
    """How the training went, and what the model then writes."""

    losses: list[float]  # nats a token
    teacher_forced: float  # share of the letters after the first ones that are right when the whole text is given
    written: float  # … when the model must write them itself
    example: str
    should_be: str

    @property
    def loss(self) -> float:
        """Over the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)


def stack(shape: Shape, layers: int, relative: Callable[..., Relative] = Unaware) -> nn.ModuleList:
    """Layers of self-attention and feed-forward, with ordinary weights."""
    head_width = shape.width // shape.heads
    made = nn.ModuleList(EncoderLayer(shape, relative(shape.heads, head_width, False)) for _ in range(layers))
    initialise(made)
    return made


def train_writer(masked: bool, trial: Trial) -> Leak:
    """Learn to write by a secret code, with or without the causal mask: the same texts in the same order."""
    torch.manual_seed(trial.seed)
    model, generator = Writer(masked), trial.generator()
    code = torch.randperm(LETTERS, generator=generator)

    def loss() -> Tensor:
        inputs, gold = _texts(ROWS, code, generator)
        return F.cross_entropy(model(inputs).flatten(0, 1), gold.flatten())

    with trial.display.task(f"training {'with' if masked else 'without'} the mask", trial.steps) as progress:
        losses = fit(model, loss, steps=trial.steps, peak=PEAK, after=progress)
    inputs, gold = _texts(UNSEEN, code, generator)
    with torch.no_grad():
        forced = (model(inputs).argmax(-1) == gold)[:, BACK:LENGTH].double().mean().item()
        written = inputs[:, : BACK + 1]
        while written.size(1) < LENGTH + 1:
            following = model(written)[:, -1].argmax(-1, keepdim=True)
            written = torch.cat([written, following], dim=1)
    right = (written == inputs)[:, BACK + 1 :].double().mean().item()
    return Leak(losses, forced, right, _spelled(written[0, 1:]), _spelled(inputs[0, 1:]))


def _texts(rows: int, code: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What is read and what should follow it. Each letter is the code of the one that stands BACK before it."""
    parts = [torch.randint(LETTERS, (rows, BACK), generator=generator)]
    while len(parts) * BACK < LENGTH:
        parts.append(code[parts[-1]])
    letters = torch.cat(parts, dim=1)[:, :LENGTH] + len(SPECIALS)
    return F.pad(letters, (1, 0), value=BOS), F.pad(letters, (0, 1), value=EOS)


def _spelled(tokens: Tensor) -> str:
    letters = ["·" if token < len(SPECIALS) else chr(ord("a") + token - len(SPECIALS)) for token in tokens.tolist()]
    return "".join(letters)
