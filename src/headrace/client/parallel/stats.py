"""Statistics of a parallel consumer as values, and as metric families for Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.metrics.prometheus_text import Family, counter, gauge

__all__ = ["Counts", "PipelineStats", "pipeline_families"]


@dataclass(slots=True)
class Counts:
    """Numbers of records since the start, by outcome. Mutable."""

    polled: int = 0
    done: int = 0
    retried: int = 0
    failed: int = 0
    dropped: int = 0
    known_finished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStats:
    """Statistics of a parallel consumer at one moment.

    Counters count records since the start.

    Attributes:
        buffered: Records polled and not begun.
        in_flight: Records with handlers.
        late: Running handlers whose partition was revoked.
        oldest_in_flight_s: Seconds that the oldest handler has been running.
        known_finished: Records polled again and skipped, because a commit listed them as finished.
        uncommitted: Records finished and not yet committed. Together with `in_flight` the most that a crash repeats.
    """

    assigned_partitions: int = 0
    paused_partitions: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    in_flight: int = 0
    late: int = 0
    uncommitted: int = 0
    oldest_in_flight_s: float = 0.0
    polled: int = 0
    done: int = 0
    retried: int = 0
    failed: int = 0
    skipped: int = 0
    dead_letters: int = 0
    dropped: int = 0
    known_finished: int = 0
    commits: int = 0
    failed_commits: int = 0


_OURS: Final = "headrace:type=parallel-consumer"
_GAUGES: Final = {
    "paused_partitions": "Partitions paused because the buffer, or their share of it, is full.",
    "buffered": "Records polled and not begun.",
    "buffered_bytes": "Bytes of all records polled and not finished.",
    "in_flight": "Records with handlers.",
    "late": "Running handlers whose partition was revoked.",
    "uncommitted": "Records that are finished and not yet committed.",
    "oldest_in_flight_s": "Seconds that the oldest handler has been running.",
}
_COUNTERS: Final = {
    "polled": "Records polled.",
    "done": "Records that handlers finished.",
    "retried": "Records of attempts that failed and were tried again.",
    "failed": "Records whose attempts were used up.",
    "skipped": "Records that were skipped after their last attempt.",
    "dead_letters": "Records that were written to the dead-letter topic after their last attempt.",
    "dropped": "Records that were polled and revoked unprocessed, for their next owner.",
    "known_finished": "Records that were not processed again, because a commit listed them as finished.",
    "commits": "Commits that succeeded.",
    "failed_commits": "Commits that failed.",
}


def pipeline_families(stats: PipelineStats, client_id: str) -> Iterator[Family]:
    """Yield the families `headrace_parallel_consumer_…`; counters end in `_total`.

    They are Headrace's own: Kafka has no such metrics.
    """
    for name, text in _GAUGES.items():
        # Prometheus: the base unit is part of the name.
        attribute = name.replace("_s", "-seconds") if name.endswith("_s") else name
        yield gauge(_OURS, attribute, text, [(float(getattr(stats, name)), {"client_id": client_id})])
    for name, text in _COUNTERS.items():
        yield counter(_OURS, f"{name}-total", text, [(float(getattr(stats, name)), {"client_id": client_id})])
