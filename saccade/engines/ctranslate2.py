"""CTranslate2 as an engine: the weights that `saccade export` handed over, searched by its own beam.

Its beam follows the same hypotheses as ours: of the best 2K continuations those among the first K that end are
collected, and the best K that do not go on. Where the two differ is settled here:

- It divides by |Y|^α, we by ((5 + |Y|) / 6)^α (Wu et al. 2016, eq. 14). It is asked for many hypotheses, and they are
  ranked again by ours. It hands out `patience` · K of those it has collected, which may be K - 1 more; with α / 2,
  which is near ours for a few words, the best of ours is not among those that it drops.
- It stops when `patience` · K have ended. For `early_stopping=beam` that is our own rule. `safe` goes on until no other
  can overtake, which it can only be asked for if α = 0; else it is given twice the patience. How often a translation
  then is another than torch's is counted when the export is verified.
- It has one length limit for a batch, we have one for each sentence, and it cuts where we end. Of a sentence that came
  to its limit greedy search has all tokens but the end, which is ours to put; with a beam it is translated again by
  torch. So is one that is longer than the export's positions, and one that has a prefix, phrases or words of its own.
- That no n-gram is written twice it can see to as we do. With a beam the two were not compared, so that goes to torch.
- A token that may not be written is taken out before its softmax and after ours, so its log-probabilities are a little
  too high. Those that are reported are computed anew, by its own forced decoding.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from saccade.config import SearchConfig
from saccade.data.tokenizers import BOS, PAD, Tokenizers
from saccade.engines import Engine, Progress
from saccade.engines.pytorch import by_tokens, longest_first
from saccade.errors import SaccadeError
from saccade.export.ctranslate2 import POSITIONS, library
from saccade.generation.orders import Job
from saccade.generation.search import Beam, Hypothesis

# What it can do, in the words of the settings; any other setting must be at its default.
KNOWN = {"beam", "n_best", "length_penalty", "early_stopping", "max_length_factor", "max_length_extra", "max_source"}
KNOWN |= {"batch_tokens", "max_length"}
KNOWN |= {"mbr", "guard", "length_ratio", "protect", "terms", "split"}  # what comes before and after the search
KNOWN |= {"groups", "diversity", "temperature", "top_k", "top_p", "min_p", "typical", "seed"}  # of other methods
KNOWN |= {"degeneration_penalty"}
KNOWN_GREEDY = {"no_repeat_ngram"}
PATIENCE = 2.0  # for `early_stopping=safe`
BATCH_TOKENS = 1024  # beyond it batches get no faster on a CPU, and small ones keep all workers busy to the end
NEARLY_ZERO = 1e-6  # a length penalty of 0 would let it stop at the first ending


class CTranslate2Engine:
    """An export, loaded. `never_written` are ids of the target; `fallback` translates what it cannot."""

    name = "ctranslate2"

    def __init__(
        self,
        export: Path,
        tokenizers: Tokenizers,
        never_written: Sequence[int],
        fallback: Engine,
        device: torch.device,
    ) -> None:
        self._fallback = fallback
        self._source, self._target = tokenizers.source.symbols, tokenizers.target.symbols
        self._ids = {symbol: id for id, symbol in enumerate(self._target)}
        self._suppressed = [[self._target[id]] for id in (PAD, BOS, *never_written)]
        # One thread a worker: several batches at once are faster than one batch on several threads.
        workers = torch.get_num_threads() if device.type == "cpu" else 1
        try:
            self._translator = library().Translator(
                str(export),
                device=device.type,
                device_index=device.index or 0,
                inter_threads=workers,
                intra_threads=1,
                max_queued_batches=-1,
            )
        except (RuntimeError, ValueError) as error:
            raise SaccadeError(f"{export}: CTranslate2 cannot load it ({error}); export the folder again") from None

    @property
    def computes_in(self) -> str:
        """The arithmetic that it chose: what the export has, or the nearest that the machine is fast at."""
        return str(self._translator.compute_type)

    def obstacle(self, settings: SearchConfig) -> str | None:
        for name, field in SearchConfig.model_fields.items():
            value = getattr(settings, name)
            known = name in KNOWN or (name in KNOWN_GREEDY and settings.beam == 1)
            if not known and value != field.get_default(call_default_factory=True):
                return f"search.{name}={value}"
        # Then what ends late wins often, and no patience is sure to last until it does.
        if settings.beam > 1 and settings.early_stopping == "safe" and settings.length_penalty > 1:
            return f"search.length_penalty={settings.length_penalty} with search.early_stopping=safe"
        return None

    def search(
        self,
        jobs: Sequence[Job],
        settings: SearchConfig,
        progress: Progress | None = None,
        scored: bool = True,
    ) -> list[list[Hypothesis]]:
        results, effort = self._results(jobs, settings, progress)
        found: list[list[Hypothesis]] = [[]] * len(jobs)
        cut = []
        for i, result in results:
            found[i] = self._hypotheses(result, jobs[i].limit, settings, effort)
            if not found[i] and settings.beam == 1:
                found[i] = [self._cut(result, jobs[i].limit)]
                cut.append(i)
        # The score of what was cut counts what is not there any more.
        self._score(jobs, found, range(len(jobs)) if scored else cut)
        for i in cut:
            found[i] = [hypothesis._replace(score=hypothesis.log_prob) for hypothesis in found[i]]
        again = [i for i, hypotheses in enumerate(found) if not hypotheses]
        if again:
            for i, hypotheses in zip(again, self._fallback.search([jobs[i] for i in again], settings), strict=True):
                found[i] = hypotheses
        return found

    def searched(
        self,
        jobs: Sequence[Job],
        settings: SearchConfig,
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """What its own search finds, with its own log-probabilities; nothing for a sentence that it cannot do."""
        results, effort = self._results(jobs, settings, progress)
        found: list[list[Hypothesis]] = [[]] * len(jobs)
        for i, result in results:
            found[i] = self._hypotheses(result, jobs[i].limit, settings, effort)
        return found

    def _results(
        self,
        jobs: Sequence[Job],
        settings: SearchConfig,
        progress: Progress | None = None,
    ) -> tuple[Iterator[tuple[int, Any]], "Effort"]:
        """What it says to the sentences that it can do, by their place among the jobs."""
        effort = Effort.of(settings)
        sources, limits = [job.source for job in jobs], [job.limit for job in jobs]
        fits = [i for i in longest_first(sources) if _fits(jobs[i])]
        running = []
        for batch in by_tokens(fits, sources, min(settings.batch_tokens, BATCH_TOKENS)):
            limit = max(limits[i] for i in batch)
            running.append((batch, self._start([sources[i] for i in batch], limit, settings, effort)))

        def arriving() -> Iterator[tuple[int, Any]]:
            done = 0
            for batch, results in running:
                for i, result in zip(batch, results, strict=True):
                    yield i, result.result()
                done += len(batch)
                if progress is not None:
                    progress(done)

        return arriving(), effort

    def _start(self, sources: Sequence[list[int]], limit: int, settings: SearchConfig, effort: "Effort") -> list[Any]:
        """Hand over a batch; the results come later."""
        name = self._source
        started: list[Any] = self._translator.translate_batch(
            [[name[id] for id in source] for source in sources],
            asynchronous=True,
            beam_size=settings.beam,
            no_repeat_ngram_size=settings.no_repeat_ngram,
            num_hypotheses=effort.hypotheses,
            patience=effort.patience,
            length_penalty=effort.divided,
            max_decoding_length=limit,
            min_decoding_length=0,
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=self._suppressed,
            return_end_token=True,
            return_scores=True,
        )
        return started

    def _hypotheses(self, result: Any, limit: int, settings: SearchConfig, effort: "Effort") -> list[Hypothesis]:
        """What was found, ranked as ours are; nothing if the search came to the limit, where we would have ended."""
        lengths = [len(symbols) for symbols in result.hypotheses]
        if max(lengths) >= limit:
            return []
        ids, ours, made = self._ids, Beam(1, settings.length_penalty), []
        for symbols, score, length in zip(result.hypotheses, result.scores, lengths, strict=True):
            log_prob = score * length**effort.divided
            ranked = ours.divide(log_prob, length) if settings.beam > 1 else log_prob
            made.append(Hypothesis([ids[symbol] for symbol in symbols[:-1]], log_prob, float(ranked)))
        made.sort(key=lambda hypothesis: -hypothesis.score)
        return made[: settings.n_best]

    def _cut(self, result: Any, limit: int) -> Hypothesis:
        """Of a greedy search that came to the limit, what we have when we end there."""
        (symbols,) = result.hypotheses
        return Hypothesis([self._ids[symbol] for symbol in symbols[: limit - 1]], 0.0, 0.0)

    def score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """log P(target | source) of each pair of ids, the end counted."""
        if not pairs:
            return []
        source, target = self._source, self._target
        scored = self._translator.score_batch(
            [[source[id] for id in ids] for ids, _ in pairs],
            [[target[id] for id in ids] for _, ids in pairs],
            max_batch_size=BATCH_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [sum(result.log_probs) for result in scored]

    def _score(self, jobs: Sequence[Job], found: list[list[Hypothesis]], which: Iterable[int]) -> None:
        """Put the model's own log-probabilities in place, for some of the sentences."""
        places = [(i, n) for i in which for n in range(len(found[i]))]
        scores = self.score([(jobs[i].source, found[i][n].tokens) for i, n in places])
        for (i, n), log_prob in zip(places, scores, strict=True):
            found[i][n] = found[i][n]._replace(log_prob=log_prob)


def _fits(job: Job) -> bool:
    """Whether the export has the positions for it, and it is told nothing of its own."""
    told = job.order.prefix or job.order.must or job.order.allowed is not None
    return len(job.source) < POSITIONS and job.limit <= POSITIONS and not told


class Effort(NamedTuple):
    """How long it searches, how much it hands out and by what power of the length it divides."""

    patience: float = 1.0
    hypotheses: int = 1
    divided: float = 0.0

    @classmethod
    def of(cls, settings: SearchConfig) -> "Effort":
        safe = settings.early_stopping == "safe"
        if settings.beam == 1 or (safe and settings.length_penalty == 0 and settings.n_best == 1):
            return cls()  # without a length penalty it stops when the best of all has ended: proved, as ours
        patience = PATIENCE if safe else 1.0
        return cls(patience, round(settings.beam * patience), settings.length_penalty / 2 or NEARLY_ZERO)
