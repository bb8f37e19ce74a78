"""What a fine-tuned model has forgotten: the old validation set, scored by the old folder and by the new one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saccade.config import Config
from saccade.data.replay import old_validation, share_of
from saccade.display import Display
from saccade.evaluation.metrics import compare_systems, metrics_for, tokenizer_for
from saccade.folder import load
from saccade.translator import Translator

SAMPLES = 1000


class LossChange(NamedTuple):
    """The loss a piece of two models on the same sentences, and how often chance alone makes such a difference."""

    before: float
    after: float
    low: float  # of the difference: 95% of the samples
    high: float
    p_value: float

    @property
    def significant(self) -> bool:
        return self.p_value < 0.05

    def __str__(self) -> str:
        return f"loss {self.before:.4f} → {self.after:.4f} ({self.after - self.before:+.4f}, p = {self.p_value:.4f})"


def loss_change(
    before: Sequence[float], after: Sequence[float], pieces: Sequence[int], samples: int = SAMPLES, seed: int = 1
) -> LossChange:
    """Paired bootstrap (Koehn 2004) over sentences: log-probabilities of each, divided by the same count of pieces.

    The p-value counts samples whose difference is as far from their mean as the measured one is from zero, as
    sacrebleu does for its metrics.
    """
    old, new, count = -np.asarray(before), -np.asarray(after), np.asarray(pieces, np.float64)
    difference = (new - old).sum() / count.sum()
    drawn = np.random.default_rng(seed).integers(len(old), size=(samples, len(old)))
    differences = (new - old)[drawn].sum(1) / count[drawn].sum(1)
    far = (np.abs(differences - differences.mean()) >= abs(difference)).sum() if difference else samples
    low, high = np.quantile(differences, [0.025, 0.975])
    return LossChange(
        float(old.sum() / count.sum()),
        float(new.sum() / count.sum()),
        float(low),
        float(high),
        float((far + 1) / (samples + 1)),
    )


def report_forgetting(config: Config, translator: Translator, base: Path, display: Display) -> dict[str, Any] | None:
    """Say what the new model does worse, or better, than `base` on the old validation set; the same for the record.

    The loss is a piece of the *old* vocabulary (ends counted), for both: a vocabulary that has grown cuts the same text
    into fewer pieces, and only what is divided by the same number can be compared.
    """
    data, most = config.data, config.data.old_valid_pairs
    if not most:
        return None
    known = old_validation(config, base)
    pairs = [] if known is None else known.pairs[:most]
    if known is None or len(pairs) < 2:
        display.say(
            f"forgetting: not measured, {base} has not kept its validation set (resume/ was removed); name one with "
            "data.old_valid=[…]"
        )
        return None
    old = load(base, str(translator.device), engine="torch")
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    pieces = [len(ids) + 1 for ids in old.tokenizers.target.encode_batch(references)]
    loss = loss_change(old.score(sources, references), translator.score(sources, references), pieces)
    comparisons = []
    if not data.monolingual:
        search: dict[str, Any] = {
            "beam": config.search.beam,
            "length_penalty": config.search.length_penalty,
            "n_best": 1,
        }
        outputs = []
        for which, model in (("before", old), ("after", translator)):
            with display.task(f"translating the old validation set, {which}", len(pairs)) as progress:
                outputs.append([t.text for t in model.stream(sources, progress=progress, **search)])
        comparisons = compare_systems(
            outputs[0],
            outputs[1],
            references,
            metrics=metrics_for(config.model.family)[:2],
            samples=SAMPLES,
            tokenize=tokenizer_for(data.target, references),
        )
    display.say(f"forgetting: {len(pairs):,} pairs of {known.where}, before → after:")
    for line in [loss, *comparisons]:
        display.say(f"  {line}")
    worse = (loss.significant and loss.after > loss.before) or any(
        c.significant and c.difference < 0 for c in comparisons
    )
    if worse:
        # A stream and a mixture are refused a share.
        how = "as one of data.mixture" if data.stream or data.mixture else f"data.replay_share, now {share_of(data):g}"
        display.say(
            f"  something was forgotten: mix more of the old corpus in ({how}), or lower training.learning_rate"
        )
    return {
        "base": str(base),
        "corpus": known.where,
        "pairs": len(pairs),
        "worse": worse,
        "loss": loss._asdict(),
        "scores": [comparison.to_dict() for comparison in comparisons],
    }
