"""What Prometheus is told."""

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from saccade.serving.server import Server

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters of a server, and gauges that look at it when they are asked."""

    def __init__(self, server: "Server") -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("saccade_requests", "Requests.", ["path", "status"], registry=registry)
        self.seconds = Histogram("saccade_request_seconds", "How long.", ["path"], buckets=SECONDS, registry=registry)
        self.tokens = Counter("saccade_tokens", "Pieces written.", registry=registry)
        self.texts = Counter("saccade_texts", "Texts asked for.", registry=registry)
        self.characters = Counter("saccade_characters", "Characters asked for.", registry=registry)
        self.refused = Counter("saccade_refused", "Requests without an answer.", ["status"], registry=registry)
        self.stopped = Counter("saccade_stopped", "Texts whose work was stopped before its end.", registry=registry)
        looks = {
            "saccade_waiting_sentences": ("Sentences that wait.", lambda: server.waiting),
            "saccade_rows": ("Rows at work.", lambda: server.rows),
            "saccade_requests_at_work": ("Requests at work.", lambda: server.requests),
            "saccade_models_loaded": ("Models in memory.", lambda: len(server.pool.loaded)),
            "saccade_cache_hits": ("Answers that were there.", lambda: server.cache.hits),
            "saccade_cache_misses": ("Answers that were not.", lambda: server.cache.misses),
            "saccade_cache_bytes": ("Memory of recent answers.", lambda: server.cache.size),
        }
        for name, (what, look) in looks.items():
            Gauge(name, what, registry=registry).set_function(look)

    def page(self) -> bytes:
        """All of it, as text."""
        return generate_latest(self.registry)
