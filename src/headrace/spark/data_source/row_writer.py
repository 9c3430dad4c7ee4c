"""Rows of a task as records, in a transaction that stays open; runs in Spark's Python workers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.client.sender import TransactionalIdentity
from headrace.client.transactions import Transactions, transaction_version
from headrace.errors import ConfigError, HeadraceError, RecordError
from headrace.spark.data_source.commit_record import TaskTransaction, transactional_id_of
from headrace.spark.data_source.commit_steps import Batch, TaskReport, plan_task
from headrace.spark.data_source.log_positions import open_client
from headrace.spark.data_source.sink_options import SinkOptions
from headrace.spark.data_source.sink_transactions import read_record

__all__ = ["RowWriter", "write_task"]

_log = logging.getLogger(__name__)
# Spark cuts batches by rows. Encoding a few at a time makes small record batches, because rows of all partitions are
# mixed: 64,000 rows of 16 partitions are 4,000 in each.
ENOUGH_ROWS: Final = 64_000
ENOUGH_BYTES: Final = 8 << 20
ABORT_MS: Final = 2000


def write_task(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, batch: Batch, *, task: int, attempt: int
) -> TaskReport:
    """Write the rows of one task and leave the transaction open for the driver.

    Args:
        batches: The rows.
        options: Of the query.
        batch: What is written.
        task: Number of the Spark partition.
        attempt: Number of Spark's attempt.

    Raises:
        BrokerError: `topic-missing`, `record-too-large`, `not-authorized` …
        SinkError, Fenced: See `plan_task`.
        RecordError: `record-invalid`.
    """
    rows = (each for each in batches if each.num_rows)
    first = next(rows, None)
    if first is None:
        return TaskReport(batch=batch)
    with open_client(options.client) as client:
        found = read_record(client, batch.query_id, options.topic) if batch.is_recorded else None
        step, incarnation = plan_task(None if found is None else found[1], batch)
        if step == "skip":
            # All the same, the rows are consumed: a stateful operator in the same task keeps its state only then.
            deque(rows, maxlen=0)
            return TaskReport(batch=batch, incarnation=incarnation, skipped=True)
        mine = TaskTransaction(task=task, attempt=attempt, producer_id=-1, producer_epoch=-1)
        transactions = Transactions(
            client, transaction_timeout_ms=options.transaction_timeout_ms, version=transaction_version(client)
        )
        identity = begin(transactions, transactional_id_of(batch.query_id, incarnation, batch.run_id, mine), options)
        try:
            writer = RowWriter(client, transactions, identity, options)
            writer.write(first)
            for each in rows:
                writer.write(each)
            writer.flush()
        except BaseException:
            # Else readers of committed records would wait for the time-out of the transaction.
            with contextlib.suppress(HeadraceError):
                transactions.end([identity], commit=False, timeout_ms=ABORT_MS)
            raise
    return TaskReport(
        batch=batch,
        incarnation=incarnation,
        transaction=TaskTransaction(
            task=task, attempt=attempt, producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
        ),
        topics=tuple(sorted(writer.topics)),
        records=writer.records,
    )


def begin(transactions: Transactions, transactional_id: str, options: SinkOptions) -> TransactionalIdentity:
    """Return a fresh identity; an earlier attempt with the id is fenced, and its transaction aborted.

    Raises:
        ConfigError: `bad-value`: the broker does not allow the time-out.
        BrokerError: Other refusals.
    """
    found = transactions.initialise([transactional_id])[transactional_id]
    if isinstance(found, TransactionalIdentity):
        return found
    if found.facts.get("kafka_name") == "INVALID_TRANSACTION_TIMEOUT":
        raise ConfigError(
            "bad-value",
            f"Invalid kafka.transaction.timeout.ms {options.transaction_timeout_ms}: the brokers allow less.",
            "Set it to at most the brokers' transaction.max.timeout.ms.",
            key="kafka.transaction.timeout.ms",
        ) from found
    raise found


class RowWriter:
    """Writer of Arrow batches with the columns of Spark's Kafka sink. Mutable: waiting rows, and what was written."""

    def __init__(
        self,
        client: NetworkClient,
        transactions: Transactions,
        identity: TransactionalIdentity,
        options: SinkOptions,
    ) -> None:
        """Args:
        client: Used alone until `flush` has returned.
        transactions: With the cluster's transaction.version.
        identity: Of the transaction.
        options: Of the query.
        """
        more: dict[str, Any] = {}
        # From transaction version 2 on (KIP-890) the first Produce adds a partition to the transaction.
        if not transactions.renews_identities:
            more["register"] = lambda partitions: transactions.add_partitions(identity, partitions)
        self._client = client
        self._topic = options.topic
        self._producer = Producer(
            client,
            compression=options.compression,
            identity=identity,
            max_batch_bytes=options.max_request_bytes,
            delivery_timeout_ms=min(options.transaction_timeout_ms, 120_000),
            **more,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.records = 0
        self.topics: set[str] = set()

    def write(self, batch: pa.RecordBatch) -> None:
        """Queue rows; send them once there are enough."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ENOUGH_ROWS or self._bytes >= ENOUGH_BYTES:
            self._send_waiting()

    def flush(self) -> None:
        """Wait until the brokers have stored everything."""
        if self._waiting:
            self._send_waiting()
        self._producer.flush()

    def _send_waiting(self) -> None:
        [batch] = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
        self._waiting, self._rows, self._bytes = [], 0, 0
        for topic, rows in self._by_topic(batch):
            self.topics.add(topic)
            for partition, part in self._by_partition(topic, rows):
                self._send(topic, partition, part)
        self.records += batch.num_rows

    def _send(self, topic: str, partition: int | None, rows: pa.RecordBatch) -> None:
        names = rows.schema.names
        if "headers" in names and (named := rows.column("headers").flatten()) and named.field("key").null_count:
            raise RecordError("record-invalid", f"A row for {topic} has a header without a key.", "Name each header.")
        self._producer.send(
            topic,
            partition,
            _binary(rows.column("key")) if "key" in names else None,
            _binary(rows.column("value")),
            timestamps_ms=_timestamps_ms(rows.column("timestamp")) if "timestamp" in names else None,
            headers=rows.column("headers") if "headers" in names else None,
        )

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        # As in Spark, the option comes before the column.
        if self._topic:
            yield self._topic, rows
            return
        column = rows.column("topic")
        if column.null_count:
            raise RecordError(
                "record-invalid",
                "A row has null in the column topic.",
                'Fill the column, or name the topic of all rows: .option("topic", "NAME").',
            )
        topics = pc.unique(column).to_pylist()
        for topic in topics:
            yield topic, rows if len(topics) == 1 else rows.filter(pc.equal(column, topic))

    def _by_partition(self, topic: str, rows: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        if "partition" not in rows.schema.names or rows.column("partition").null_count == rows.num_rows:
            yield None, rows
            return
        column = rows.column("partition")
        count = len(self._client.known_topics([topic]).topics[topic].partitions)
        bounds = pc.min_max(column).as_py()
        if bounds["min"] < 0 or bounds["max"] >= count:
            wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
            raise RecordError(
                "record-invalid",
                f"A row names partition {wrong} of {topic}, which has the partitions 0 to {count - 1}.",
                "Correct the column partition; rows with null in it are placed by their keys.",
            )
        numbers = column.fill_null(-1).to_numpy(zero_copy_only=False)
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        for number, indices in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            yield None if number < 0 else number, rows if len(found) == 1 else rows.take(pa.array(indices))


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _timestamps_ms(column: pa.Array) -> Any:
    micros = column.cast(pa.int64())
    now = int(time.time() * 1_000_000)
    # Rounded down, as Kafka's clients do for times before 1970 as well.
    return np.floor_divide(micros.fill_null(now).to_numpy(zero_copy_only=False), 1000)
