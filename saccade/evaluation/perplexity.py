"""How well a model foretells a text: perplexity a token, perplexity a word, bits a character.

    perplexity = exp(-log P / n),    bits a character = -log₂ P / characters

log P is that of the whole text, the end of every line counted. Tokens depend on the tokenizer, so perplexity a token
compares models of one vocabulary alone; words (what white space separates) and characters are the text's own. The ends
of lines count among them as one each: they are foretold too.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from saccade.errors import SaccadeError
from saccade.evaluation.metrics import Score

if TYPE_CHECKING:
    from saccade.translator import Translator


def perplexity(translator: "Translator", sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
    """Of the targets given their sources (empty ones: of the text by itself), each with what it counts."""
    if not targets:
        raise SaccadeError("the text is empty: there is nothing to score")
    nats = -sum(translator.score(sources, targets))
    tokenizer, lines = translator.tokenizers.target, len(targets)
    tokens = lines + sum(map(len, tokenizer.encode_batch(list(targets))))
    words = lines + sum(len(target.split()) for target in targets)
    characters = lines + sum(map(len, targets))
    pieces = f"tok:{tokenizer.kind}-{tokenizer.size}"
    return [
        Score("perplexity a token", _exp(nats / tokens), f"{pieces}|tokens:{tokens}|lines:{lines}"),
        Score("perplexity a word", _exp(nats / words), f"words:{words}|lines:{lines}"),
        Score("bits a character", nats / math.log(2) / characters, f"characters:{characters}|lines:{lines}"),
    ]


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
