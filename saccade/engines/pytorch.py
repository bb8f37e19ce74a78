"""Saccade's own engine: the generation loop over the model."""

from collections.abc import Callable, Iterator, Sequence

from saccade.config import SearchConfig
from saccade.engines import Progress
from saccade.generation.orders import Job
from saccade.generation.search import Hypothesis

WINDOW = 8  # batches' worth of sentences sorted by length, which join those at work as others leave

SearchBatch = Callable[[Sequence[Job]], list[list[Hypothesis]]]


class TorchEngine:
    """Works on sentences of like length together; `searcher` says how they are translated under some settings."""

    name = "torch"

    def __init__(self, searcher: Callable[[SearchConfig], SearchBatch]) -> None:
        self._searcher = searcher

    def obstacle(self, settings: SearchConfig) -> str | None:
        return None

    def search(
        self,
        jobs: Sequence[Job],
        settings: SearchConfig,
        progress: Progress | None = None,
        scored: bool = True,
    ) -> list[list[Hypothesis]]:
        search, sources = self._searcher(settings), [job.source for job in jobs]
        found: list[list[Hypothesis]] = [[]] * len(jobs)
        done = 0
        # What is worked on together is padded to the longest, which one long sentence could make very large.
        for part in by_tokens(longest_first(sources), sources, WINDOW * settings.batch_tokens):
            for i, hypotheses in zip(part, search([jobs[i] for i in part]), strict=True):
                found[i] = hypotheses
            done += len(part)
            if progress is not None:
                progress(done)
        return found


def longest_first(sentences: Sequence[Sequence[int]]) -> list[int]:
    """Their indices, the longest first; those of one length in their order."""
    return sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))


def by_tokens(order: Sequence[int], sentences: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Cut `order`, longest first, into batches of at most `budget` tokens with padding and ends counted."""
    batch: list[int] = []
    for i in order:
        longest = len(sentences[batch[0]]) if batch else len(sentences[i])
        if batch and (len(batch) + 1) * (longest + 1) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def windows(order: Sequence[int], sentences: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Cut `order` into parts of at most `budget` tokens, ends counted, padding not: batches are made of them later."""
    window: list[int] = []
    tokens = 0
    for i in order:
        own = len(sentences[i]) + 1
        if window and tokens + own > budget:
            yield window
            window, tokens = [], 0
        window.append(i)
        tokens += own
    if window:
        yield window
