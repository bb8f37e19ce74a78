"""What a request asks of its translations, whatever protocol it came by."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from saccade.config import SearchConfig
from saccade.serving.problems import Wrong

# Settings of the server's machine, not of a request: files to read, memory to take.
NOT_FOR_REQUESTS = {"shortlist", "batch_tokens", "max_source", "precision"}
# What a request may raise, and how far: lengths take memory before a word is written, and powers of lengths overflow.
MOST = {"max_length_factor": 8, "max_length_extra": 256, "min_length": 512, "max_length": 4096, "length_penalty": 10}
MOST |= {
    "coverage_penalty": 1_000,
    "diversity": 1_000,
    "repetition_penalty": 1_000,
    "temperature": 1_000_000,
    "length_ratio": 1_000,
}


@dataclass(frozen=True)
class Told:
    """Search settings and rules of one request, and what its answer shows. `prefix`: one for all texts, or one each."""

    search: Mapping[str, Any] = field(default_factory=dict)
    glossary: Mapping[str, str] = field(default_factory=dict)
    prefix: str | Sequence[str] | None = None
    must: Sequence[str] = ()
    banned: Sequence[str] = ()
    n_best: int = 1
    alignments: bool = False
    tokens: bool = False
    scores: bool = True  # False: nobody will read them, and an engine may leave them a little wrong

    def settings(self, beam: int, most: int) -> dict[str, Any]:
        """The search settings that differ from the folder's, which has `beam`; `most`: the widest allowed."""
        unknown = [name for name in self.search if name not in SearchConfig.model_fields or name in NOT_FOR_REQUESTS]
        if unknown:
            known = ", ".join(name for name in SearchConfig.model_fields if name not in NOT_FOR_REQUESTS)
            raise Wrong(f"search.{unknown[0]} cannot be set by a request; these can: {known}")
        search = dict(self.search)
        if self.n_best > 1:
            search["n_best"] = self.n_best
            if search.get("method") != "sample":
                asked = search.get("beam", beam)
                search["beam"] = max(self.n_best, asked) if isinstance(asked, int) else asked
        if self.banned:
            if not isinstance(search.get("banned", []), list):
                raise Wrong(f'search.banned={search["banned"]!r} is no list of words; write ["word"]')
            search["banned"] = [*search.get("banned", ()), *self.banned]
        if not search:
            return search
        for name, asked in search.items():
            if isinstance(asked, float) and not math.isfinite(asked):
                raise Wrong(f"search.{name}={asked} is no number")
        rows = ["beam", "n_best", "mbr", *(["top_k"] if search.get("method") == "contrastive" else [])]
        for name, bound in (MOST | dict.fromkeys(rows, most)).items():
            asked = search.get(name)
            if asked is None:
                continue
            if not isinstance(asked, int | float):  # "9999" would be read as one later
                raise Wrong(f"search.{name}={asked!r} is no number")
            if abs(asked) > bound:
                raise Wrong(f"search.{name}={asked} is more than the {bound} that this server allows; lower it")
        return search

    @property
    def phrases(self) -> int:
        """Characters of what translations must hold or may not, which every step looks at."""
        return sum(
            _letters(rules) for rules in (self.must, self.banned, self.search.get("must"), self.search.get("banned"))
        )

    @property
    def terms(self) -> int:
        """Characters of the words that are put in, and of how translations begin."""
        words = (*self.glossary.items(), self.search.get("terms"), self.prefix)
        return sum(map(_letters, words))

    def prefixes(self, texts: int) -> list[str] | None:
        """How each of the texts begins; None: no one is told."""
        if not self.prefix:
            return None
        each = [self.prefix] * texts if isinstance(self.prefix, str) else list(self.prefix)
        if len(each) != texts:
            raise Wrong(f"prefix: {len(each)} for {texts} texts; give one for all, or one for each")
        return each

    def key(self) -> str:
        """The same for requests that are told the same, but for their prefixes."""
        shown = [sorted(self.search.items()), sorted(self.glossary.items()), tuple(self.must), tuple(self.banned)]
        return repr([*shown, self.n_best, self.alignments, self.tokens, self.scores])


def _letters(given: object) -> int:
    """Characters of a text, or of all texts in a list."""
    if isinstance(given, str):
        return len(given)
    return sum(map(_letters, given)) if isinstance(given, list | tuple) else 0
