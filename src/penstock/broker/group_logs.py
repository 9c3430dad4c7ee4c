"""A partition of `__consumer_offsets` as the log of a coordinator shard: Kafka's own keys and values."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence

from penstock.broker.cluster_metadata import TopicDescription
from penstock.broker.configuration import BrokerConfiguration
from penstock.broker.partition_logs import AppendRefused, PartitionLogs, end_of
from penstock.broker.shard_runner import AppendFailed, RecordLog
from penstock.coordinator.configuration import GroupCoordinatorConfiguration
from penstock.coordinator.records import serde
from penstock.coordinator.result import CoordinatorRecord
from penstock.protocol.record_batches import PlainRecord, decode_records, encode_batch

__all__ = ["GroupMetadataLogs", "coordinator_configuration"]

READ_BYTES = 5 * 1024 * 1024


def coordinator_configuration(configuration: BrokerConfiguration) -> GroupCoordinatorConfiguration:
    """The settings that were given, under Kafka's names; the coordinator has Kafka's defaults itself."""
    return GroupCoordinatorConfiguration.from_settings(dict(configuration.values))


class GroupMetadataLogs:
    """Opens the logs of the shards; a partition comes to the disk with its first record."""

    def __init__(self, logs: PartitionLogs, topic: TopicDescription) -> None:
        self._logs = logs
        self._topic = topic

    def existing(self) -> list[int]:
        return [partition for partition in range(self._topic.partitions) if self._logs.exists(self._topic, partition)]

    def open(self, partition: int) -> RecordLog:
        return _GroupMetadataLog(self._logs, self._topic, partition)

    def wait_for_flush(self, partition: int) -> bool:
        return self._logs.wait_for_flush(self._topic, partition)

    def flushed(self, partition: int) -> Awaitable[None]:
        return self._logs.flushed(self._topic, partition)


class _GroupMetadataLog:
    """One shard's log."""

    def __init__(self, logs: PartitionLogs, topic: TopicDescription, partition: int) -> None:
        self._logs = logs
        self._topic = topic
        self._partition = partition

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        plain = [
            PlainRecord(
                key=serde.encode_key(record.key),
                value=None if record.value is None else serde.encode_value(record.value),
                timestamp_ms=now_ms,
            )
            for record in records
        ]
        # Kafka's coordinator batches carry no producer id, but base sequence 0.
        batch = encode_batch(plain, base_sequence=0)
        try:
            self._logs.append(self._topic, self._partition, batch, origin="coordinator")
        except AppendRefused as refused:
            raise AppendFailed(refused.message) from refused

    def read_all(self) -> Iterator[CoordinatorRecord]:
        view = self._logs.view(self._topic, self._partition)
        position = view.log_start_offset
        while position < view.high_watermark:
            chunk = view.read(position, READ_BYTES)
            if not chunk:
                return
            for record in decode_records(chunk):
                decoded = serde.decode(record.key, record.value) if record.key is not None else None
                if decoded is not None and record.offset >= position:
                    yield decoded
            position = max(end_of(chunk), position + 1)
