"""How good the output is: scores that others can reproduce, and whether a difference is more than chance."""

from saccade.evaluation.accuracy import Confusion, confusions
from saccade.evaluation.metrics import (
    Comparison,
    Score,
    bleu,
    compare_systems,
    metrics_for,
    score_corpus,
    tokenizer_for,
)

__all__ = [
    "Comparison",
    "Confusion",
    "Score",
    "bleu",
    "compare_systems",
    "confusions",
    "metrics_for",
    "score_corpus",
    "tokenizer_for",
]
