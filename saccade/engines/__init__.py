"""Engines: what looks for translations. Ids go in, hypotheses come out; text stays with the Translator."""

from collections.abc import Callable, Sequence
from typing import Protocol

from saccade.config import SearchConfig
from saccade.generation.orders import Job
from saccade.generation.search import Hypothesis

ENGINES = ("auto", "torch", "ctranslate2")

Progress = Callable[[int], None]  # called with how many sentences are done


class Engine(Protocol):
    """A way to run a model."""

    name: str

    def obstacle(self, settings: SearchConfig) -> str | None:
        """The first setting, as `search.key=value`, that it cannot do; None: it can do them all."""

    def search(
        self,
        jobs: Sequence[Job],
        settings: SearchConfig,
        progress: Progress | None = None,
        scored: bool = True,
    ) -> list[list[Hypothesis]]:
        """For each sentence its hypotheses, the best first, in the order of the jobs.

        `scored=False`: the log-probabilities may be a little off the model's own, if that saves time.
        """
