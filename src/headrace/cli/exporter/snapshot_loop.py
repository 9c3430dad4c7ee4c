"""The loop that takes snapshots of a cluster, one per interval, through outages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, Selection, take_snapshot
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["SnapshotLoop"]


class SnapshotLoop:
    """Takes snapshots on one thread and passes each to its receiver. Mutable.

    Readers of the results never send a request to the cluster, so its load depends on the interval alone.
    """

    def __init__(
        self,
        open_admin: Callable[[], Admin],
        selection: Selection,
        *,
        interval_seconds: float,
        logger: logging.Logger,
        on_snapshot: Callable[[Admin, ClusterSnapshot, float], None],
        on_failure: Callable[[HeadraceError, float], None],
        least_rest: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Collect nothing yet.

        Args:
            open_admin: Called for the first collection and after each failed one.
            selection: Groups and topics to read.
            interval_seconds: From the beginning of one collection to that of the next.
            logger: Logger of the beginning and the end of an outage.
            on_snapshot: Called with the client, the snapshot and the seconds of its collection. Its HeadraceError
                counts as a failed collection.
            on_failure: Called with the error and the seconds of a failed collection.
            least_rest: Least pause behind a collection, as a share of its time.
            clock: Seconds that only go forward.
        """
        self._open_admin = open_admin
        self._selection = selection
        self._interval_seconds = interval_seconds
        self._logger = logger
        self._on_snapshot = on_snapshot
        self._on_failure = on_failure
        self._least_rest = least_rest
        self._clock = clock
        self._admin: Admin | None = None
        self._is_up = False
        self._failures = 0

    def run(self, stop: threading.Event) -> None:
        """Collect until `stop` is set."""
        while not stop.is_set():
            begun = self._clock()
            self.collect()
            ended = self._clock()
            stop.wait(max(begun + self._interval_seconds - ended, (ended - begun) * self._least_rest, 0.0))
        self.close()

    def collect(self) -> HeadraceError | None:
        """Collect once; return the error of a collection that failed."""
        begun = self._clock()
        was_up = self._is_up
        try:
            if self._admin is None:
                self._admin = self._open_admin()
            snapshot = take_snapshot(self._admin, self._selection)
            self._on_snapshot(self._admin, snapshot, self._clock() - begun)
        except HeadraceError as error:
            # A new client starts from the bootstrap addresses: all brokers may have moved.
            self.close()
            self._is_up = False
            self._failures += 1
            self._on_failure(error, self._clock() - begun)
            # Once per outage: a process beside a stopped cluster must not fill the log.
            level = logging.WARNING if was_up or self._failures == 1 else logging.DEBUG
            self._logger.log(level, "Collection failed: %s; retrying in %g s.", error.message, self._interval_seconds)
            return error
        self._is_up = True
        if not was_up and self._failures:
            self._logger.info("Collections succeed again.")
        return None

    def close(self) -> None:
        """Close the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
