"""Documents about topics: the list, and one topic with its partitions and the groups that read it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, PartitionSnapshot
from headrace.cli.ui.offset_series import OffsetSeries, Ring
from headrace.cli.ui.paging import Paging, select_page
from headrace.client.cluster_metadata import TopicMetadata

__all__ = ["topic_document", "topics_document"]

TopicPartition = tuple[str, int]
MOST_GROUPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    topic: TopicMetadata
    offline: int
    under_replicated: int
    records: int
    rate: float | None


def topics_document(
    snapshot: ClusterSnapshot, series: OffsetSeries, paging: Paging, *, include_internal: bool
) -> dict[str, Any]:
    """Return the list of topics.

    Args:
        snapshot: The cluster.
        series: Series of all topics.
        paging: The page.
        include_internal: Whether the topics of coordinators are listed.

    Raises:
        ConfigError: `bad-value` for an unknown column.
    """
    lengths: dict[str, int] = {}
    for (name, _), partition in snapshot.partitions.items():
        lengths[name] = lengths.get(name, 0) + max(0, (partition.end or 0) - (partition.start or 0))
    rows = [
        _Row(
            topic=topic,
            offline=sum(1 for leader in topic.partitions.values() if leader < 0),
            under_replicated=_under_replicated(topic),
            records=lengths.get(name, 0),
            rate=series.rate(series.topics.get(name, Ring())),
        )
        for name, topic in sorted(snapshot.topics.items())
        if include_internal or not topic.internal
    ]

    def document(row: _Row) -> dict[str, Any]:
        return {
            "name": row.topic.name,
            "partitions": len(row.topic.partitions),
            "replicas": max((len(each) for each in row.topic.replicas.values()), default=0),
            "internal": row.topic.internal,
            "offline": row.offline,
            "under_replicated": row.under_replicated,
            "records": row.records,
            "rate": row.rate,
            "rate_series": _rates(series, series.topics.get(row.topic.name)),
        }

    return {
        **select_page(
            rows,
            paging,
            matches=lambda row: row.topic.name,
            columns={
                "topic": lambda row: row.topic.name,
                "partitions": lambda row: len(row.topic.partitions),
                "health": lambda row: (row.offline, row.under_replicated),
                "records": lambda row: row.records,
                "rate": lambda row: row.rate or 0.0,
            },
            document=document,
        ),
        "left_out_partitions": snapshot.left_out_partitions,
    }


def _under_replicated(topic: TopicMetadata) -> int:
    return sum(1 for number, replicas in topic.replicas.items() if len(topic.in_sync.get(number, ())) < len(replicas))


def _rates(series: OffsetSeries, ring: Ring | None) -> list[float]:
    return [] if ring is None else [round(rate, 1) for rate in series.rates(ring)]


def topic_document(
    snapshot: ClusterSnapshot, series: OffsetSeries, topic: TopicMetadata, paging: Paging
) -> dict[str, Any]:
    """Return one topic with a page of its partitions and the groups with committed offsets in it.

    Args:
        snapshot: The cluster.
        series: Series of all topics.
        topic: The topic.
        paging: The page of partitions.

    Raises:
        ConfigError: `bad-value` for an unknown column.
    """
    logs = {number: snapshot.partitions.get((topic.name, number)) for number in sorted(topic.partitions)}
    ring = series.topics.get(topic.name, Ring())

    def rate(number: int) -> float | None:
        return series.rate(series.partitions.get((topic.name, number), Ring()))

    def document(number: int) -> dict[str, Any]:
        log = logs[number]
        return {
            "partition": number,
            "leader": topic.partitions[number],
            "leader_epoch": topic.leader_epochs.get(number),
            "replicas": list(topic.replicas.get(number, ())),
            "in_sync": list(topic.in_sync.get(number, ())),
            "start": None if log is None else log.start,
            "end": None if log is None else log.end,
            "stable_end": None if log is None else log.stable_end,
            "rate": rate(number),
            "rate_series": _rates(series, series.partitions.get((topic.name, number))),
        }

    return {
        "name": topic.name,
        "topic_id": None if topic.topic_id is None else str(topic.topic_id),
        "internal": topic.internal,
        "count": len(topic.partitions),
        "offline": sum(1 for leader in topic.partitions.values() if leader < 0),
        "under_replicated": _under_replicated(topic),
        "records": sum(_length(log) for log in logs.values()),
        "is_selected": any(log is not None for log in logs.values()),
        "rate": series.rate(ring),
        "rate_series": _rates(series, ring),
        "ages_ms": [series.times_ms[-1] - time_ms for time_ms in series.times_ms[-len(ring.values) :]],
        "partitions": select_page(
            logs,
            paging,
            matches=str,
            columns={
                "partition": lambda number: number,
                "leader": lambda number: topic.partitions[number],
                "records": lambda number: _length(logs[number]),
                "rate": lambda number: rate(number) or 0.0,
            },
            document=document,
        ),
        "groups": _groups(snapshot, topic.name),
    }


def _length(log: PartitionSnapshot | None) -> int:
    return 0 if log is None else max(0, (log.end or 0) - (log.start or 0))


def _groups(snapshot: ClusterSnapshot, name: str) -> list[dict[str, Any]]:
    found = []
    for group in snapshot.groups.values():
        own = {key: offset for key, offset in group.committed.items() if key[0] == name}
        if own or any(topic == name for topic, _ in group.inputs):
            found.append(
                {
                    "group_id": group.group_id,
                    "type": group.group_type,
                    "state": group.state,
                    "lag": _lag(own, snapshot.partitions) if own else None,
                }
            )
    return found[:MOST_GROUPS]


def _lag(committed: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, PartitionSnapshot]) -> int:
    total = 0
    for key, offset in committed.items():
        log = logs.get(key)
        if log is not None and log.end is not None:
            total += max(0, log.end - max(offset, log.start or 0))
    return total
