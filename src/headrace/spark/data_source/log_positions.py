"""Positions in the cluster's logs: partitions of the chosen topics, and the offsets that options stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.errors import ConfigError
from headrace.spark.data_source.offset_ranges import LogBounds, Narrowing, OffsetRange, checked_start
from headrace.spark.data_source.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ClientOptions,
    Position,
    SourceOptions,
    TopicChoice,
)

__all__ = ["LogPositions", "open_client", "opened"]

TopicPartition = tuple[str, int]


def open_client(options: ClientOptions) -> NetworkClient:
    """Return a client with the settings of the options."""
    return NetworkClient(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
        api_timeout_ms=options.api_timeout_ms,
        security=options.security,
    )


class LogPositions:
    """Lookups for one query."""

    def __init__(self, client: NetworkClient, options: SourceOptions) -> None:
        """Args:
        client: Used alone during a call.
        options: The options of the query.
        """
        self._admin = Admin(client)
        self._client = client
        self._options = options

    def partitions(self, *, skip_missing: bool = False) -> dict[TopicPartition, str]:
        """Return the partitions of the chosen topics with their topic ids, empty where the broker has none.

        Args:
            skip_missing: Leave out topics and partitions that do not exist.

        Raises:
            BrokerError: `topic-missing`.
        """
        chosen = self._options.topics
        if chosen.pattern or skip_missing:
            pattern = re.compile(chosen.pattern or "|".join(map(re.escape, _names(chosen))))
            # The whole name, and no internal topic: as Kafka's consumer subscribes to a pattern.
            topics = {name: t for name, t in self._admin.list_topics().items() if pattern.fullmatch(name)}
        else:
            known = self._client.known_topics(_names(chosen), refresh=True).topics
            # The client remembers more topics than these: a stream asks with the same client again and again.
            topics = {name: known[name] for name in _names(chosen)}
        found = {
            (name, partition): str(topics[name].topic_id or "")
            for name in sorted(topics)
            for partition in sorted(topics[name].partitions)
        }
        if not chosen.partitions:
            return found
        if skip_missing:
            return {key: found[key] for key in chosen.partitions if key in found}
        for topic, partition in chosen.partitions:
            if (topic, partition) not in found:
                raise ConfigError(
                    "bad-value",
                    f"Invalid assign: the topic {topic} has no partition {partition}.",
                    "Name partitions that exist.",
                    key="assign",
                )
        return {key: found[key] for key in chosen.partitions}

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Return the bounds of each log; under read_committed the end is the last stable offset."""
        wanted = list(partitions)
        level = self._options.client.isolation_level
        # The end first: a log that is deleted and written in between must not begin behind its end.
        ends = self._admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level=level)
        starts = self._admin.list_offsets(dict.fromkeys(wanted, "earliest"))
        found = {key: LogBounds(at.offset, max(at.offset, ends[key].offset), 0) for key, at in starts.items()}
        # An offset behind the last stable one is no lost record: reading up to it waits for the transaction.
        if level == "read_committed":
            ends = self._admin.list_offsets(dict.fromkeys(wanted, "latest"))
        return {key: replace(each, end=max(each.latest, ends[key].offset)) for key, each in found.items()}

    def offsets(self, position: Position, bounds: Mapping[TopicPartition, LogBounds]) -> dict[TopicPartition, int]:
        """Return the offset that a position means in each partition of `bounds`.

        Args:
            position: Of an option, or a default.
            bounds: Of all partitions of the query.

        Raises:
            ConfigError: `bad-value`: partitions are missing, or do not exist; or no record is at or after a time.
            BrokerError: `offset-out-of-range`: the log does not have the offset.
        """
        if position.kind == "earliest":
            return {key: each.earliest for key, each in bounds.items()}
        if position.kind == "latest":
            return {key: each.latest for key, each in bounds.items()}
        if position.kind == "timestamp":
            return self._by_time(dict.fromkeys(bounds, position.timestamp_ms), bounds, position)
        if position.kind == "committed":
            found = self._admin.list_group_offsets(self._options.group_id, list(bounds), require_stable=True)
            # Without a commit the group has read nothing.
            given = {key: found[key].offset if key in found else each.earliest for key, each in bounds.items()}
        else:
            _check_complete(position, bounds)
            if position.kind == "timestamps":
                return self._by_time(position.by_partition, bounds, position)
            ends = {EARLIEST_OFFSET: "earliest", LATEST_OFFSET: "latest"}
            given = {
                key: getattr(bounds[key], ends[offset]) if offset in ends else offset
                for key, offset in position.by_partition.items()
            }
        fail = self._options.fail_on_data_loss
        return {key: checked_start(key, given[key], bounds[key], fail_on_data_loss=fail) for key in bounds}

    def narrowed(self, ranges: Iterable[OffsetRange], narrowing: Narrowing) -> list[OffsetRange]:
        """Return the ranges without offsets that no row behind the filters can have."""
        kept = narrowing.apply(ranges)
        if narrowing.timestamp_ms is None or not kept:
            return kept
        wanted = {(each.topic, each.partition): narrowing.timestamp_ms for each in kept}
        found = self._admin.list_offsets(wanted)
        shortened = []
        for each in kept:
            first = found[each.topic, each.partition].offset
            # -1: no record of the partition is that young.
            if 0 <= first < each.end:
                shortened.append(replace(each, start=max(each.start, first)))
        return shortened

    def _by_time(
        self,
        times: Mapping[TopicPartition, int],
        bounds: Mapping[TopicPartition, LogBounds],
        position: Position,
    ) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(times, isolation_level=self._options.client.isolation_level)
        offsets = {}
        for (topic, partition), each in bounds.items():
            offset = found[topic, partition].offset
            if offset < 0 and not position.or_latest:
                raise ConfigError(
                    "bad-value",
                    f"{topic}-{partition} has no record at or after {position.option} {times[topic, partition]}.",
                    'Set an earlier time, or .option("startingOffsetsByTimestampStrategy", "latest").',
                    key=position.option,
                )
            offsets[topic, partition] = each.latest if offset < 0 else min(max(offset, each.earliest), each.latest)
        return offsets


@contextmanager
def opened(options: SourceOptions) -> Iterator[LogPositions]:
    """Lookups through a client of their own, which is closed at the end."""
    with open_client(options.client) as client:
        yield LogPositions(client, options)


def _names(chosen: TopicChoice) -> tuple[str, ...]:
    return chosen.names or tuple(dict.fromkeys(topic for topic, _ in chosen.partitions))


def _check_complete(position: Position, bounds: Mapping[TopicPartition, LogBounds]) -> None:
    given = position.by_partition
    for what, partitions in (
        ("lacks", sorted(bounds.keys() - given.keys())),
        ("names, but the query does not read,", sorted(given.keys() - bounds.keys())),
    ):
        if partitions:
            raise ConfigError(
                "bad-value",
                f"{position.option} {what} {', '.join(f'{topic}-{number}' for topic, number in partitions[:5])}.",
                "Name every partition that is read; -2 is the earliest and -1 the latest offset.",
                key=position.option,
            )
