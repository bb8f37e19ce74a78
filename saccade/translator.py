"""A trained model at work: text in, translations out, with where it looked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import torch

from saccade.config import Config, SearchConfig
from saccade.data.batching import collate
from saccade.data.tokenizers import PAD, Tokenizers
from saccade.engines import Engine
from saccade.engines.pytorch import TorchEngine, by_tokens, longest_first
from saccade.errors import SaccadeError
from saccade.generation.loop import generate
from saccade.generation.rules import DEFAULT_RULES, forbid
from saccade.generation.search import Beam, Greedy, Hypothesis, Search
from saccade.looking.terminal import draw_alignment, merge_to_words
from saccade.models.build import in_one_sequence, longest_sequence
from saccade.models.protocol import EncoderDecoder

if TYPE_CHECKING:
    from rich.console import RenderableType

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Translation:
    """One sentence translated, and what can be asked of it."""

    source: str
    text: str
    score: float  # log-probability of the whole translation, natural logarithm
    tokens: list[str]  # pieces, "▁" before the first of a word
    n_best: list["Translation"] = field(default_factory=list, repr=False)  # all, where more than one was asked for
    _ids: list[int] = field(default_factory=list, repr=False)
    _translator: "Translator | None" = field(default=None, repr=False, compare=False)

    @cached_property
    def attentions(self) -> list[Array]:
        """Cross-attention of the whole translation, one array (heads, target pieces, source pieces) a layer.

        The last target row is the end of the sentence, and so is the last source column. Empty if the model has no
        attention. Read off by teacher forcing on the final answer, so it is exact for any search.
        """
        if self._translator is None or not self.source.strip():
            return []
        return self._translator.attentions(self.source, self._ids)

    @property
    def source_words(self) -> list[str]:
        if self._translator is None:
            return []
        tokenizer = self._translator.tokenizers.source
        return tokenizer.word_texts(tokenizer.encode(self.source))

    @property
    def target_words(self) -> list[str]:
        if self._translator is None:
            return []
        return self._translator.tokenizers.target.word_texts(self._ids)

    @cached_property
    def word_attention(self) -> Array | None:
        """Attention between words, (target words, source words): layers and heads averaged as `alignment_of` does."""
        if self._translator is None or not self.attentions or not self._ids:
            return None
        source = self._translator.tokenizers.source
        ids = source.encode(self.source)
        target_words = self._translator.tokenizers.target.words(self._ids)
        weights = alignment_of(self.attentions)[: len(self._ids), : len(ids)]
        return merge_to_words(weights, target_words, source.words(ids))

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(source word, target word) for each target word: the source word it looked at most."""
        if self.word_attention is None:
            return []
        return [(int(row.argmax()), target) for target, row in enumerate(self.word_attention) if row.any()]

    def draw(self) -> "RenderableType":
        """The alignment as something rich can print in a terminal."""
        if self.word_attention is None:
            raise SaccadeError("there is no alignment to draw: the model has no attention, or the sentence is empty")
        return draw_alignment(self.word_attention, self.target_words, self.source_words)


def alignment_of(attentions: Sequence[Array]) -> Array:
    """One alignment from many heads: the mean over the heads of the upper half of the layers.

    Lower layers look where they must to know what to write next; which of the upper ones aligns best differs from model
    to model (Garg et al. 2019, table 2).
    """
    upper = attentions[len(attentions) // 2 :]
    return np.mean([layer.mean(axis=0) for layer in upper], axis=0, dtype=np.float64)


class Translator:
    """A model with its tokenizers and its settings, and the engine that runs it."""

    def __init__(
        self, config: Config, tokenizers: Tokenizers, model: EncoderDecoder | Callable[[], EncoderDecoder]
    ) -> None:
        """`model`: a function that loads it will be called when something needs it, which an engine may never do."""
        self.config = config
        self.tokenizers = tokenizers
        self._given = model
        self.own_engine = TorchEngine(self._search)
        self.engine: Engine = self.own_engine
        self.engine_is_asked_for = False  # so that what it cannot do is refused, rather than done by our own

    @cached_property
    def model(self) -> EncoderDecoder:
        return self._given if isinstance(self._given, EncoderDecoder) else self._given()

    def engine_for(self, settings: SearchConfig) -> Engine:
        """The engine, if it can do the settings; else our own."""
        obstacle = self.engine.obstacle(settings)
        if obstacle is not None and self.engine_is_asked_for:
            raise SaccadeError(f"{obstacle}: the engine {self.engine.name} cannot do that; use --engine torch")
        return self.engine if obstacle is None else self.own_engine

    def engine_note(self, **search: Any) -> str | None:
        """Why our own engine does it although there is another; None: there is nothing to say."""
        obstacle = self.engine.obstacle(self._settings(search))
        return None if obstacle is None else f"engine: torch, because {self.engine.name} cannot do {obstacle}"

    @property
    def longest(self) -> int | None:
        """The most pieces, ends counted, that the model's positions can hold; None: any number."""
        return longest_sequence(self.config.model)

    @property
    def one_sequence(self) -> bool:
        """Whether those positions hold source and target together."""
        return in_one_sequence(self.config.model)

    @cached_property
    def _line_breaks(self) -> list[int]:
        """Pieces that would turn one line into two."""
        target = self.tokenizers.target
        return [i for i in range(target.size) if {"\n", "\r"} & set(target.decode([i]))]

    @property
    def never_written(self) -> list[int]:
        """Pieces of the target that no translation has, beside the special ones."""
        return self._line_breaks

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @overload
    def translate(self, text: str, **search: Any) -> Translation: ...
    @overload
    def translate(self, text: list[str], **search: Any) -> list[Translation]: ...
    def translate(self, text: str | list[str], **search: Any) -> Translation | list[Translation]:
        """Translate a sentence, or a list of them into a list. Keywords override the folder's search settings."""
        if isinstance(text, str):
            return next(self.stream([text], **search))
        return list(self.stream(text, **search))

    def stream(
        self,
        texts: Sequence[str],
        progress: Callable[[int], None] | None = None,
        first: int = 1,
        scored: bool = True,
        **search: Any,
    ) -> Iterator[Translation]:
        """Translations of `texts`, in their order; those of like length are worked on together.

        `first` is the number by which a sentence that is refused is named, if it is the first. `scored=False`: nobody
        will read the scores, which an engine may then leave a little wrong rather than compute them.
        """
        settings = self._settings(search)
        encoded = self.tokenizers.source.encode_batch(list(texts))
        blank = [not text.strip() for text in texts]
        self._check_lengths(encoded, settings.max_source, first)
        real = [i for i in range(len(texts)) if not blank[i]]
        searched = self.engine_for(settings).search([encoded[i] for i in real], settings, progress, scored)
        found: dict[int, list[Hypothesis]] = dict(zip(real, searched, strict=True))
        for i, text in enumerate(texts):
            # A blank line has nothing to translate and stays what it is.
            yield self._translation(text, found[i]) if i in found else Translation(text, text, 0.0, [])

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log P(target | source) of each pair under the model, the end of the sentence counted."""
        if len(sources) != len(targets):
            raise SaccadeError(f"{len(sources)} sources but {len(targets)} targets: give as many of each")
        pairs = list(
            zip(
                self.tokenizers.source.encode_batch(list(sources)),
                self.tokenizers.target.encode_batch(list(targets)),
                strict=True,
            )
        )
        self._check_pairs(pairs)
        return self.score_ids(pairs)

    def score_ids(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """`score` for pairs of ids."""
        longest = [max(len(source), len(target)) for source, target in pairs]
        scores = [0.0] * len(pairs)
        lengths = [[0] * n for n in longest]
        for batch in by_tokens(longest_first(lengths), lengths, self.config.search.batch_tokens):
            for i, value in zip(batch, self._score([pairs[i] for i in batch]), strict=True):
                scores[i] = value
        return scores

    def forced(self, source: str, target: str) -> Translation:
        """`target` as if it had been found for `source`: its score, and where the model looks when it must write it."""
        ids = self.tokenizers.target.encode(target)
        return Translation(
            source=source,
            text=target,
            score=self.score([source], [target])[0],
            tokens=self.tokenizers.target.pieces(ids),
            _ids=ids,
            _translator=self,
        )

    @torch.inference_mode()
    def attentions(self, source: str, target_ids: Sequence[int]) -> list[Array]:
        """Cross-attention when the model is made to write `target_ids` for `source`."""
        self.model.eval()
        batch = collate([(self.tokenizers.source.encode(source), list(target_ids))], [0]).to(self.device)
        output = self.model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
        return [weights[0].cpu().double().numpy() for weights in output.attentions or ()]

    def _check_pairs(self, pairs: Sequence[tuple[list[int], list[int]]]) -> None:
        for side in zip(*pairs, strict=True):
            self._check_lengths(side, self.config.search.max_source, 1)
        if self.longest is None or not self.one_sequence:
            return
        for number, (source, target) in enumerate(pairs, start=1):
            together = len(source) + len(target) + 2
            if together > self.longest:
                raise SaccadeError(
                    f"line {number:,}: a pair of {together:,} pieces with its ends, more than the {self.longest:,} "
                    "that source and target may have together; split it"
                )

    def _check_lengths(self, sentences: Sequence[Sequence[int]], most: int, first: int) -> None:
        # Room for its end and, in one sequence, for something to be written.
        most = most if self.longest is None else min(most, self.longest - (2 if self.one_sequence else 1))
        for number, ids in enumerate(sentences, start=first):
            if len(ids) > most:
                raise SaccadeError(
                    f"line {number:,}: a sentence of {len(ids):,} pieces, more than the {most:,} taken; split it"
                    + ("" if self.longest is not None else " or raise search.max_source in the folder's config.yaml")
                )

    def _settings(self, search: dict[str, Any]) -> SearchConfig:
        settings = self.config.with_changes({"search": search}).search if search else self.config.search
        if settings.n_best > settings.beam:
            raise SaccadeError(
                f"search.n_best={settings.n_best} is more than search.beam={settings.beam}; widen the beam"
            )
        return settings

    def limits(self, sources: Sequence[Sequence[int]], settings: SearchConfig) -> list[int]:
        """The most tokens that each source's translation may have, its end counted."""
        made = [int(len(ids) * settings.max_length_factor) + settings.max_length_extra + 1 for ids in sources]
        if self.longest is None:
            return made
        taken = [len(ids) + 1 if self.one_sequence else 0 for ids in sources]
        return [min(limit, self.longest - used) for limit, used in zip(made, taken, strict=True)]

    def _search(self, sources: Sequence[list[int]], settings: SearchConfig) -> list[list[Hypothesis]]:
        self.model.eval()
        batch = collate([(source, []) for source in sources], range(len(sources))).to(self.device)
        limits = torch.tensor(self.limits(sources, settings), device=self.device)
        rules = (*DEFAULT_RULES, forbid(self._line_breaks))
        return generate(self.model, batch.source, batch.source_mask, search_of(settings), limits, rules)

    @torch.inference_mode()
    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        self.model.eval()
        batch = collate(pairs, range(len(pairs))).to(self.device)
        hidden = self.model(batch.source, batch.source_mask, batch.inputs).hidden
        logits = self.model.logits(hidden)
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        of_gold = log_probs.gather(-1, batch.gold.unsqueeze(-1)).squeeze(-1)
        return [float(x) for x in (of_gold * (batch.gold != PAD)).sum(1)]

    def _translation(self, text: str, hypotheses: Sequence[Hypothesis]) -> Translation:
        made = [
            Translation(
                source=text,
                text=self.tokenizers.target.decode(hypothesis.tokens),
                score=hypothesis.log_prob,
                tokens=self.tokenizers.target.pieces(hypothesis.tokens),
                _ids=hypothesis.tokens,
                _translator=self,
            )
            for hypothesis in hypotheses
        ]
        if len(made) > 1:
            made[0].n_best.extend(made)
        return made[0]


def search_of(settings: SearchConfig) -> Search:
    """The search that the settings describe."""
    if settings.beam == 1 and not settings.coverage_penalty:
        return Greedy()
    return Beam(
        settings.beam,
        settings.length_penalty,
        settings.coverage_penalty,
        settings.n_best,
        stop_at_size=settings.early_stopping == "beam",
    )
