"""Any weights and their tokens as a page: in a notebook, as a file, as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from saccade.errors import SaccadeError
from saccade.files import write_text, writing
from saccade.looking.look import CROSS, Array, HeadWeights, Look, Side
from saccade.looking.look import Path as Translation
from saccade.looking.page import check_look, look_page

_AXES = {2: "(rows, columns)", 3: "(heads, rows, columns)", 4: "(layers, heads, rows, columns)"}


@dataclass(frozen=True)
class Shown:
    """A look that a notebook draws by itself, in a frame of `height` pixels."""

    look: Look
    height: int = 760

    @cached_property
    def html(self) -> str:
        """The page, as the text of one HTML file."""
        return look_page(self.look)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, and return its path."""
        path = Path(path)
        with writing(path):
            write_text(path, self.html)
        return path

    def _repr_html_(self) -> str:
        # A frame keeps the page's style and script from those of the notebook, either way.
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts allow-downloads" title="attention" '
            f'width="100%" height="{self.height}" style="border:0"></iframe>'
        )


def show(weights: npt.ArrayLike, rows: Sequence[str], columns: Sequence[str], *, title: str = "") -> Shown:
    """Weights of any model: `weights[..., i, j]` is how much `rows[i]` looks at `columns[j]`, between 0 and 1.

    One matrix, or one a head (heads, rows, columns), or one a layer and head (layers, heads, rows, columns). A token
    that begins with "▁" begins a word; with none such, each is a word of its own.
    """
    array = np.asarray(weights, dtype=np.float32)
    if array.ndim not in _AXES:
        raise SaccadeError(f"weights have shape {array.shape}; expected {', '.join(_AXES.values())}")
    if not len(rows) or not len(columns) or not array.size:
        raise SaccadeError(f"nothing to show: weights {array.shape}, {len(rows)} rows, {len(columns)} columns")
    if array.shape[-2:] != (len(rows), len(columns)):
        raise SaccadeError(
            f"weights are {array.shape[-2]} × {array.shape[-1]} in the last two axes of {array.shape}, but there "
            f"are {len(rows)} rows and {len(columns)} columns"
        )
    layers: Array = array.reshape(*(1,) * (4 - array.ndim), *array.shape)
    heads = tuple(
        HeadWeights(CROSS, layer, head, matrix)
        for layer, of_layer in enumerate(layers, start=1)
        for head, matrix in enumerate(of_layer, start=1)
    )
    look = Look(title, _side(columns), (Translation(_side(rows), float("nan"), (), heads),))
    check_look(look)
    return Shown(look)


def _side(tokens: Sequence[str]) -> Side:
    tokens = tuple(map(str, tokens))
    marked = any(token.startswith("▁") for token in tokens)
    words: list[int] = []
    for i, token in enumerate(tokens):
        special = token.startswith("<") and token.endswith(">")
        begins = not marked or i == 0 or special or token.startswith("▁")
        words.append((words[-1] if words else -1) + begins)
    texts = ["".join(t for t, w in zip(tokens, words, strict=True) if w == word) for word in range(words[-1] + 1)]
    texts = [text.removeprefix("▁") for text in texts]
    return Side(" ".join(texts), tokens, tuple(words), tuple(texts))
