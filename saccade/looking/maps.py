"""Heat maps out of a look: what one head looked at, or the alignment that heads give together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saccade.looking.look import CROSS, DECODER, ENCODER, HeadWeights, Look, Path, Side
from saccade.looking.terminal import merge_to_words

START = "<bos>"  # what the decoder is given first
NAMES = {ENCODER: "encoder self-attention", DECODER: "decoder self-attention", CROSS: "cross-attention"}


class Map(NamedTuple):
    """Weights (rows, columns) with their names."""

    title: str
    weights: npt.NDArray[np.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def heads_of(look: Look, path: int = 0) -> tuple[HeadWeights, ...]:
    """All heads that belong to a path: the encoder's and its own."""
    return look.encoder + look.paths[path].heads


def head_map(look: Look, head: HeadWeights, path: int = 0) -> Map:
    """What one head looked at, piece by piece."""
    source, target = look.source.pieces, look.paths[path].target.pieces
    rows, columns = {
        ENCODER: (source, source),
        DECODER: (target, (START, *target[:-1])),
        CROSS: (target, source),
    }[head.stack]
    return Map(title_of(head), head.weights.astype(np.float64), rows, columns)


def title_of(head: HeadWeights) -> str:
    """A head's name in words."""
    return f"{NAMES[head.stack]}, layer {head.layer}, head {head.head}"


def alignment_map(look: Look, path: int = 0, words: bool = True) -> Map | None:
    """One alignment from the heads of cross-attention that were captured, without the ends; None: there are none.

    The mean over the heads of the upper half of the layers, as `saccade.translation.alignment_of` takes it.
    """
    weights = mean_of(look.paths[path])
    source, target = look.source, look.paths[path].target
    if weights is None or len(target.pieces) < 2 or len(source.pieces) < 2:
        return None
    weights = weights[:-1, :-1]
    if not words:
        return Map("alignment", weights, target.pieces[:-1], source.pieces[:-1])
    merged = merge_to_words(weights, target.words[:-1], source.words[:-1])
    return Map("alignment", merged, _words(target), _words(source))


def mean_of(path: Path) -> npt.NDArray[np.float64] | None:
    """(target pieces, source pieces): of each layer the mean of its heads, of the upper half of the layers the mean."""
    by_layer: dict[int, list[npt.NDArray[np.float32]]] = {}
    for head in path.heads:
        if head.stack == CROSS:
            by_layer.setdefault(head.layer, []).append(head.weights)
    layers = [np.mean(by_layer[layer], axis=0, dtype=np.float64) for layer in sorted(by_layer)]
    return np.mean(layers[len(layers) // 2 :], axis=0) if layers else None


def _words(side: Side) -> tuple[str, ...]:
    """The words without the end."""
    return side.word_texts[: _last(side.words[:-1]) + 1]


def _last(numbers: Sequence[int]) -> int:
    return max(numbers, default=-1)
