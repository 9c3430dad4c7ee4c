"""A parallel consumer's stats as families for Prometheus. They are our own: Kafka has no such thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.client.parallel.work import PipelineStats
from headrace.metrics.prometheus_text import Family, counter, gauge

__all__ = ["pipeline_families"]

_OURS: Final = "headrace:type=parallel-consumer"
_GAUGES: Final = {
    "paused_partitions": "Partitions paused because the buffer, or their share of it, is full.",
    "buffered": "Records polled and not begun.",
    "buffered_bytes": "Bytes of all records polled and not finished.",
    "in_flight": "Records with handlers.",
    "late": "Handlers at work whose partition has gone.",
    "uncommitted": "Records that are finished, and no commit says so yet.",
    "oldest_in_flight_s": "Seconds that the oldest handler has been at work.",
}
_COUNTERS: Final = {
    "polled": "Records polled.",
    "done": "Records that handlers finished.",
    "retried": "Records of attempts that failed and were tried again.",
    "failed": "Records whose attempts were used up.",
    "skipped": "Records that were skipped for that.",
    "dead_letters": "Records that went to the dead-letter topic for that.",
    "dropped": "Records that were polled and given back unprocessed, for their next owner.",
    "known_finished": "Records that were not processed again, since a commit said that they were finished.",
    "commits": "Commits that were stored.",
    "failed_commits": "Commits that were not.",
}


def pipeline_families(stats: PipelineStats, client_id: str) -> Iterator[Family]:
    """`headrace_parallel_consumer_…`, counters with `_total`."""
    for name, text in _GAUGES.items():
        attribute = name.replace("_s", "-seconds") if name.endswith("_s") else name
        yield gauge(_OURS, attribute, text, [(float(getattr(stats, name)), {"client_id": client_id})])
    for name, text in _COUNTERS.items():
        yield counter(_OURS, f"{name}-total", text, [(float(getattr(stats, name)), {"client_id": client_id})])
