"""All that one stage of one slot writes during one micro-batch: one producer, with the slot's identity if it has one.

Within a transaction a partition takes each sequence number once. Stages of a slot are processes of their own with the
same identity, so a topic that more than one of them writes (`shared_topics` of the plan: a sink of two branches, a
dead-letter topic of two sources) is written at the flush, one stage after the other under a lock, and each goes on
with the numbers where the last one left off. Any other topic has one writer, which sends as it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.client.producer import Producer
from headrace.client.sender import TransactionalIdentity
from headrace.client.transactions import Transactions
from headrace.spark.runtime.worker_process import client_for

if TYPE_CHECKING:
    from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
    from headrace.spark.runtime.batches.stage_reports import StageReports

__all__ = ["SlotProducer"]

TopicPartition = tuple[str, int]


class SlotProducer:
    """Mutable: a producer, and what waits for the flush."""

    def __init__(self, plan: MicroBatchPlan, slot: SlotPlan, stage_reports: StageReports) -> None:
        self._plan, self._slot, self._stage_reports = plan, slot, stage_reports
        self._client = client_for(plan.bootstrap_servers)
        self._options: dict[str, Any] = {"compression": plan.compression}
        self._shared: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        if slot.transactional_id:
            self._options |= self._in_transaction()
        self._producer = Producer(self._client, **self._options)

    def send(self, topic: str, partition: int | None, keys: Any, values: Any, **more: Any) -> None:
        """As `Producer.send`."""
        if self._slot.transactional_id and topic in self._plan.shared_topics:
            self._shared.append(((topic, partition, keys, values), more))
        else:
            self._producer.send(topic, partition, keys, values, **more)

    def flush(self) -> dict[TopicPartition, int]:
        """As `Producer.flush`: everything is stored, though nothing is committed."""
        written = self._producer.flush()
        if self._shared:
            written |= self._flush_shared()
        return written

    def _flush_shared(self) -> dict[TopicPartition, int]:
        with self._stage_reports.sequences(self._slot.slot) as sequences:
            # A producer of its own, begun under the lock with the numbers that the stage before left; its batches are
            # acknowledged before the lock is released.
            producer = Producer(self._client, **self._options, sequences=sequences)
            for positional, named in self._shared:
                producer.send(*positional, **named)
            written = producer.flush()
            sequences.update(producer.next_sequences())
        self._shared = []
        return written

    def _in_transaction(self) -> dict[str, Any]:
        identity = TransactionalIdentity(
            transactional_id=self._slot.transactional_id,
            producer_id=self._slot.producer_id,
            producer_epoch=self._slot.producer_epoch,
        )
        # What is not stored when the transaction is over will never be: no use in trying for longer.
        options: dict[str, Any] = {"identity": identity, "delivery_timeout_ms": self._plan.transaction_timeout_ms}
        # From transaction version 2 on (KIP-890) the first Produce adds the partition to the transaction. Older brokers
        # need AddPartitionsToTxn before.
        if self._plan.transaction_version < 2:
            transactions = Transactions(self._client, version=self._plan.transaction_version)
            options["register"] = lambda partitions: transactions.add_partitions(identity, partitions)
        return options
