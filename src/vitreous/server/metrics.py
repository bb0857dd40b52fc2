"""What the server has done, as text for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

BUCKET_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds


class Counts:
    """Requests by route and status with their seconds, and images answered. Nothing that a client sent is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._within: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._images = 0

    def add(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, status] += 1
            within = self._within.setdefault(route, [0] * len(BUCKET_SECONDS))
            for i, edge in enumerate(BUCKET_SECONDS):
                within[i] += seconds <= edge
            self._seconds[route] = self._seconds.get(route, 0.0) + seconds

    def add_images(self, count: int) -> None:
        with self._lock:
            self._images += count

    def text(self, *, waiting: int, held: int, limit: int) -> str:
        with self._lock:
            lines = list(self._lines(waiting, held, limit))
        return "\n".join(lines) + "\n"

    def _lines(self, waiting: int, held: int, limit: int) -> Iterator[str]:
        yield "# HELP vitreous_requests_total Requests answered, by route and status."
        yield "# TYPE vitreous_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield f'vitreous_requests_total{{route="{route}",status="{status}"}} {count}'
        yield "# HELP vitreous_request_seconds From the first byte of a request to the last of its answer."
        yield "# TYPE vitreous_request_seconds histogram"
        for route, within in sorted(self._within.items()):
            total = sum(count for (name, _), count in self._requests.items() if name == route)
            for edge, count in zip(BUCKET_SECONDS, within, strict=True):
                yield f'vitreous_request_seconds_bucket{{route="{route}",le="{edge:g}"}} {count}'
            yield f'vitreous_request_seconds_bucket{{route="{route}",le="+Inf"}} {total}'
            yield f'vitreous_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'vitreous_request_seconds_count{{route="{route}"}} {total}'
        for name, kind, about, value in (
            ("images_total", "counter", "Images answered.", self._images),
            ("waiting", "gauge", "Requests that no worker has begun.", waiting),
            ("held", "gauge", "Requests waiting or in progress.", held),
            ("waiting_limit", "gauge", "Waiting requests above which others are refused.", limit),
        ):
            yield f"# HELP vitreous_{name} {about}"
            yield f"# TYPE vitreous_{name} {kind}"
            yield f"vitreous_{name} {value}"
