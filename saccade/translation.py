"""What a translator answers: a text, its score, and where the model looked when it wrote it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from saccade.errors import SaccadeError
from saccade.looking.terminal import draw_alignment, merge_to_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from saccade.translator import Translator

Array = npt.NDArray[np.float64]
NOTHING = "there is no alignment to draw: the model has no attention, or the sentence is empty"


@dataclass(frozen=True, eq=False)
class Translation:
    """One sentence translated, and what can be asked of it."""

    source: str
    text: str
    score: float  # log-probability of the whole translation, natural logarithm
    tokens: list[str]  # pieces, "▁" before the first of a word
    n_best: list["Translation"] = field(default_factory=list, repr=False)  # all, where more than one was asked for
    _ids: list[int] = field(default_factory=list, repr=False)
    _translator: "Translator | None" = field(default=None, repr=False, compare=False)
    parts: list["Translation"] = field(default_factory=list, repr=False)  # what the model read and wrote, if not this
    notes: list[str] = field(default_factory=list, repr=False)  # what happened on the way, in words

    @cached_property
    def attentions(self) -> list[Array]:
        """Cross-attention of the whole translation, one array (heads, target pieces, source pieces) a layer.

        The last target row is the end of the sentence, and so is the last source column. Empty if the model has no
        attention. Read off by teacher forcing on the final answer, so it is exact for any search.
        """
        if self._translator is None or not self.source.strip():
            return []
        return self._translator.attentions(self.source, self._ids)

    @property
    def source_words(self) -> list[str]:
        if self._translator is None:
            return []
        tokenizer = self._translator.tokenizers.source
        return tokenizer.word_texts(tokenizer.encode(self.source))

    @property
    def target_words(self) -> list[str]:
        if self._translator is None:
            return []
        return self._translator.tokenizers.target.word_texts(self._ids)

    @cached_property
    def word_attention(self) -> Array | None:
        """Attention between words, (target words, source words): layers and heads averaged as `alignment_of` does."""
        if self._translator is None or not self.attentions or not self._ids:
            return None
        source = self._translator.tokenizers.source
        ids = source.encode(self.source)
        target_words = self._translator.tokenizers.target.words(self._ids)
        weights = alignment_of(self.attentions)[: len(self._ids), : len(ids)]
        return merge_to_words(weights, target_words, source.words(ids))

    @cached_property
    def piece_attention(self) -> Array | None:
        """Attention between pieces, (target pieces, source pieces), without the ends, averaged by `alignment_of`."""
        if self._translator is None or not self.attentions or not self._ids:
            return None
        pieces = len(self._translator.tokenizers.source.encode(self.source))
        return alignment_of(self.attentions)[: len(self._ids), :pieces]

    @property
    def offsets(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Where the pieces of the translation, and those of its source, stand in their texts."""
        if self._translator is None:
            return [], []
        source, target = self._translator.tokenizers
        return target.offsets(self._ids), source.offsets(source.encode(self.source))

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(source word, target word) for each target word: the source word it looked at most."""
        if self.word_attention is None:
            return []
        return [(int(row.argmax()), target) for target, row in enumerate(self.word_attention) if row.any()]

    @property
    def ids(self) -> list[int]:
        """The pieces of the translation by number, without its end."""
        return list(self._ids)

    def plot(self) -> "Figure":
        """The alignment as a figure of matplotlib, which notebooks show and `savefig` writes."""
        from saccade.looking.pictures import draw_map

        if self.word_attention is None:
            raise SaccadeError(NOTHING)
        return draw_map(self.word_attention, self.target_words, self.source_words, self.text)

    def _repr_html_(self) -> str:
        """What a notebook shows: the translation and, where there is one, its alignment. Nothing is loaded."""
        from saccade.looking.svg import MOST, heat_map_svg

        said = f"<p>{escape(self.text)} <small>{self.score:.2f}</small></p>"
        if self.word_attention is None:
            return f"<div>{said}</div>"
        svg = heat_map_svg(self.word_attention, self.target_words, self.source_words, f"alignment: {self.text}")
        cut = max(self.word_attention.shape) > MOST
        note = f"<small>The first {MOST} words of each side; plot() draws them all.</small>" if cut else ""
        return f'<div>{said}<div style="overflow: auto">{svg}</div>{note}</div>'

    def draw(self) -> "RenderableType":
        """The alignment as something rich can print in a terminal."""
        if self.word_attention is None:
            raise SaccadeError(NOTHING)
        return draw_alignment(self.word_attention, self.target_words, self.source_words)


def alignment_of(attentions: Sequence[Array]) -> Array:
    """One alignment from many heads: the mean over the heads of the upper half of the layers.

    Lower layers look where they must to know what to write next; which of the upper ones aligns best differs from model
    to model (Garg et al. 2019, table 2).
    """
    upper = attentions[len(attentions) // 2 :]
    return np.mean([layer.mean(axis=0) for layer in upper], axis=0, dtype=np.float64)
