"""Requests about logs that no tool sends: leader epochs, fetch sessions, topic ids, cursors. One script against Apache
Kafka 4.3.1 and against us; every answer the same.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.kafka_broker import KafkaBroker

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch

pytestmark = [pytest.mark.interop, pytest.mark.slow]

NOBODY = uuid.UUID(int=0x1234)
NOW_MS = time.time_ns() // 1_000_000


class Script:
    """What one broker answered, step by step."""

    def __init__(self, port: int) -> None:
        self.client = WireClient(port)
        self.topic = f"log-requests-{uuid.uuid4().hex[:8]}"
        self.topic_id: uuid.UUID | None = self.create(self.topic, 3)
        for at in (100, 300, 200):
            self.produce(0, at)

    def create(self, name: str, partitions: int) -> uuid.UUID:
        c = m.create_topics_request
        topic = c.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
        request = c.CreateTopicsRequest(topics=(topic,), timeout=from_ms(20_000), validate_only=False)
        (made,) = self.client.call(Api.CREATE_TOPICS, request).topics
        assert made.error_code is ErrorCode.none
        empty = [(number, "none", 0, 0, 0, 0, -1) for number in range(partitions)]  # and each has its leader
        parts = [part(number) for number in range(partitions)]
        wait_until(lambda: self.fetch(*parts, topic_id=made.topic_id)[0] == ("none", (), empty))
        return made.topic_id

    def produce(self, partition: int, at: int, topic_id: uuid.UUID | None = None) -> str:
        p = m.produce_request
        data = encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS - 1000 + at)])
        topic = p.TopicProduceData(
            name=self.topic,
            topic_id=topic_id or self.topic_id,
            partition_data=(p.PartitionProduceData(index=partition, records=data),),
        )
        request = p.ProduceRequest(acks=-1, timeout=from_ms(20_000), topic_data=(topic,))
        return self.client.call(Api.PRODUCE, request).responses[0].partition_responses[0].error_code.name

    def fetch(
        self,
        *parts: Any,
        session: tuple[int, int] = (0, -1),
        forget: tuple[int, ...] = (),
        version: int = 18,
        **more: Any,
    ) -> tuple[Any, int]:
        """(what is comparable, the session id)."""
        f = m.fetch_request
        names = {
            "topic": more.pop("topic", self.topic),
            "topic_id": more.pop("topic_id", None) or getattr(self, "topic_id", None),
        }
        request = f.FetchRequest(
            topics=(f.FetchTopic(partitions=parts, **names),) if parts else (),
            forgotten_topics_data=(f.ForgottenTopic(partitions=forget, **names),) if forget else (),
            session_id=session[0],
            session_epoch=session[1],
            max_wait=from_ms(0),
            min_bytes=0,
            **more,
        )
        response = self.client.call(Api.FETCH, request, version)
        told = [
            (
                p.partition_index,
                p.error_code.name,
                p.high_watermark,
                p.last_stable_offset,
                p.log_start_offset,
                len(p.records or b""),
                p.diverging_epoch.end_offset,
            )
            for t in response.responses
            for p in t.partitions
        ]
        return (response.error_code.name, (), told), response.session_id

    # -- steps -----------------------------------------------------------------------------------------------
    def fetches(self) -> Iterator[Any]:
        for version in (4, 7, 12, 13, 18):
            yield self.fetch(part(0), part(1), version=version)[0]
        yield self.fetch(part(0, 3), part(0, 4), part(0, -1))[0]
        yield self.fetch(part(9), part(-1))[0]
        yield self.fetch(part(0), topic_id=NOBODY)[0]
        yield self.fetch(part(0), topic="nobody-made-this", version=12)[0]
        for epoch in (0, 1, 99, -1, -5):
            yield self.fetch(part(0, current_leader_epoch=epoch))[0]
        for epoch in (0, 1, 99):
            yield self.fetch(part(0, 2, last_fetched_epoch=epoch))[0]
        yield self.fetch(part(0, 0, partition_max_bytes=1), part(1))[0]
        yield self.fetch(part(0, 0, partition_max_bytes=0))[0]
        yield self.fetch(part(0), max_bytes=0)[0]
        yield self.fetch(part(0), isolation_level=1)[0]

    def sessions(self) -> Iterator[Any]:
        for wrong in ((0, 5), (77, 1), (77, -2), (-5, 3)):
            yield self.fetch(part(0), session=wrong)[0]
        for version in (7, 12, 13):
            told, session = self.fetch(part(0, 3), part(1), part(2), session=(0, 0), version=version)
            yield told, session > 0
            yield self.fetch(session=(session, 2), version=version)[0]
            told, same = self.fetch(session=(session, 1), version=version)
            yield told, same == session
            yield self.fetch(session=(session, 1), version=version)[0]
            yield self.fetch(part(1, 5), session=(session, 2), version=version)[0]
            yield self.fetch(session=(session, 3), version=version)[0]
            yield self.fetch(part(1, 0), forget=(2,), session=(session, 4), version=version)[0]
            yield self.fetch(part(0, 0), session=(session, 5), version=version)[0]
            yield self.fetch(session=(session, 6), version=version)[0]
            yield self.fetch(session=(session, 7), version=13 if version < 13 else 12)[0]
            yield self.fetch(part(0, 3), session=(session, 7), version=version)[0]
            yield self.produce(1, 400)
            yield self.fetch(session=(session, 8), version=version)[0][2][0][0]
            told, none_left = self.fetch(forget=(0, 1, 2), session=(session, 9), version=version)
            yield told, none_left
            yield self.fetch(session=(session, 10), version=version)[0]
            _, session = self.fetch(part(0), session=(0, 0), version=version)
            told, ended = self.fetch(part(0, 3), session=(session, -1), version=version)
            yield told, ended
            yield self.fetch(session=(session, 1), version=version)[0]
        told, session = self.fetch(session=(0, 0))
        yield told, session > 0

    def leader_epochs(self) -> Iterator[Any]:
        o = m.offset_for_leader_epoch_request
        for version in (2, 3, 4):
            for partition in (0, 2, 9):
                for current in (-1, 0, 1):
                    for epoch in (-1, 0, 1, 99):
                        asked = o.OffsetForLeaderPartition(
                            partition=partition, current_leader_epoch=current, leader_epoch=epoch
                        )
                        topics = (o.OffsetForLeaderTopic(topic=self.topic, partitions=(asked,)),)
                        request = o.OffsetForLeaderEpochRequest(topics=topics)
                        told = self.client.call(Api.OFFSET_FOR_LEADER_EPOCH, request, version).topics[0].partitions[0]
                        yield told.error_code.name, told.leader_epoch, told.end_offset

    def offsets_by_time(self) -> Iterator[Any]:
        o = m.list_offsets_request
        for version in (1, 4, 7, 8, 9, 11):
            for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, NOW_MS - 1000 + 150, NOW_MS + 10**9):
                for partition in (0, 2):
                    asked = o.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                    yield version, timestamp, self.listed(version, asked)
        for current in (0, 1, -5):
            yield self.listed(11, o.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=current))
        yield self.listed(11, o.ListOffsetsPartition(partition_index=9, timestamp=-1))

    def listed(self, version: int, asked: Any) -> Any:
        o = m.list_offsets_request
        topics = (o.ListOffsetsTopic(name=self.topic, partitions=(asked,)),)
        request = o.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout=from_ms(20_000))
        told = self.client.call(Api.LIST_OFFSETS, request, version).topics[0].partitions[0]
        return told.error_code.name, told.timestamp, told.offset, told.leader_epoch

    def deleted_records(self) -> Iterator[Any]:
        d = m.delete_records_request
        for offset in (-2, 99, 1, 0, 2, -1, 3):
            asked = d.DeleteRecordsPartition(partition_index=0, offset=offset)
            topics = (d.DeleteRecordsTopic(name=self.topic, partitions=(asked,)),)
            request = d.DeleteRecordsRequest(topics=topics, timeout=from_ms(20_000))
            told = self.client.call(Api.DELETE_RECORDS, request).topics[0].partitions[0]
            yield offset, told.error_code.name, told.low_watermark
            yield self.fetch(part(0, 0))[0], self.fetch(part(0, 3))[0]
            yield self.listed(11, m.list_offsets_request.ListOffsetsPartition(partition_index=0, timestamp=-2))

    def pages(self) -> Iterator[Any]:
        r = m.describe_topic_partitions_request
        names = [f"{self.topic}{suffix}" for suffix in ("", "-b", "-c")]
        self.create(names[1], 4)

        def page(limit: int, cursor: Any = None, topics: Any = names) -> Any:
            request = r.DescribeTopicPartitionsRequest(
                topics=tuple(r.TopicRequest(name=name) for name in topics),
                response_partition_limit=limit,
                cursor=cursor,
            )
            response = self.client.call(Api.DESCRIBE_TOPIC_PARTITIONS, request)
            told = [
                (
                    (t.name or "").replace(self.topic, "TOPIC"),
                    t.error_code.name,
                    t.is_internal,
                    t.topic_id is not None,
                    t.topic_authorized_operations,
                    [
                        (
                            p.error_code.name,
                            p.partition_index,
                            p.leader_id,
                            p.leader_epoch,
                            p.replica_nodes,
                            p.isr_nodes,
                            p.eligible_leader_replicas,
                            p.last_known_elr,
                            p.offline_replicas,
                        )
                        for p in t.partitions
                    ],
                )
                for t in response.topics
            ]
            after = response.next_cursor
            return told, after and (after.topic_name.replace(self.topic, "TOPIC"), after.partition_index)

        for limit in (-1, 0, 1, 3, 7, 100):
            yield page(limit)
        for name, index in ((names[0], 2), (names[0], 3), (names[0], 9), (names[1], 1), (names[2], 0)):
            yield page(2, r.Cursor(topic_name=name, partition_index=index))
        yield page(2, r.Cursor(topic_name=names[0], partition_index=-1))
        yield page(2, r.Cursor(topic_name="nobody-made-this", partition_index=0))
        yield page(5, topics=["bad name!", names[2]])

    def elections(self) -> Iterator[Any]:
        e = m.elect_leaders_request
        for kind in (0, 1):
            for name, partition in ((self.topic, 0), (self.topic, 9), ("nobody-made-this", 0)):
                topics = (e.TopicPartitions(topic=name, partitions=(partition,)),)
                request = e.ElectLeadersRequest(election_type=kind, topic_partitions=topics)
                response = self.client.call(Api.ELECT_LEADERS, request)
                (told,) = response.replica_election_results[0].partition_result
                yield (
                    response.error_code.name,
                    told.error_code.name,
                    (told.error_message or "").replace(self.topic, "T"),
                )

    def quorum(self) -> Iterator[Any]:
        q = m.describe_quorum_request
        for name, partition in (("__cluster_metadata", 0), ("__cluster_metadata", 1), ("other", 0)):
            topics = (q.TopicData(topic_name=name, partitions=(q.PartitionData(partition_index=partition),)),)
            response = self.client.call(Api.DESCRIBE_QUORUM, q.DescribeQuorumRequest(topics=topics))
            (told,) = response.topics[0].partitions
            voters = [voter.replica_id for voter in told.current_voters]
            yield response.error_code.name, told.error_code.name, told.leader_id, voters, told.observers

    def recreated(self) -> Iterator[Any]:
        """The last step: the topic goes, and comes again under the same name."""
        _, session = self.fetch(part(0, 3), session=(0, 0))
        d = m.delete_topics_request
        state = d.DeleteTopicState(name=self.topic, topic_id=None)
        self.client.call(Api.DELETE_TOPICS, d.DeleteTopicsRequest(topics=(state,), timeout=from_ms(20_000)))
        old_id, self.topic_id = self.topic_id, None
        wait_until(lambda: self.fetch(part(0), topic_id=old_id)[0][2][0][1] == "unknown_topic_id")
        yield self.fetch(session=(session, 1))[0]
        yield self.produce(0, 1, old_id)
        self.topic_id = self.create(self.topic, 3)
        yield self.fetch(session=(session, 2))[0]
        yield self.fetch(part(0), topic_id=old_id)[0]
        yield self.produce(0, 1, old_id)
        yield self.produce(0, 1)
        yield self.fetch(part(0))[0]


STEPS = (
    "fetches",
    "sessions",
    "leader_epochs",
    "offsets_by_time",
    "deleted_records",
    "pages",
    "elections",
    "quorum",
    "recreated",
)


def part(partition: int, offset: int = 0, **more: Any) -> Any:
    fields = {"partition_max_bytes": 1 << 20, **more}
    return m.fetch_request.FetchPartition(partition=partition, fetch_offset=offset, **fields)


def answers(port: int) -> dict[str, list[Any]]:
    script = Script(port)
    try:
        return {step: list(getattr(script, step)()) for step in STEPS}
    finally:
        script.client.close()


@pytest.fixture(scope="module")
def kafkas(kafka: KafkaBroker) -> dict[str, list[Any]]:
    return answers(kafka.port)


@pytest.fixture(scope="module")
def ours() -> dict[str, list[Any]]:
    with EmbeddedBroker() as broker:
        return answers(broker.port)


@pytest.mark.parametrize("step", STEPS)
def test_the_same_answers(step: str, ours: dict[str, list[Any]], kafkas: dict[str, list[Any]]) -> None:
    assert len(ours[step]) == len(kafkas[step])
    for number, (mine, theirs) in enumerate(zip(ours[step], kafkas[step], strict=True)):
        assert mine == theirs, (step, number)
