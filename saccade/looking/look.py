"""A look at one sentence: its pieces, what was written for it, and the weights of heads. Arrays and words, no model.

What captures weights fills it (`saccade.analysis`); the terminal, the page, the server and files show it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

ENCODER, DECODER, CROSS = "encoder", "decoder", "cross"
STACKS = (ENCODER, DECODER, CROSS)  # self-attention of either half, and the decoder's of the source


@dataclass(frozen=True)
class Side:
    """A text as the model has it."""

    text: str
    pieces: tuple[str, ...]  # "▁" before the first of a word; the last is the end of the sentence
    words: tuple[int, ...]  # the word that each piece is part of, counted from 0; the end is the last of them
    word_texts: tuple[str, ...]


@dataclass(frozen=True)
class HeadWeights:
    """What one head looked at: a row for each piece that is read or written, a column for each that is looked at.

    Rows of `cross` are the target's pieces as they are written, of `decoder` the same steps; columns of `decoder` are
    the decoder's inputs: the start, then the target's pieces without the end.
    """

    stack: str
    layer: int  # from 1, as people count
    head: int
    weights: Array  # (rows, columns)


@dataclass(frozen=True)
class Step:
    """How sure the model was of one piece, and what else it might have written: pieces and their probabilities, the
    likeliest first, the one that was written among them if it is likely enough."""

    probability: float
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Path:
    """One translation: found by search, or given."""

    target: Side
    score: float  # log-probability, natural logarithm
    steps: tuple[Step, ...]  # one a piece, the end included
    heads: tuple[HeadWeights, ...] = ()  # of `decoder` and `cross`


@dataclass(frozen=True)
class Look:
    """All that is shown of one sentence. `paths`: the n-best list, the best first, or the one that was given."""

    model: str  # its name, for titles
    source: Side
    paths: tuple[Path, ...]
    encoder: tuple[HeadWeights, ...] = ()  # the source's, the same for all paths
    facts: dict[str, Any] = field(default_factory=dict)  # family, languages, what else is worth saying
