"""Minimum Bayes risk: not the likeliest candidate, but the one that is most like all of them.

y* = argmax_y Σ_r p(r) u(y, r)    (Kumar & Byrne 2004; with samples, Eikema & Aziz 2020)

Candidates are their own references. The utility u is chrF of a sentence, as sacrebleu computes it. Draws count one
each; hypotheses of a beam count by their probability, made to sum to 1 over the candidates.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from saccade.generation.search import Hypothesis

Array = npt.NDArray[np.float64]

ORDER, BETA = 6, 2.0  # of chrF: character n-grams of 1 to 6, recall twice as important as precision


def by_risk(hypotheses: Sequence[Hypothesis], texts: Sequence[str], sampled: bool) -> list[Hypothesis]:
    """The hypotheses, each text once, by falling expected utility, their new score; equals in the old order."""
    log_weights = np.zeros(len(texts)) if sampled else np.array([h.log_prob for h in hypotheses], dtype=np.float64)
    weights = np.exp(log_weights - log_weights.max())
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    summed = np.zeros(len(first))
    places = {text: row for row, text in enumerate(first)}
    np.add.at(summed, [places[text] for text in texts], weights / weights.sum())
    expected = chrf_matrix(list(first)) @ summed
    order = np.argsort(-expected, kind="stable")
    kept = [hypotheses[place] for place in first.values()]
    return [kept[row]._replace(score=float(expected[row])) for row in order]


def chrf_matrix(texts: Sequence[str]) -> Array:
    """(N, N): chrF, 0 to 100, of each text as the hypothesis with each as the reference (Popović 2015).

    n-grams are counted once a text; what two texts share is then a sum of minima over rows of counts.
    """
    letters = ["".join(text.split()) for text in texts]
    N = len(texts)
    precision, recall, orders = np.zeros((N, N)), np.zeros((N, N)), np.zeros((N, N))
    for n in range(1, ORDER + 1):
        counts = _counts(letters, n)  # (N, different n-grams)
        totals = counts.sum(1)
        shared = np.stack([np.minimum(counts, row).sum(1) for row in counts])
        # Texts too short for this n are judged by the shorter n-grams.
        both = (totals[:, None] > 0) & (totals[None, :] > 0)
        precision += np.divide(shared, totals[:, None], out=np.zeros((N, N)), where=both)
        recall += np.divide(shared, totals[None, :], out=np.zeros((N, N)), where=both)
        orders += both
    np.divide(precision, orders, out=precision, where=orders > 0)
    np.divide(recall, orders, out=recall, where=orders > 0)
    below = BETA**2 * precision + recall
    return 100 * np.divide((1 + BETA**2) * precision * recall, below, out=np.zeros((N, N)), where=below > 0)


def _counts(texts: Sequence[str], n: int) -> Array:
    """How often each n-gram of any text is in each text."""
    bags = [Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in texts]
    columns = {ngram: column for column, ngram in enumerate(dict.fromkeys(ngram for bag in bags for ngram in bag))}
    counts = np.zeros((len(texts), len(columns)))
    for row, bag in enumerate(bags):
        counts[row, [columns[ngram] for ngram in bag]] = list(bag.values())
    return counts
