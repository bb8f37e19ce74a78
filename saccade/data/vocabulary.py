"""The vocabulary of a corpus: learned from a sample of it, or grown from one that is there."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from saccade.config import Config, TokenizerConfig
from saccade.data.extending import extend, with_terms
from saccade.data.spool import Spooled
from saccade.data.tokenizers import Tokenizer, Tokenizers, share_letters, vocabulary_for
from saccade.display import Display


def learn_tokenizers(
    config: Config, sample: Callable[[], Iterator[tuple[str, str]]], pairs: int, display: Display
) -> tuple[Tokenizers, dict[str, Any], str]:
    """Tokenizers for a corpus of so many pairs, the settings that were chosen, and why."""
    settings = config.tokenizer
    size = settings.vocabulary or vocabulary_for(pairs)
    terms = terms_of(config)
    shared = share_letters((source for source, _ in sample()), (target for _, target in sample()))
    joint = shared > 0.5 if settings.joint is None else settings.joint
    with display.task(f"learning the {settings.kind} vocabulary"):
        if joint:
            tokenizer = Tokenizer.train((side for pair in sample() for side in pair), settings.kind, size)
            tokenizer = with_terms(tokenizer, terms)
            tokenizers = Tokenizers(tokenizer, tokenizer)
        else:
            source = Tokenizer.train((source for source, _ in sample()), settings.kind, size)
            target = Tokenizer.train((target for _, target in sample()), settings.kind, size)
            tokenizers = Tokenizers(with_terms(source, terms), with_terms(target, terms))
    sizes = f"{tokenizers.source.size:,}" if joint else f"{tokenizers.source.size:,} + {tokenizers.target.size:,}"
    why = f"vocabulary: {sizes} {settings.kind} pieces, "
    if config.data.monolingual:
        why += f"of one side ({pairs:,} lines)"
    else:
        why += (
            f"{'joint' if joint else 'separate'} ({pairs:,} pairs; the two sides share {shared:.0%} of their letters)"
        )
    return tokenizers, {"joint": joint, "vocabulary": size}, why


def sampler(
    settings: TokenizerConfig, corpus: Spooled, held_out: set[int], share: Sequence[float] = ()
) -> Callable[[], Iterator[tuple[str, str]]]:
    """What a vocabulary is learned from: every so many-th pair, so that all files are heard.

    `share`: of each corpus of a mixture, which then has that much of a say, as far as its pairs reach.
    """
    most = min(settings.sample, corpus.pairs)
    sizes = corpus.sizes if share else (corpus.pairs,)
    wanted = [min(size, max(1, round(most * part))) for size, part in zip(sizes, share or (1.0,), strict=True)]
    steps = [-(-size // count) for size, count in zip(sizes, wanted, strict=True)]
    ends = np.cumsum(sizes).tolist()

    def sample() -> Iterator[tuple[str, str]]:
        member = 0
        for i, pair in enumerate(corpus):
            while i >= ends[member]:
                member += 1
            if i % steps[member] == 0 and i not in held_out:
                yield pair

    return sample


def extend_tokenizers(
    tokenizers: Tokenizers, config: Config, corpus: Spooled, held_out: set[int]
) -> tuple[Tokenizers, str | None]:
    """Tokenizers with the pieces that the settings want added, and what was done."""
    sample = sampler(config.tokenizer, corpus, held_out)
    sources, targets = (lambda: (s for s, _ in sample())), (lambda: (t for _, t in sample()))
    settings = config.tokenizer.model_copy(update={"terms": terms_of(config)})
    return extend(tokenizers, settings, sources, targets)


def terms_of(config: Config) -> list[str]:
    """The words that are one piece: those listed, and the tags of a mixture."""
    return list(dict.fromkeys([*config.tokenizer.terms, *(item.tag for item in config.data.mixture if item.tag)]))
