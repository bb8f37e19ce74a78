"""A look at a sentence for the page, within limits."""

from saccade.analysis.look import look_at
from saccade.looking.json import to_json
from saccade.serving.problems import TooLarge
from saccade.serving.schemas import LookRequest
from saccade.translator import Translator

PIECES = 160  # of a text that is looked at: every head has a weight for each pair of them


def look_json(translator: Translator, name: str, request: LookRequest) -> str:
    """The look as JSON; a text of many pieces is refused."""
    for what, said, tokenizer in (
        ("text", request.text, translator.tokenizers.source),
        ("target", request.target, translator.tokenizers.target),
    ):
        pieces = len(tokenizer.encode(said or ""))
        if pieces > PIECES:
            raise TooLarge(f"{what} has {pieces:,} pieces, more than the {PIECES} that are shown; look at a sentence")
    look = look_at(
        translator,
        request.text,
        request.target,
        request.layers,
        request.heads,
        request.n_best,
        name=name,
        max_length=PIECES,
        beam=max(request.n_best, translator.config.search.beam),
    )
    return to_json(look)
