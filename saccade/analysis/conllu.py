"""Dependencies as CoNLL-U files give them (universaldependencies.org/format): words, heads, relations."""

from collections.abc import Iterator
from typing import NamedTuple

from saccade.data.lines import read_lines
from saccade.errors import SaccadeError

FIELDS = 10


class Sentence(NamedTuple):
    """Words, and for each the place of its head (from 0; None: the root) and the name of the relation."""

    words: list[str]
    heads: list[int | None]
    relations: list[str]


def read_conllu(path: str) -> Iterator[Sentence]:
    """The sentences of a file. Multi-word tokens (`1-2`) and empty nodes (`3.1`) are left out, subtypes (`nsubj:pass`)
    too; a word with spaces in it is written without them."""
    words: list[str] = []
    heads: list[int | None] = []
    relations: list[str] = []
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if words:
                yield _sentence(path, number, words, heads, relations)
            words, heads, relations = [], [], []
            continue
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != FIELDS:
            raise SaccadeError(
                f"{path}, line {number:,}: {len(fields)} fields between tabs, not {FIELDS}; is this a CoNLL-U file?"
            )
        if "-" in fields[0] or "." in fields[0]:
            continue
        if fields[0] != str(len(words) + 1) or not fields[6].isdigit():
            raise SaccadeError(
                f"{path}, line {number:,}: word {fields[0]!r} with head {fields[6]!r}; words are counted from 1, and a "
                "head is such a number, or 0"
            )
        words.append("".join(fields[1].split()) or "_")
        heads.append(int(fields[6]) - 1 if int(fields[6]) else None)
        relations.append(fields[7].partition(":")[0])
    if words:
        yield _sentence(path, number, words, heads, relations)


def _sentence(path: str, number: int, words: list[str], heads: list[int | None], relations: list[str]) -> Sentence:
    beyond = [head for head in heads if head is not None and head >= len(words)]
    if beyond:
        raise SaccadeError(
            f"{path}, before line {number:,}: a head is word {beyond[0] + 1}, but the sentence has {len(words)}"
        )
    return Sentence(words, heads, relations)
