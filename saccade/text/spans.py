"""A stretch of a line that must come through."""

from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of a line, what it is, and what the translation must hold for it."""

    kind: str
    start: int
    end: int
    text: str
    wanted: str  # `text` itself; of a glossary's term, its translation

    def at(self, start: int) -> "Span":
        return self._replace(start=start, end=start + self.end - self.start)


# Written without spaces between words: each character counts as a word.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
