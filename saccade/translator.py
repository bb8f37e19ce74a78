"""A trained model at work: text in, translations out, with where it looked."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import fsum
from typing import Any, overload

import torch

from saccade.config import Config, SearchConfig
from saccade.data.batching import collate
from saccade.data.tokenizers import PAD, Tokenizers
from saccade.engines import Engine
from saccade.engines.pytorch import WINDOW, SearchBatch, TorchEngine, by_tokens, longest_first, windows
from saccade.errors import SaccadeError
from saccade.generation.asked import beam_of, check_heard, pool_of, search_of
from saccade.generation.contrastive import Contrastive
from saccade.generation.ensemble import Ensemble, Mean
from saccade.generation.guard import Guarded, decode_again
from saccade.generation.loop import generate
from saccade.generation.mbr import by_risk
from saccade.generation.orders import Book, Job, Order, Phrases, check_limit, limit_of, orders_of
from saccade.generation.rerank import Judge, rerank
from saccade.generation.search import Hypothesis
from saccade.generation.words import Speller
from saccade.generation.work import Errand
from saccade.looking.look import Look
from saccade.models.build import in_one_sequence, longest_sequence
from saccade.models.protocol import EncoderDecoder
from saccade.text.pipeline import Pipeline
from saccade.translation import Array, Translation, alignment_of

__all__ = ["Translation", "Translator", "alignment_of"]


class Translator:
    """A model with its tokenizers and its settings, and the engine that runs it; of an ensemble, the settings of its
    first."""

    def __init__(
        self,
        config: Config,
        tokenizers: Tokenizers,
        model: EncoderDecoder | Callable[[], EncoderDecoder],
        others: Sequence[Config] = (),
    ) -> None:
        """`model`: a function that loads it will be called when something needs it, which an engine may never do."""
        self.config = config
        self.tokenizers = tokenizers
        self.name = ""  # for titles: that of its folder
        self._given = model
        self._models = [config.model, *(other.model for other in others)]
        self.own_engine = TorchEngine(self._searcher)
        self.engine: Engine = self.own_engine
        self.engine_refused: str | None = None  # why there is no other engine, although there is an export
        self.engine_is_asked_for = False  # so that what it cannot do is refused, rather than done by our own

    @classmethod
    def ensemble(
        cls, translators: Sequence["Translator"], mean: Mean = "probabilities", names: Sequence[str] = ()
    ) -> "Translator":
        """One translator of several with the same vocabulary, whatever their families; `names` are for errors."""
        first, *others = translators
        names = names or [f"translator {number}" for number in range(1, len(translators) + 1)]
        there = first.config.data.source, first.config.data.target
        for other, name in zip(others, names[1:], strict=True):
            back = other.config.data.target, other.config.data.source
            if there == back != back[::-1]:
                raise SaccadeError(
                    f"{name}: translates {back[1]} → {back[0]}, and {names[0]} {there[0]} → {there[1]}: they cannot "
                    "write together; rerank by it, in reverse"
                )
            for side, mine, its in zip(first.tokenizers._fields, first.tokenizers, other.tokenizers, strict=True):
                if not mine.same_as(its):
                    raise SaccadeError(
                        f"{name}: its {side} vocabulary ({its.size:,} pieces) is not that of {names[0]} ({mine.size:,} "
                        "pieces), so they cannot write together; train both on the same files with the same tokenizer "
                        "settings, or rerank by it"
                    )
        model = Ensemble([translator.model.to(first.device) for translator in translators], mean)
        return cls(first.config, first.tokenizers, model.eval(), [other.config for other in others])

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
        obstacle = self.engine.obstacle(self.settings_for(**search))
        if self.engine_refused is not None:
            return f"engine: torch, because {self.engine_refused}"
        return None if obstacle is None else f"engine: torch, because {self.engine.name} cannot do {obstacle}"

    @property
    def longest(self) -> int | None:
        """The most pieces, ends counted, that the model's positions can hold; None: any number."""
        return min((most for model in self._models if (most := longest_sequence(model)) is not None), default=None)

    @property
    def one_sequence(self) -> bool:
        """Whether those positions hold source and target together."""
        return any(in_one_sequence(model) for model in self._models)

    @cached_property
    def _line_breaks(self) -> list[int]:
        """Pieces that would turn one line into two."""
        target = self.tokenizers.target
        return [i for i in range(target.size) if {"\n", "\r"} & set(target.decode([i]))]

    @cached_property
    def _speller(self) -> Speller:
        return Speller(self.tokenizers.target)

    @cached_property
    def _in_bf16(self) -> EncoderDecoder:
        return copy.deepcopy(self.model).to(torch.bfloat16).eval()

    @torch.no_grad()
    def renew(self) -> None:
        """The weights of the model have changed: what was made of them follows, where it is."""
        if "_in_bf16" in self.__dict__:
            for rounded, own in zip(self._in_bf16.parameters(), self.model.parameters(), strict=True):
                rounded.copy_(own)

    @property
    def never_written(self) -> list[int]:
        """Pieces of the target that no translation has, beside the special ones."""
        return self._line_breaks

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @overload
    def translate(self, text: str, *, glossary: Mapping[str, str] | None = None, **told: Any) -> Translation: ...
    @overload
    def translate(
        self, text: list[str], *, glossary: Mapping[str, str] | None = None, **told: Any
    ) -> list[Translation]: ...
    def translate(
        self, text: str | list[str], *, glossary: Mapping[str, str] | None = None, **told: Any
    ) -> Translation | list[Translation]:
        """Translate a text, or a list of them into a list. Keywords are those of `stream`.

        What is too long is split, placeholders and the terms of `glossary` come through (`saccade.text`).
        """
        for_each = {name: told.pop(name) for name in ("prefix", "must", "allowed") if name in told}
        pipeline = Pipeline(self, glossary, **told)
        if isinstance(text, str):
            return next(pipeline.stream([text], **for_each))
        return list(pipeline.stream(text, **for_each))

    def stream(
        self,
        texts: Sequence[str],
        progress: Callable[[int], None] | None = None,
        first: int = 1,
        judges: Sequence[Judge] = (),
        *,
        prefix: str | Sequence[str] | None = None,
        must: Phrases | None = None,
        allowed: Phrases | None = None,
        scored: bool = True,
        **search: Any,
    ) -> Iterator[Translation]:
        """Translations of sentences, in their order, each as soon as it is ready; like lengths are worked on together.

        This is the model alone: nothing is split and nothing put in (`translate` does that).
        `first` is the number by which a sentence that is refused is named, if it is the first. `judges` rerank what
        the search has found. `prefix`: how each translation begins; `must`: phrases that it holds; `allowed`: the words
        whose pieces it may use. They are one for all, or one for each text. `scored=False`: nobody will read the
        scores, which an engine may then leave a little wrong rather than compute them. Other keywords override the
        folder's search settings.
        """
        settings = self.settings_for(**search)
        pool = pool_of(settings, judges)
        jobs = self.told(texts, settings, first, prefix=prefix, must=must, allowed=allowed)
        blank = [not text.strip() for text in texts]
        encoded = [job.source for job in jobs]
        engine = self.engine_for(settings)
        scored = scored or bool(judges) or settings.mbr > 0
        found: dict[int, Guarded] = {}
        done = 0
        by_length = sorted((i for i in range(len(texts)) if not blank[i]), key=lambda i: -len(encoded[i]))
        for batch in windows(by_length, encoded, WINDOW * pool.batch_tokens):
            batch_jobs = [jobs[i] for i in batch]
            answers = [Guarded(answer) for answer in engine.search(batch_jobs, pool, scored=scored)]
            if settings.guard:
                answers = decode_again(batch_jobs, answers, pool, partial(self._search_again, scored=scored))
            several = [answer.hypotheses for answer in answers]
            chosen = self._choose([texts[i] for i in batch], several, settings, judges)
            for i, answer, hypotheses in zip(batch, answers, chosen, strict=True):
                found[i] = answer._replace(hypotheses=hypotheses)
                _check_holds(answer, first + i)
            if progress is not None:
                progress(len(found))
            while done < len(texts) and (blank[done] or done in found):
                yield self._ready(texts[done], found.get(done))
                done += 1
        for i in range(done, len(texts)):
            yield self._ready(texts[i], found.get(i))

    def _search_again(self, jobs: Sequence[Job], settings: SearchConfig, scored: bool) -> list[list[Hypothesis]]:
        """Under stricter settings than were asked for, by the engine if it can do them too."""
        engine = self.own_engine if self.engine.obstacle(settings) else self.engine
        return engine.search(jobs, settings, scored=scored)

    def told(
        self,
        texts: Sequence[str],
        settings: SearchConfig,
        first: int = 1,
        *,
        prefix: str | Sequence[str] | None = None,
        must: Phrases | None = None,
        allowed: Phrases | None = None,
    ) -> list[Job]:
        """Sentences ready to be searched, each with its order; the keywords are those of `stream`."""
        encoded = self.tokenizers.source.encode_batch(list(texts))
        self._check_lengths(encoded, settings.max_source, first)
        orders = orders_of(self._speller, len(texts), settings, prefix, must, allowed)
        limits = [limit_of(ids, order, settings, self._room(ids)) for ids, order in zip(encoded, orders, strict=True)]
        for number, (order, limit) in enumerate(zip(orders, limits, strict=True), start=first):
            check_limit(order, limit, number)
        if settings.method != "beam" and any(order.must for order in orders):
            raise SaccadeError(f"search.must needs beam search; set search.method=beam (now {settings.method})")
        return [Job(*job) for job in zip(encoded, orders, limits, strict=True)]

    def with_order(self, job: Job, order: Order, settings: SearchConfig) -> Job:
        """The same sentence, told something else in ids."""
        return job._replace(order=order, limit=limit_of(job.source, order, settings, self._room(job.source)))

    def translation(self, text: str, answer: Guarded | None, settings: SearchConfig, number: int = 1) -> Translation:
        """What was found for a sentence as a translation of it; None: there was nothing to look for."""
        if answer is None:
            return self._ready(text, None)
        _check_holds(answer, number)
        (chosen,) = self._choose([text], [answer.hypotheses], settings, ())
        return self._ready(text, answer._replace(hypotheses=chosen))

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
        self.check_pairs(pairs)
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
        return self.forced_all([(source, target)])[0]

    def forced_all(self, pairs: Sequence[tuple[str, str]]) -> list[Translation]:
        """`forced` for many pairs."""
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        written = self.tokenizers.target.encode_batch(targets)
        return [
            Translation(source, target, score, self.tokenizers.target.pieces(ids), _ids=ids, _translator=self)
            for source, target, score, ids in zip(sources, targets, self.score(sources, targets), written, strict=True)
        ]

    def attentions(self, source: str, target_ids: Sequence[int]) -> list[Array]:
        """Cross-attention when the model is made to write `target_ids` for `source`."""
        return self._attentions([(self.tokenizers.source.encode(source), list(target_ids))])[0]

    def attend(self, translations: Sequence[Translation]) -> None:
        """Have `attentions` of all of them, in fewer calls of the model than one by one."""
        wanted = [one for one in translations if one._translator is self and one.source.strip()]
        sources = self.tokenizers.source.encode_batch([one.source for one in wanted])
        pairs = [(source, one.ids) for source, one in zip(sources, wanted, strict=True)]
        lengths = [[0] * max(map(len, pair)) for pair in pairs]
        for batch in by_tokens(longest_first(lengths), lengths, self.config.search.batch_tokens):
            for i, found in zip(batch, self._attentions([pairs[i] for i in batch]), strict=True):
                wanted[i].__dict__["attentions"] = found  # where `cached_property` keeps it

    @torch.inference_mode()
    def _attentions(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[Array]]:
        if self.model.training:  # to say it to every part of a model takes as long as a step
            self.model.eval()
        batch = collate(pairs, list(range(len(pairs)))).to(self.device)
        output = self.model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
        layers = [weights.cpu().double().numpy() for weights in output.attentions or ()]
        return [
            [layer[row, :, : len(target) + 1, : len(source) + 1] for layer in layers]
            for row, (source, target) in enumerate(pairs)
        ]

    def inspect(self, text: str, target: str | None = None, **wanted: Any) -> Look:
        """A look at one sentence: pieces, paths, probabilities and the weights of heads.

        Keywords are those of `saccade.analysis.look.look_at`.
        """
        from saccade.analysis.look import look_at  # it knows translators

        return look_at(self, text, target, **wanted)

    def check_pairs(self, pairs: Sequence[tuple[list[int], list[int]]], first: int = 1) -> None:
        """Refuse a pair of ids that is too long for the model; `first` is the number by which the first is named."""
        for side in zip(*pairs, strict=True):
            self._check_lengths(side, self.config.search.max_source, first)
        if self.longest is None or not self.one_sequence:
            return
        for number, (source, target) in enumerate(pairs, start=first):
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

    def settings_for(self, **search: Any) -> SearchConfig:
        """The folder's search settings with some changed; those that do not go together are refused."""
        settings = self.config.with_changes({"search": search}).search if search else self.config.search
        check_heard(search, settings)
        if settings.method == "contrastive":
            Contrastive.of(settings)
        most = ("mbr", settings.mbr) if settings.mbr else ("beam", settings.beam)
        if settings.n_best > most[1] and (settings.mbr or settings.method != "sample"):
            raise SaccadeError(
                f"search.n_best={settings.n_best} is more than search.{most[0]}={most[1]}; "
                f"{'find more candidates' if settings.mbr else 'widen the beam'}"
            )
        if settings.mbr > settings.beam and settings.method != "sample":
            raise SaccadeError(
                f"search.mbr={settings.mbr} is more than search.beam={settings.beam}; "
                "widen the beam or set search.method=sample"
            )
        if settings.max_length and settings.min_length > settings.max_length:
            raise SaccadeError(
                f"search.min_length={settings.min_length} is more than search.max_length={settings.max_length}; "
                "lower the one or raise the other"
            )
        return settings

    def _choose(
        self,
        sources: Sequence[str],
        found: list[list[Hypothesis]],
        settings: SearchConfig,
        judges: Sequence[Judge],
    ) -> list[list[Hypothesis]]:
        """Of what the search has found, the `n_best` by judges or by risk; without them, what it has found."""
        if not settings.mbr and not judges:
            return found
        texts = [[self.tokenizers.target.decode(h.tokens) for h in hypotheses] for hypotheses in found]
        if judges:
            ranked = rerank(sources, found, texts, judges, settings.length_penalty)
        else:
            sampled = settings.method == "sample"
            ranked = [by_risk(hypotheses, of_them, sampled) for hypotheses, of_them in zip(found, texts, strict=True)]
        return [hypotheses[: settings.n_best] for hypotheses in ranked]

    def _room(self, source: Sequence[int]) -> int | None:
        """The most pieces of a translation, its end counted, that the model's positions can hold."""
        if self.longest is None:
            return None
        return self.longest - (len(source) + 1 if self.one_sequence else 0)

    def jobs(self, sources: Sequence[list[int]], settings: SearchConfig) -> list[Job]:
        """Sources in ids that are told nothing of their own."""
        return [Job(ids, Order(), limit_of(ids, Order(), settings, self._room(ids))) for ids in sources]

    def book(self, settings: SearchConfig) -> Book:
        """The rules of the settings."""
        return Book(self._speller, settings, self._line_breaks, self.device)

    def _searcher(self, settings: SearchConfig) -> SearchBatch:
        """How our own engine translates a batch under these settings."""
        return partial(self._search, settings, self.book(settings))

    def errand(
        self, settings: SearchConfig, book: Book, jobs: Sequence[Job], device: torch.device | None = None
    ) -> Errand:
        """Sentences that start together, for the generation loop; `book`: the rules of the settings.

        `device`: where its tensors are (None: the model's).
        """
        device = device or self.device
        batch = collate([(job.source, []) for job in jobs], range(len(jobs)))
        batch = replace(batch, source=batch.source.to(device))
        limits = torch.tensor([job.limit for job in jobs], device=device)
        orders = [job.order for job in jobs]
        search = book.search(search_of(settings, batch), beam_of(settings), orders)
        return Errand(batch.source, batch.source_mask, limits, search, book.for_batch(orders), book.weighings)

    def _search(self, settings: SearchConfig, book: Book, jobs: Sequence[Job]) -> list[list[Hypothesis]]:
        if self.model.training:
            self.model.eval()
        # `generate` looks at shapes and limits before anything goes to a GPU; samples are drawn by what is there.
        host = None if settings.method == "sample" else torch.device("cpu")
        errand = self.errand(settings, book, jobs, host)
        model = self._in_bf16 if settings.precision == "bf16" and self.device.type == "cuda" else self.model
        return generate(
            model,
            errand.source,
            errand.mask,
            errand.search,
            errand.limits,
            errand.rules,
            errand.weighings,
            settings.batch_tokens,
        )

    @torch.inference_mode()
    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        if self.model.training:
            self.model.eval()
        batch = collate(pairs, range(len(pairs))).to(self.device)
        hidden = self.model(batch.source, batch.source_mask, batch.inputs).hidden
        logits = self.model.logits(hidden)
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        of_gold = log_probs.gather(-1, batch.gold.unsqueeze(-1)).squeeze(-1)
        return [fsum(row) for row in (of_gold * (batch.gold != PAD)).tolist()]

    def _ready(self, text: str, answer: Guarded | None) -> Translation:
        # A blank line has nothing to translate and stays what it is.
        return Translation(text, text, 0.0, []) if answer is None else self._translation(text, answer)

    def _translation(self, text: str, answer: Guarded) -> Translation:
        made = [
            Translation(
                source=text,
                text=self.tokenizers.target.decode(hypothesis.tokens),
                score=hypothesis.log_prob,
                tokens=self.tokenizers.target.pieces(hypothesis.tokens),
                notes=list(answer.notes),
                _ids=hypothesis.tokens,
                _translator=self,
            )
            for hypothesis in answer.hypotheses
        ]
        if len(made) > 1:
            made[0].n_best.extend(made)
        return made[0]


def _check_holds(answer: Guarded, number: int) -> None:
    if not answer.holds:
        raise SaccadeError(
            f"line {number:,}: no translation keeps to all that it was told (search.must, banned, shortlist, "
            "no_repeat_ngram, min_length); take something back"
        )
