"""How good the output is: scores that others can reproduce, and whether a difference is more than chance."""

from saccade.evaluation.metrics import Comparison, Score, bleu, compare_systems, score_corpus, tokenizer_for

__all__ = ["Comparison", "Score", "bleu", "compare_systems", "score_corpus", "tokenizer_for"]
