"""The vocabulary of a corpus: how large it is, learned from a sample of it, or grown from one that is there."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from saccade.config import Config, TokenizerConfig
from saccade.data.extending import extend, with_terms
from saccade.data.spool import Spooled
from saccade.data.tokenizers import Tokenizer, Tokenizers
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


def vocabulary_for(pairs: int) -> int:
    """The vocabulary size for a corpus of so many pairs.

    A piece must be met often enough to be learned, so small corpora want small vocabularies (Ding et al. 2019, "A call
    for prudent choice of subword merge operations"). Anchors are 500 pairs: 400, 5,000: 2,000, 30,000: 8,000, 200,000:
    16,000, 2 million: 32,000; straight lines between them on log-log axes, constant beyond; a multiple of 8, which
    matrix units like.
    """
    anchors = {500: 400, 5_000: 2_000, 30_000: 8_000, 200_000: 16_000, 2_000_000: 32_000}
    size = math.exp(np.interp(math.log(max(pairs, 1)), np.log([*anchors]), np.log([*anchors.values()])))
    return 8 * round(size / 8)


def share_letters(source_lines: Iterable[str], target_lines: Iterable[str], most: int = 20_000) -> float:
    """How much of their letters two sides have in common, from 0 to 1: Σ min(p, q) over the letters' frequencies.

    Case and accents are left aside. Above one half a joint vocabulary is worth having: names and cognates get the same
    pieces on both sides. Frequencies rather than alphabets: a few Latin names in a Chinese text make no Latin text.
    Reads at most `most` lines a side. A side without letters shares all of none: 1.
    """
    source, target = (_letter_frequencies(islice(lines, most)) for lines in (source_lines, target_lines))
    if not source or not target:
        return 1.0
    return sum(min(share, target[letter]) for letter, share in source.items() if letter in target)


def _letter_frequencies(lines: Iterable[str]) -> dict[str, float]:
    characters: Counter[str] = Counter()
    for line in lines:
        characters.update(line)
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        for letter in unicodedata.normalize("NFD", character.casefold()):
            if letter.isalpha():
                letters[letter] += count
    total = letters.total()
    return {letter: count / total for letter, count in letters.items()}
