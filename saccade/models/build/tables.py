"""The matrices over the vocabulary, shared as the settings say."""

from typing import NamedTuple

from torch import nn

from saccade.models.words import WordTable


class Vocabularies(NamedTuple):
    """How many pieces each side has."""

    source: int
    target: int


class Tables(NamedTuple):
    """The three matrices over the vocabulary, shared as `tied` says (Press & Wolf 2017: output and target; or all)."""

    source: nn.Embedding
    target: nn.Embedding
    output: nn.Linear


def make_tables(vocabularies: Vocabularies, width: int, tied: str | None, std: float) -> Tables:
    """Fresh matrices, those that `tied` names being one."""
    source = WordTable(vocabularies.source, width)
    target = source if tied == "all" else WordTable(vocabularies.target, width)
    output = nn.Linear(width, vocabularies.target, bias=False)
    for table in (source, target, output):
        nn.init.normal_(table.weight, std=std)
    if tied in ("all", "decoder"):
        output.weight = target.weight
    return Tables(source, target, output)
