"""The loop that takes snapshots of a cluster, one per interval, through outages, and its life in a command."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, Selection, take_snapshot
from headrace.cli.terminal import data
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["SnapshotLoop", "in_url", "serve_while_collecting"]

Served = TypeVar("Served")


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


def serve_while_collecting(
    server: AbstractContextManager[Served],
    collect: Callable[[threading.Event], None],
    announce: Callable[[Served], str],
) -> None:
    """Serve on this thread's behalf and collect on another one, until SIGTERM or Ctrl-C. The log goes to stderr.

    Args:
        server: Serves while it is entered.
        collect: Collects until the event is set.
        announce: Returns the line that is printed when the server is up.
    """
    from headrace.broker.monitoring.log_format import log_to

    log_to(sys.stderr, level="info", log_format="text")
    stop = threading.Event()
    # A daemon: the process does not wait for a collection from a cluster that does not answer.
    thread = threading.Thread(target=collect, args=(stop,), name="headrace-collector", daemon=True)
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with server as served:
            data(announce(served))
            sys.stdout.flush()
            thread.start()
            stop.wait()
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, previous)


def in_url(host: str) -> str:
    """Return a host as URLs have it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
