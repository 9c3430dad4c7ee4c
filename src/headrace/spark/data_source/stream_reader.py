"""The reader of a streaming query. Spark calls it in one Python process of the driver, and `read` in executors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.client.group_offsets import commit_offsets
from headrace.client.network_client import NetworkClient
from headrace.errors import ConfigError, Fenced, HeadraceError
from headrace.spark.data_source.log_positions import LogPositions, open_client
from headrace.spark.data_source.offset_ranges import OffsetRange, split_ranges
from headrace.spark.data_source.options import LATEST, SourceOptions
from headrace.spark.data_source.stream_offsets import (
    INITIAL,
    StreamOffset,
    begin_positions,
    limit_ends,
    ranges_between,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TopicsStreamReader"]

_log = logging.getLogger(__name__)
TopicPartition = tuple[str, int]


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of a query: ranges of offsets that Spark keeps in its checkpoint."""

    def __init__(self, options: SourceOptions) -> None:
        """Args:
        options: Of the query.
        """
        self._options = options
        self._client: NetworkClient | None = None
        self._newest: dict[str, Any] | None = None
        self._target: dict[TopicPartition, tuple[str, int]] | None = None
        self._last_batch_s: float | None = None
        self._committed: StreamOffset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first batch, which does not say where that begins."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options, which Spark passes to `latestOffset`."""
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the query ends: records that are written from now on are not read."""
        log = self._positions()
        topic_ids = log.partitions(skip_missing=not self._options.fail_on_data_loss)
        self._target = {key: (topic_ids[key], each.latest) for key, each in log.bounds(topic_ids).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or `start` if there is none.

        Raises:
            BrokerError: `offset-out-of-range`, `topic-recreated`, `topic-missing`: records are lost.
            ConfigError: `bad-value`: an option, or the group of `group.id` has members.
        """
        options = self._options
        previous = StreamOffset.parse(start)
        # Spark plans a batch when the one before has finished, so `start` is the end of a finished batch. It calls
        # `commit` one batch late, and with Trigger.AvailableNow not at all for the last one.
        if previous is not None:
            self._commit_to_group(previous)
        log = self._positions()
        # A topic that is missing when the query starts is a wrong name, even without failOnDataLoss.
        topic_ids = log.partitions(skip_missing=previous is not None and not options.fail_on_data_loss)
        # A partition that was created, or created again, after Trigger.AvailableNow began belongs to the next run.
        topic_ids = {key: id_ for key, id_ in topic_ids.items() if self._is_in_target(key, id_)}
        bounds = log.bounds(topic_ids)
        if previous is None:
            begins = log.offsets(options.starting or LATEST, bounds)
        else:
            begins = begin_positions(previous, topic_ids, bounds, fail_on_data_loss=options.fail_on_data_loss)
            _warn_of_losses(previous, begins)
        newest = {key: max(begins[key], each.latest) for key, each in bounds.items()}
        self._newest = StreamOffset(offsets=newest, topic_ids=_by_topic(topic_ids)).as_json()
        if self._target is not None:
            newest = {key: max(begins[key], min(end, self._target[key][1])) for key, end in newest.items()}
        ends = self._limited(begins, newest, limit)
        end = StreamOffset(
            offsets=ends,
            topic_ids=_by_topic(topic_ids),
            starts={
                key: begin for key, begin in begins.items() if previous is None or previous.offsets.get(key) != begin
            },
        )
        if previous is not None and (end.offsets, end.topic_ids) == (previous.offsets, previous.topic_ids):
            return start
        # A query that starts without records still gets a batch, an empty one: it keeps where the query starts.
        self._last_batch_s = time.monotonic()
        return end.as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the logs, which Spark shows in the progress of the query."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch, the same each time the batch runs."""
        last = StreamOffset.parse(end)
        ranges: list[OffsetRange] = [] if last is None else ranges_between(StreamOffset.parse(start), last)
        options = self._options
        return [
            InputPartition(each)
            for each in split_ranges(
                ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        if partition.value is None:
            return iter(())
        # Imported here: the process in the driver needs no decoder.
        from headrace.spark.data_source.range_reader import read_range

        return read_range(partition.value, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` has committed the offsets, or does in the same trigger."""

    def stop(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _commit_to_group(self, last: StreamOffset) -> None:
        """Commit the offsets of a finished batch to the group of the options.

        Raises:
            ConfigError: `bad-value`: the group has members.
        """
        group_id = self._options.group_id
        if not group_id or not last.offsets or last == self._committed:
            return
        ids = {key: UUID(last.topic_ids[key[0]]) for key in last.offsets if last.topic_ids.get(key[0])}
        try:
            commit_offsets(self._opened(), group_id, last.offsets, topic_ids=ids)
            self._committed = last
        except Fenced as error:
            raise ConfigError(
                "bad-value",
                f"Invalid group.id {group_id!r}: the group has members, and they commit its offsets.",
                "Set a group.id that no consumer uses.",
                key="group.id",
            ) from error
        except HeadraceError as error:
            # The offsets in the group show the lag. The query itself goes on from its checkpoint.
            _log.warning("Offset commit failed for the group %s; the next batch commits again: %s", group_id, error)

    def _opened(self) -> NetworkClient:
        if self._client is None:
            self._client = open_client(self._options.client)
        return self._client

    def _positions(self) -> LogPositions:
        return LogPositions(self._opened(), self._options)

    def _is_in_target(self, key: TopicPartition, topic_id: str) -> bool:
        if self._target is None:
            return True
        was = self._target[key][0] if key in self._target else None
        # With failOnDataLoss a topic that was created again is an error, which `begin_positions` raises.
        return was is not None and (was == topic_id or self._options.fail_on_data_loss)

    def _limited(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return dict(ends)
        least, count = options.min_offsets_per_trigger, sum(ends[key] - begin for key, begin in begins.items())
        # With Trigger.AvailableNow no more records would come to reach the minimum. The first batch waits for nothing:
        # it keeps where the query begins.
        if least and count < least and self._target is None and self._last_batch_s is not None:
            waited_s = time.monotonic() - self._last_batch_s
            if waited_s < options.max_trigger_delay_ms / 1000:
                return dict(begins)
        most = options.max_offsets_per_trigger
        return limit_ends(begins, ends, most) if most else dict(ends)


def _by_topic(topic_ids: Mapping[TopicPartition, str]) -> dict[str, str]:
    return {topic: id_ for (topic, _), id_ in topic_ids.items()}


def _warn_of_losses(previous: StreamOffset, begins: Mapping[TopicPartition, int]) -> None:
    for key, offset in previous.offsets.items():
        if begins.get(key) != offset:
            _log.warning(
                "%s-%d: offsets from %d on are lost; going on at %s.", *key, offset, begins.get(key, "no offset")
            )
