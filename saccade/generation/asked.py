"""The search that settings describe, and the room it takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from saccade.config import SearchConfig
from saccade.data.batching import Batch
from saccade.errors import SaccadeError
from saccade.generation.contrastive import CANDIDATES, Contrastive
from saccade.generation.diverse import DiverseBeam
from saccade.generation.noise import sentence_streams
from saccade.generation.rerank import Judge
from saccade.generation.sampling import Sample, truncations
from saccade.generation.search import Beam, Greedy, Search

ROWS = 8  # hypotheses of a sentence that `search.batch_tokens` is meant for; where there are more, batches are smaller

# Settings that say nothing to other methods.
OF_METHODS = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical", "seed"), ("sample",)),
    **dict.fromkeys(("groups", "diversity"), ("diverse",)),
    "top_k": ("sample", "contrastive"),
    "degeneration_penalty": ("contrastive",),
}


def check_heard(asked: Mapping[str, Any], settings: SearchConfig) -> None:
    """Refuse what a call asks for (`asked`) and the method would pass over in silence."""
    for name in asked:
        methods = OF_METHODS.get(name, (settings.method,))
        value = getattr(settings, name)
        if settings.method not in methods and value != SearchConfig.model_fields[name].default:
            raise SaccadeError(
                f"search.{name}={value} says nothing with search.method={settings.method}; leave it out, or set "
                f"{' or '.join(f'search.method={method}' for method in methods)}"
            )


def search_of(settings: SearchConfig, batch: Batch) -> Search:
    """The search that the settings describe, for the sources of `batch`."""
    if settings.method == "sample":
        return Sample(
            sentence_streams(batch.source, batch.source_mask, settings.seed),
            settings.n_best,
            settings.temperature,
            truncations(settings.top_k, settings.top_p, settings.min_p, settings.typical),
        )
    if settings.method == "contrastive":
        return Contrastive.of(settings)
    if settings.beam == 1 and not settings.coverage_penalty:
        return Greedy()
    beam = beam_of(settings)
    if settings.method == "diverse":
        return DiverseBeam(beam, settings.groups or settings.beam, settings.diversity)
    return beam


def beam_of(settings: SearchConfig) -> Beam:
    """Beam search as the settings describe it, of one hypothesis too."""
    return Beam(
        settings.beam,
        settings.length_penalty,
        settings.coverage_penalty,
        settings.n_best,
        stop_at_size=settings.early_stopping == "beam",
    )


def pool_of(settings: SearchConfig, judges: Sequence[Judge]) -> SearchConfig:
    """The settings with which candidates are found: as many as there are to choose from, in batches that hold them."""
    if judges and settings.mbr:
        raise SaccadeError(f"search.mbr={settings.mbr} and reranking both choose the answer; leave one of them out")
    if judges and settings.method == "contrastive":
        raise SaccadeError(
            "search.method=contrastive finds one translation, so that reranking has nothing to choose from; "
            "leave one of them out"
        )
    candidates = max(settings.beam, settings.n_best) if judges else settings.mbr or settings.n_best
    if judges and candidates == 1:
        raise SaccadeError(
            "search.beam=1 finds one translation, so that reranking has nothing to choose from; raise it (--beam 5)"
        )
    pool = settings.model_copy(update={"n_best": candidates})
    return pool.model_copy(update={"batch_tokens": settings.batch_tokens * ROWS // max(rows_of(pool), ROWS)})


def rows_of(settings: SearchConfig) -> int:
    """Rows of the model that a sentence takes."""
    of_method = {"sample": settings.n_best, "contrastive": settings.top_k or CANDIDATES}
    return of_method.get(settings.method, settings.beam)
