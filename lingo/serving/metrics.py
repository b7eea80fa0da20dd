"""The numbers of a server, as a page that Prometheus reads."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counts of requests, their seconds, sizes of batches, and requests in progress."""

    def __init__(self, model: str) -> None:
        disable_created_metrics()  # no time of creation beside each number
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "lingo_requests",  # the page adds _total
            "Requests for predictions.",
            ("signature", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "lingo_request_seconds",
            "From the head to the answer.",
            ("signature",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.batches = Histogram(
            "lingo_batch_examples",
            "Examples of a batch.",
            ("signature",),
            buckets=_EXAMPLES,
            registry=registry,
        )
        self.waiting = Gauge(
            "lingo_queue_requests", "Requests in no batch yet.", ("signature",), registry=registry
        )
        running = Gauge(
            "lingo_running_requests", "Requests in progress.", ("model",), registry=registry
        )
        self.running = running.labels(model)

    def count(self, signature: str, *, status: int, seconds: float) -> None:
        """Counts a request that was answered; "" is the signature of one that names none."""
        self._requests.labels(signature, status).inc()
        self._seconds.labels(signature).observe(seconds)

    def page(self) -> str:
        """Returns the text of all numbers."""
        return generate_latest(self._registry).decode()
