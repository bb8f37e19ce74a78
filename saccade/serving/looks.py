"""A look at a sentence for the page, within limits."""

from collections.abc import Collection

from saccade.analysis.look import look_at
from saccade.looking.json import to_json
from saccade.serving.problems import TooLarge
from saccade.translator import Translator

PIECES = 160  # of a text that is looked at: every head has a weight for each pair of them


def look_json(
    translator: Translator,
    name: str,
    text: str,
    target: str | None,
    layers: Collection[int] | None,
    heads: Collection[int] | None,
    n_best: int,
) -> str:
    """The look as JSON; a text of many pieces is refused."""
    for what, said, tokenizer in (
        ("text", text, translator.tokenizers.source),
        ("target", target, translator.tokenizers.target),
    ):
        pieces = len(tokenizer.encode(said or ""))
        if pieces > PIECES:
            raise TooLarge(f"{what} has {pieces:,} pieces, more than the {PIECES} that are shown; look at a sentence")
    beam = max(n_best, translator.config.search.beam)
    look = look_at(translator, text, target, layers, heads, n_best, name=name, max_length=PIECES, beam=beam)
    return to_json(look)
