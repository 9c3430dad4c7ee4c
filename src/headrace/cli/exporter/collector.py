"""The loop of the exporter: a collection per interval, and the page of the last one for any number of scrapes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, Selection, take_snapshot
from headrace.cli.exporter.snapshot_families import CollectionHealth, health_families, snapshot_families
from headrace.cli.exporter.snapshot_history import SnapshotHistory
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
        self._open_admin = open_admin
        self._selection = selection
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._admin: Admin | None = None
        self._history = SnapshotHistory()
        self._lock = threading.Lock()
        self._health = CollectionHealth()
        self._text = ""
        self._collected_at: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Collect until `stop` is set."""
        while not stop.is_set():
            begun = self._clock()
            self.collect()
            stop.wait(max(0.0, begun + self._interval_seconds - self._clock()))
        self.close()

    def collect(self) -> HeadraceError | None:
        """Collect once; return the error of a collection that failed."""
        begun = self._clock()
        failure: HeadraceError | None = None
        snapshot: ClusterSnapshot | None = None
        try:
            if self._admin is None:
                self._admin = self._open_admin()
            snapshot = take_snapshot(self._admin, self._selection)
        except HeadraceError as error:
            failure = error
            # A new client starts from the bootstrap addresses: all brokers may have moved.
            self.close()
        ended = self._clock()
        text = ""
        if snapshot is not None:
            now_ms = int(ended * 1000)
            self._history.add(snapshot, now_ms)
            text = prometheus_text(snapshot_families(snapshot, self._history, now_ms))
        with self._lock:
            was_up, self._health.is_up = self._health.is_up, snapshot is not None
            self._health.seconds = ended - begun
            if snapshot is not None:
                self._health.succeeded += 1
                self._text, self._collected_at = text, ended
            else:
                self._health.failed += 1
        if failure is not None:
            # Once per outage: an exporter beside a stopped cluster must not fill the log.
            level = logging.WARNING if was_up or self._health.failed == 1 else logging.DEBUG
            logger.log(level, "Collection failed: %s; retrying in %g s.", failure.message, self._interval_seconds)
        elif not was_up and self._health.failed:
            logger.info("Collections succeed again.")
        return failure

    def page(self) -> str:
        """Return the text of `/metrics`."""
        with self._lock:
            age = None if self._collected_at is None else self._clock() - self._collected_at
            fresh = age is not None and (self._health.is_up or age <= STALE_INTERVALS * self._interval_seconds)
            text = self._text if fresh else ""
            return text + prometheus_text(health_families(self._health, age if fresh else None))

    def close(self) -> None:
        """Close the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
