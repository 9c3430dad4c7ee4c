"""Deletion of committed rows from repartition topics, every few seconds. Their retention time is unlimited."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from headrace.client.admin import Admin
from headrace.errors import BrokerError, CannotConnect
from headrace.spark.runtime.tasks import RunningTask

__all__ = ["RepartitionPurge"]

log = logging.getLogger("headrace.spark")
INTERVAL_S = 5.0


class RepartitionPurge:
    """Periodic DeleteRecords requests for one subtopology, which reads `topics`. Mutable."""

    def __init__(self, admin: Admin, topics: frozenset[str]) -> None:
        self._admin, self._topics = admin, topics
        self._last = time.monotonic()

    def purge_if_due(self, tasks: Iterable[RunningTask]) -> None:
        """Delete the rows before the positions of `tasks`. A failed request is repeated later."""
        if not self._topics or time.monotonic() - self._last < INTERVAL_S:
            return
        self._last = time.monotonic()
        read = {
            where: at for task in tasks for where, at in task.positions.items() if where[0] in self._topics and at > 0
        }
        if read:
            try:
                self._admin.delete_records(read)
            except (BrokerError, CannotConnect) as error:
                log.warning("%s were not purged: %s", ", ".join(sorted(self._topics)), error)
