"""Log of silent partitions, which hold back windows that close by the watermarks of all partitions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.spark.runtime.batches.plan import TaskReport

__all__ = ["SilenceLog", "SilentPartition", "silent_partitions"]

log = logging.getLogger("headrace.spark")
LOG_INTERVAL_S = 60.0
PATIENCE_S = 10.0
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True, order=True)
class SilentPartition:
    """A partition of a source, or a task of an operator, that has sent no watermark for a while."""

    source: str
    partition: int
    silent_ms: int

    @property
    def key(self) -> tuple[str, int]:
        return self.source, self.partition

    def __str__(self) -> str:
        return f"{self.source}-{self.partition}"


def silent_partitions(reports: Iterable[TaskReport]) -> list[SilentPartition]:
    """Return the partitions that hold back windows, as the tasks behind them report: each once, the longest silence."""
    longest: dict[tuple[str, int], int] = {}
    for report in reports:
        for source, partition, silent_ms in report.silent:
            longest[source, partition] = max(silent_ms, longest.get((source, partition), 0))
    return sorted(SilentPartition(source, partition, ms) for (source, partition), ms in longest.items())


class SilenceLog:
    """Logs silent partitions of one subtopology, at most once per minute. Belongs to one thread."""

    def __init__(self, subtopology: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._subtopology, self._clock = subtopology, clock
        self._since_s: dict[tuple[str, int], float] = {}
        self._logged_s: float | None = None

    def add(self, reports: Mapping[int, TaskReport]) -> None:
        """Log the silent partitions of a micro-batch, if there are any and a minute has passed."""
        silent, now_s = silent_partitions(reports.values()), self._clock()
        if not silent:
            return
        # After an outage of all tasks, the first one that is back sees the others as silent. They have this time.
        self._since_s = {one.key: self._since_s.get(one.key, now_s) for one in silent}
        lasting = [one for one in silent if now_s - self._since_s[one.key] >= PATIENCE_S]
        if not lasting or (self._logged_s is not None and now_s - self._logged_s < LOG_INTERVAL_S):
            return
        self._logged_s = now_s
        log.warning(
            "%s: %s no watermark for up to %d s and hold%s back the windows of all other partitions. "
            "Send records to them, or set headrace.watermark.idle.timeout.ms to pass over silent partitions.",
            *_words(self._subtopology, lasting),
        )


def _words(subtopology: str, silent: list[SilentPartition]) -> tuple[Any, ...]:
    named = ", ".join(map(str, silent[:_MOST_NAMED]))
    if len(silent) > _MOST_NAMED:
        named += f" and {len(silent) - _MOST_NAMED} others"
    have, ending = ("has sent", "s") if len(silent) == 1 else ("have sent", "")
    return subtopology, f"{named} {have}", max(one.silent_ms for one in silent) // 1000, ending
