"""Which language a text is in, of those that are served.

By py3langid: a naive Bayes classifier over byte n-grams, deterministic, offline, 4.6 MB, no pickle.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

_LOCK = threading.Lock()
# A few thousand characters decide; the rest only takes time.
_ENOUGH = 4_000


class Detection(NamedTuple):
    """A language, and how sure it is, from 0 to 100."""

    language: str
    confidence: float


def detect(text: str, served: Sequence[str]) -> list[Detection]:
    """The languages of `served` (codes), the likeliest first; at least one.

    The confidences sum to 100: they say which of the served languages it is, not whether it is one of them. A text
    without letters has the confidence 0 for the first.
    """
    codes = list(dict.fromkeys(served)) or ["en"]
    if not any(character.isalpha() for character in text[:_ENOUGH]):
        return [Detection(codes[0], 0.0)]
    with _LOCK:
        known = dict(_identifier().rank(text[:_ENOUGH]))
    chances = [known.get(base_of(code), 0.0) for code in codes]
    total = sum(chances)
    if not total:  # the classifier knows none of them
        return [Detection(codes[0], 0.0)]
    found = [Detection(code, round(100 * chance / total, 1)) for code, chance in zip(codes, chances, strict=True)]
    return sorted(found, key=lambda one: -one.confidence)


def base_of(code: str) -> str:
    """A language without its region: `pt-BR` is `pt`, and Norwegian is `no`, as the classifier has it."""
    base = code.replace("_", "-").split("-")[0].lower()
    return {"nb": "no", "iw": "he", "in": "id", "ji": "yi"}.get(base, base)


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
