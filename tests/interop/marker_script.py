"""WriteTxnMarkers to any broker: stale and fresh epochs of producers and coordinators, at each transaction version.

After each step the partition's producers are described, so that what a refused marker must not change is seen, too.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i8, i16, i32
from tests.interop.transaction_script import Producer, TransactionScript

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.batch_headers import assign_producer
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch

__all__ = ["MarkerScript", "marker_steps"]

PARTITION = 0


class Marker(NamedTuple):
    """What WriteTxnMarkers carries for one transaction."""

    epoch: int
    coordinator_epoch: int = 0
    commit: bool = False
    transaction_version: int = 0


class MarkerScript:
    """Mutable: what one broker answered. Producer ids are made up: markers need no coordinator that knows them."""

    def __init__(self, script: TransactionScript) -> None:
        self.script = script
        self.answers: list[tuple[str, Any]] = []
        self._ids = itertools.count(9_000_000)

    def somebody(self) -> int:
        return next(self._ids)

    def mark(self, producer_id: int, marker: Marker, *, topic: str | None = None, partition: int = PARTITION) -> None:
        w = m.write_txn_markers_request
        version = 2 if marker.transaction_version else 1
        request = w.WriteTxnMarkersRequest(
            markers=(
                w.WritableTxnMarker(
                    producer_id=ProducerId(producer_id),
                    producer_epoch=i16(marker.epoch),
                    transaction_result=marker.commit,
                    topics=(
                        w.WritableTxnMarkerTopic(
                            name=TopicName(topic or self.script.topic), partition_indexes=(i32(partition),)
                        ),
                    ),
                    coordinator_epoch=i32(marker.coordinator_epoch),
                    **({"transaction_version": i8(marker.transaction_version)} if version == 2 else {}),
                ),
            )
        )
        answer = self.script.client.call(Api.WRITE_TXN_MARKERS, request, version)
        told = [
            (part.partition_index, part.error_code.name)
            for each in answer.markers
            for topic_result in each.topics
            for part in topic_result.partitions
        ]
        self._note(f"mark {marker}", told, producer_id)

    def produce(
        self,
        producer: Producer,
        sequence: int,
        *,
        tid: str | None = None,
        version: int = 11,
    ) -> None:
        """One record; transactional with a transactional id."""
        p = m.produce_request
        batch = bytearray(encode_batch([PlainRecord(value=b"v", timestamp_ms=1_760_000_000_000)]))
        assign_producer(batch, producer.id, producer.epoch, sequence, transactional=tid is not None)
        part = p.PartitionProduceData(index=PARTITION, records=bytes(batch))
        request = p.ProduceRequest(
            transactional_id=None if tid is None else self.script.name(tid),
            acks=-1,
            timeout=from_ms(10_000),
            topic_data=(p.TopicProduceData(name=self.script.topic, partition_data=(part,)),),
        )
        answer = self.script.client.call(Api.PRODUCE, request, version).responses[0].partition_responses[0]
        offset = answer.base_offset >= 0
        self._note(
            f"produce {producer.epoch} {sequence} {tid} {version}", (answer.error_code.name, offset), producer.id
        )

    def _note(self, step: str, told: Any, producer_id: int) -> None:
        d = m.describe_producers_request
        topic = d.TopicRequest(name=self.script.topic, partition_indexes=(i32(PARTITION),))
        answer = self.script.client.call(Api.DESCRIBE_PRODUCERS, d.DescribeProducersRequest(topics=(topic,)))
        (part,) = answer.topics[0].partitions
        states = [
            (each.producer_epoch, each.last_sequence, each.coordinator_epoch, each.current_txn_start_offset >= 0)
            for each in part.active_producers
            if each.producer_id == producer_id
        ]
        self.answers.append((step, (told, states)))


def marker_steps(s: MarkerScript) -> None:
    _epochs(s)
    _coordinators(s)
    _version_2(s)
    _in_the_midst(s)
    _elsewhere(s)


def _epochs(s: MarkerScript) -> None:
    who = s.somebody()
    s.mark(who, Marker(epoch=3))
    s.mark(who, Marker(epoch=3, commit=True))
    s.mark(who, Marker(epoch=2))
    s.mark(who, Marker(epoch=5))
    s.mark(who, Marker(epoch=4, commit=True))
    s.produce(Producer(who, 4), 0)
    s.produce(Producer(who, 5), 0)
    s.produce(Producer(who, 6), 0)
    s.produce(Producer(who, 6), 1)
    s.mark(who, Marker(epoch=5))
    s.mark(who, Marker(epoch=6))
    s.produce(Producer(who, 6), 2)
    s.mark(who, Marker(epoch=-1))
    s.mark(s.somebody(), Marker(epoch=-1))


def _coordinators(s: MarkerScript) -> None:
    who = s.somebody()
    s.mark(who, Marker(epoch=1, coordinator_epoch=5))
    s.mark(who, Marker(epoch=1, coordinator_epoch=4))
    s.mark(who, Marker(epoch=2, coordinator_epoch=4))
    s.mark(who, Marker(epoch=0, coordinator_epoch=4))
    s.mark(who, Marker(epoch=0, coordinator_epoch=6))
    s.mark(who, Marker(epoch=1, coordinator_epoch=5))
    s.mark(who, Marker(epoch=1, coordinator_epoch=6))
    s.mark(who, Marker(epoch=1, coordinator_epoch=-1))
    s.mark(s.somebody(), Marker(epoch=1, coordinator_epoch=-1))
    s.produce(Producer(who, 1), 0)
    s.mark(who, Marker(epoch=2, coordinator_epoch=5))


def _version_2(s: MarkerScript) -> None:
    who = s.somebody()
    for epoch in (3, 3, 2, 4):
        s.mark(who, Marker(epoch=epoch, transaction_version=2))
    s.mark(who, Marker(epoch=4, transaction_version=1))
    s.mark(who, Marker(epoch=5, transaction_version=2, coordinator_epoch=3))
    s.mark(who, Marker(epoch=5, transaction_version=2, coordinator_epoch=2))
    s.mark(who, Marker(epoch=6, transaction_version=2, coordinator_epoch=2))
    s.mark(who, Marker(epoch=6, transaction_version=3, coordinator_epoch=3))


def _in_the_midst(s: MarkerScript) -> None:
    """A transaction is open in the log."""
    open_ = s.script.init("marked")
    s.script.add("marked", open_, PARTITION)
    s.produce(open_, 0, tid="marked")
    s.produce(open_, 1)  # not as a part of it
    s.mark(open_.id, Marker(epoch=open_.epoch, transaction_version=2))
    s.mark(open_.id, Marker(epoch=open_.epoch - 1))
    s.produce(open_, 1, tid="marked")
    s.mark(open_.id, Marker(epoch=open_.epoch + 1, transaction_version=2))
    s.mark(open_.id, Marker(epoch=open_.epoch + 1, transaction_version=2))
    s.produce(open_, 2, tid="marked")
    s.produce(Producer(open_.id, open_.epoch + 1), 1)
    s.produce(Producer(open_.id, open_.epoch + 1), 0)
    behind = s.script.init("behind")
    s.produce(behind, 3, tid="behind", version=12)
    s.produce(behind, 0, tid="behind", version=12)
    s.mark(behind.id, Marker(epoch=behind.epoch))
    ended = s.script.end("behind", behind, commit=False)
    s.produce(ended, 0, tid="behind", version=12)
    s.script.end("behind", ended, commit=True)
    s.produce(ended, 1, tid="behind", version=12)
    s.mark(behind.id, Marker(epoch=ended.epoch))


def _elsewhere(s: MarkerScript) -> None:
    who = s.somebody()
    s.mark(who, Marker(epoch=1), topic="nowhere")
    s.mark(who, Marker(epoch=1), partition=99)
    s.mark(who, Marker(epoch=1), topic="__transaction_state", partition=0)
    group = s.somebody()
    s.mark(group, Marker(epoch=4, coordinator_epoch=2), topic="__consumer_offsets")
    s.mark(group, Marker(epoch=3, coordinator_epoch=2), topic="__consumer_offsets")
    s.mark(group, Marker(epoch=4, coordinator_epoch=1), topic="__consumer_offsets")
    s.mark(group, Marker(epoch=4, coordinator_epoch=2, transaction_version=2), topic="__consumer_offsets")
