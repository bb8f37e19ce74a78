"""Translations as answers: the shapes of `schemas` from what a translator gives. It may ask the model again."""

import math
from collections.abc import Sequence

import torch

from saccade.data.batching import collate
from saccade.data.tokenizers import EOS
from saccade.serving.schemas import Hypothesis, Result, Token
from saccade.serving.told import Told
from saccade.translator import Translation, Translator


def result_of(translation: Translation, translator: Translator, told: Told, index: int = 0) -> Result:
    """All that was asked for of one text."""
    several = translation.n_best[: told.n_best] or [translation]
    return Result(
        index=index,
        translations=[_hypothesis(one, translator, told) for one in several],
        notes=list(translation.notes),
    )


def _hypothesis(translation: Translation, translator: Translator, told: Told) -> Hypothesis:
    made = Hypothesis(text=translation.text, score=translation.score if math.isfinite(translation.score) else 0.0)
    parts = [translation] if translation._ids or not translation.parts else translation.parts
    if told.alignments:
        made.alignment, made.source_words, made.target_words = [], [], []
        for part in parts:
            sources, targets = part.source_words, part.target_words
            before = len(made.source_words), len(made.target_words)
            made.alignment += [(before[0] + source, before[1] + target) for source, target in part.alignment]
            made.source_words += sources
            made.target_words += targets
    if told.tokens:
        made.tokens = [token for part in parts for token in _tokens(part, translator)]
    return made


def _tokens(part: Translation, translator: Translator) -> list[Token]:
    probabilities = piece_probabilities(translator, part.source, part._ids) if part._ids else []
    return [
        Token(piece=piece, probability=probability)
        for piece, probability in zip(part.tokens, probabilities, strict=False)
    ]


@torch.inference_mode()
def piece_probabilities(translator: Translator, source: str, ids: Sequence[int]) -> list[float]:
    """How likely each piece of a translation was where it stands, the end last."""
    batch = collate([(translator.tokenizers.source.encode(source), list(ids))], [0]).to(translator.device)
    hidden = translator.model(batch.source, batch.source_mask, batch.inputs).hidden
    probabilities = translator.model.logits(hidden).float().softmax(-1)[0]
    gold = torch.tensor([*ids, EOS], device=probabilities.device)
    return [float(p) for p in probabilities.gather(1, gold.unsqueeze(1)).squeeze(1)]
