"""BLEU, chrF, TER and accuracy with the signatures that make them comparable, and a paired test between two systems.

All of it is sacrebleu's (Post 2018): a score without its signature says little, so none leaves this room without one.

    for score in score_corpus(hypotheses, references):
        print(score)                       # BLEU 41.02 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0)
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from saccade.errors import SaccadeError
from saccade.evaluation.accuracy import Accuracy

References = Sequence[str] | Sequence[Sequence[str]]

# Scripts written without spaces, and Korean, whose particles cling to the word: "13a" would see whole phrases as one
# word. The tools that cut them into words are extra installs, so characters stand in for words.
_TOKENIZERS = {
    "zh": "zh",
    "yue": "zh",
    "ja": "char",
    "ko": "char",
    "th": "char",
    "lo": "char",
    "km": "char",
    "my": "char",
}

# By what the output of a family is judged; of the families that are not named, the output is sentences.
_JUDGED_BY: dict[str, tuple[str, ...]] = {"classifier": ("accuracy",)}

# Below this, sacrebleu's 95% interval would be the whole range of the samples.
_FEWEST_SAMPLES = 40


@dataclass(frozen=True)
class Score:
    """One metric over a corpus, with sacrebleu's full signature."""

    metric: str
    value: float
    signature: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.2f} ({self.signature})"


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems on the same sentences, and how often chance alone makes such a difference.

    `difference` is system minus baseline (for TER, less is better). `low` and `high` bound the *system's* score,
    `baseline_low` and `baseline_high` the baseline's: 95% of the bootstrap samples, centred on their mean, as
    sacrebleu gives them. They are not bounds of the difference: two intervals may overlap where the paired test,
    which draws the same sentences for both, is sure. Judge by `p_value`.
    """

    metric: str
    baseline: float
    system: float
    difference: float
    low: float
    high: float
    baseline_low: float
    baseline_high: float
    p_value: float
    signature: str
    samples: int

    @property
    def significant(self) -> bool:
        """True where the two systems differ at the customary 5% level, in either direction."""
        return self.p_value < 0.05

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.baseline:.2f} → {self.system:.2f} "
            f"({self.difference:+.2f}, p = {self.p_value:.4f}; {self.signature})"
        )


def score_corpus(
    hypotheses: Sequence[str],
    references: References,
    *,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[Score]:
    """Score a corpus by each of `metrics`: bleu, chrf, chrf++, ter, accuracy.

    `references` is one list of sentences, or several such lists. `tokenize` is BLEU's: text is given as it is meant
    to be read, and sacrebleu splits it; "none" is for text that is already split (see `tokenizer_for`).
    TER ignores case whatever `lowercase` says, as Tercom does; its signature says so.
    """
    reference_sets = _reference_sets(references)
    _check_counts("hypotheses", hypotheses, reference_sets)
    scores = []
    for metric in _build(metrics, tokenize, lowercase).values():
        result = metric.corpus_score(list(hypotheses), reference_sets)
        scores.append(Score(str(result.name), float(result.score), str(metric.get_signature())))
    return scores


def bleu(hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lowercase: bool = False) -> float:
    """Corpus BLEU alone: quick enough for every validation."""
    (score,) = score_corpus(hypotheses, references, metrics=("bleu",), tokenize=tokenize, lowercase=lowercase)
    return score.value


def compare_systems(
    baseline: Sequence[str],
    system: Sequence[str],
    references: References,
    *,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[Comparison]:
    """Is `system` different from `baseline`, or lucky? Paired bootstrap (Koehn 2004), as sacrebleu computes it.

    The bootstrap takes the sentences for the whole language: on less than a few hundred it is too sure of itself.
    """
    reference_sets = _reference_sets(references)
    _check_counts("baseline", baseline, reference_sets)
    _check_counts("system", system, reference_sets)
    if samples < _FEWEST_SAMPLES:
        raise SaccadeError(
            f"samples={samples} is too few for a 95% interval; use at least {_FEWEST_SAMPLES}, better 1000"
        )
    if seed < 1:
        raise SaccadeError(f"seed={seed}: sacrebleu draws at random for such a seed; use a whole number from 1 up")
    if len(baseline) < 2:
        # Every sample would be that sentence again, and any difference would look certain.
        raise SaccadeError("a paired test of 1 sentence says nothing; compare on a few hundred")
    # sacrebleu takes its seed from the environment and nowhere else.
    with _environment("SACREBLEU_SEED", str(seed)):
        signatures, results = PairedTest(
            [("baseline", list(baseline)), ("system", list(system))],
            _build(metrics, tokenize, lowercase),
            reference_sets,
            test_type="bs",
            n_samples=samples,
        )()
    comparisons = []
    for name, signature in signatures.items():
        first, second = results[name]
        comparisons.append(_comparison(name, first, second, str(signature), samples))
    return comparisons


def metrics_for(family: str) -> tuple[str, ...]:
    """The metrics that suit what models of a family write, the one that says most first and the slowest last."""
    return _JUDGED_BY.get(family, ("bleu", "chrf", "ter"))


def tokenizer_for(language: str, references: Sequence[str] = ()) -> str:
    """BLEU's tokenizer for a target language (`zh`, `ja_JP`, `pt-BR`), of those that need no further install.

    `references` that are split into tokens already (full stops stand alone) are left as they are: "none".
    """
    stops = [line for line in references if line.rstrip().endswith(".")]
    if len(stops) >= 10 and sum(line.rstrip().endswith(" .") for line in stops) > 0.9 * len(stops):
        return "none"
    primary = re.split("[-_]", language.strip().lower())[0]
    return _TOKENIZERS.get(primary, "13a")


def _comparison(metric: str, baseline: Any, system: Any, signature: str, samples: int) -> Comparison:
    difference = float(system.score) - float(baseline.score)
    return Comparison(
        metric=metric,
        baseline=float(baseline.score),
        system=float(system.score),
        difference=difference,
        low=float(system.mean - system.ci),
        high=float(system.mean + system.ci),
        baseline_low=float(baseline.mean - baseline.ci),
        baseline_high=float(baseline.mean + baseline.ci),
        # sacrebleu counts samples that differ by *more* than the corpus does. Between equal outputs there are none,
        # which it reads as the smallest p there is, as if a difference of nothing could not be chance.
        p_value=float(system.p_value) if difference else 1.0,
        signature=signature,
        samples=samples,
    )


def _bleu(tokenize: str, lowercase: bool) -> Any:
    # sacrebleu warns of " ." at line ends, since split text scored as plain text inflates BLEU. With "none" the caller
    # has said that the text is split, and the signature tells the reader; everywhere else the warning stays.
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")


def _chrf(tokenize: str, lowercase: bool) -> Any:
    return CHRF(lowercase=lowercase)


def _chrf_with_words(tokenize: str, lowercase: bool) -> Any:
    return CHRF(lowercase=lowercase, word_order=2)


def _ter(tokenize: str, lowercase: bool) -> Any:
    # Without spaces a sentence is one word, either right or wrong; Tercom's own remedy is to split the characters.
    unspaced = tokenize in ("zh", "char", "ja-mecab")
    return TER(normalized=unspaced, asian_support=unspaced)


def _accuracy(tokenize: str, lowercase: bool) -> Any:
    return Accuracy(lowercase)


METRICS: dict[str, Callable[[str, bool], Any]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "chrf++": _chrf_with_words,
    "ter": _ter,
    "accuracy": _accuracy,
}


def _build(metrics: Sequence[str], tokenize: str, lowercase: bool) -> dict[str, Any]:
    if not metrics:
        raise SaccadeError(f"metrics is empty; choose from {', '.join(METRICS)}")
    for name in metrics:
        _check_name("metric", name, METRICS)
    _check_name("tokenize", tokenize, BLEU.TOKENIZERS)
    try:
        return {name: METRICS[name](tokenize, lowercase) for name in metrics}
    except (RuntimeError, ImportError, OSError) as error:  # a package that is not there, or a download that failed
        reason = " ".join(str(error).split())
        raise SaccadeError(f"tokenize={tokenize!r} cannot be used: {reason}") from None


def _check_name(setting: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise SaccadeError(f"{setting}={name!r} is not known; {remedy}")


def _reference_sets(references: References) -> list[list[str]]:
    """One list of sentences becomes a list of one such list."""
    if isinstance(references, str) or not references:
        raise SaccadeError(f"references={references!r}: expected a list of sentences, or several such lists")
    first = references[0]
    sets: Any = [references] if isinstance(first, str) or first is None else references
    return [list(_sentences(f"references[{number}]", sentences)) for number, sentences in enumerate(sets)]


def _check_counts(name: str, hypotheses: Sequence[str], reference_sets: list[list[str]]) -> None:
    if not _sentences(name, hypotheses):
        raise SaccadeError(f"{name} is empty: there is nothing to score")
    for number, reference in enumerate(reference_sets):
        if len(reference) != len(hypotheses):
            which = f"reference set {number + 1}" if len(reference_sets) > 1 else "the references"
            raise SaccadeError(
                f"{name} has {len(hypotheses):,} sentences, {which} {len(reference):,}; "
                "each sentence needs its own reference, in the same order"
            )


def _sentences(name: str, sentences: Sequence[str]) -> Sequence[str]:
    if isinstance(sentences, str):
        raise SaccadeError(f"{name} is one string, {sentences[:40]!r}; pass a list of sentences")
    for number, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise SaccadeError(f"{name}: sentence {number + 1} is {sentence!r}, not text")
    return sentences


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
