"""Pages of the exporter: the text of the last collection for any number of scrapes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, Selection
from headrace.cli.exporter.snapshot_families import CollectionHealth, health_families, snapshot_families
from headrace.cli.exporter.snapshot_history import SnapshotHistory
from headrace.cli.exporter.snapshot_loop import SnapshotLoop
from headrace.errors import HeadraceError
from headrace.metrics.prometheus_text import prometheus_text

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["Collector"]

logger = logging.getLogger("headrace.exporter")

# Old values are shown for so many intervals while collections fail; then the page has only the exporter's own health,
# so that an alert on a lag does not rest on values of an hour ago.
STALE_INTERVALS = 3


class Collector:
    """Collects on a thread and serves pages from memory. Mutable.

    A scrape never sends a request to the cluster, so the load on the cluster depends on the interval alone.
    """

    def __init__(
        self,
        open_admin: Callable[[], Admin],
        selection: Selection,
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Collect nothing yet.

        Args:
            open_admin: Called for the first collection and after each failed one.
            selection: Groups and topics to report.
            interval_seconds: From the beginning of one collection to that of the next.
            clock: Seconds that only go forward.
        """
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._history = SnapshotHistory()
        self._lock = threading.Lock()
        self._health = CollectionHealth()
        self._text = ""
        self._collected_at: float | None = None
        self._loop = SnapshotLoop(
            open_admin,
            selection,
            interval_seconds=interval_seconds,
            logger=logger,
            on_snapshot=self._add,
            on_failure=self._count_failure,
            clock=clock,
        )

    def run(self, stop: threading.Event) -> None:
        """Collect until `stop` is set."""
        self._loop.run(stop)

    def collect(self) -> HeadraceError | None:
        """Collect once; return the error of a collection that failed."""
        return self._loop.collect()

    def _add(self, _: Admin, snapshot: ClusterSnapshot, seconds: float) -> None:
        ended = self._clock()
        now_ms = int(ended * 1000)
        self._history.add(snapshot, now_ms)
        text = prometheus_text(snapshot_families(snapshot, self._history, now_ms))
        with self._lock:
            self._health.is_up, self._health.seconds = True, seconds
            self._health.succeeded += 1
            self._text, self._collected_at = text, ended

    def _count_failure(self, _: HeadraceError, seconds: float) -> None:
        with self._lock:
            self._health.is_up, self._health.seconds = False, seconds
            self._health.failed += 1

    def page(self) -> str:
        """Return the text of `/metrics`."""
        with self._lock:
            age = None if self._collected_at is None else self._clock() - self._collected_at
            fresh = age is not None and (self._health.is_up or age <= STALE_INTERVALS * self._interval_seconds)
            text = self._text if fresh else ""
            return text + prometheus_text(health_families(self._health, age if fresh else None))

    def close(self) -> None:
        """Close the connections."""
        self._loop.close()
