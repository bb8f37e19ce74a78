"""Lines of a file that tell more than their source: `source TAB prefix TAB phrase TAB phrase …`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from saccade.errors import SaccadeError


class Columns(NamedTuple):
    """Which columns a line has after its source: a prefix, then any number of phrases; a line may leave them out."""

    prefix: bool = False
    phrases: bool = False
    always: tuple[str, ...] = ()  # phrases for every line

    def read(self, lines: Sequence[str], first: int = 1) -> tuple[list[str], dict[str, Any]]:
        """The sources, and what `Translator.stream` is told of them. `first`: the number of the first line."""
        if not self.prefix and not self.phrases:
            return list(lines), {"must": self.always} if self.always else {}
        sources, prefixes, musts = [], [], []
        for number, line in enumerate(lines, start=first):
            source, *rest = line.split("\t")
            prefixes.append(rest.pop(0) if self.prefix and rest else "")
            if rest and not self.phrases:
                raise SaccadeError(
                    f"line {number:,}: {len(rest) + 1 + self.prefix} columns, but only a source and a prefix are asked "
                    "for; give --constraints-column if the others are phrases"
                )
            sources.append(source)
            musts.append([*self.always, *(phrase for phrase in rest if phrase.strip())])
        return sources, {"prefix": prefixes, "must": musts}
