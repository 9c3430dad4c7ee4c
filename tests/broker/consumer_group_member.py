"""A consumer of KIP-848 on a socket of its own, for tests in which the clock decides when it heartbeats."""

from __future__ import annotations

from typing import Self

from kio.schema.types import TopicName
from kio.static.primitive import i32, i64
from tests.broker.streams_heartbeats import topic_id
from tests.harness.wire import WireClient

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms

__all__ = ["Member", "run_crash"]


class Member:
    """A member of the group "g" that reads the topic "in". Mutable: what it was assigned."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.client = WireClient(broker.port, client_id=name)
        self.name, self.epoch = name, 0
        self.topic = topic_id(self.client, "in")
        self.assigned: tuple[int, ...] = ()

    def beat(self, epoch: int | None = None) -> None:
        r = m.consumer_group_heartbeat_request
        joins = self.epoch == 0
        owned = (r.TopicPartitions(topic_id=self.topic, partitions=tuple(map(i32, self.assigned))),)
        answer = self.client.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            r.ConsumerGroupHeartbeatRequest(
                group_id="g",  # type: ignore[arg-type]
                member_id=self.name,
                member_epoch=i32(self.epoch if epoch is None else epoch),
                rebalance_timeout=from_ms(60_000) if joins else from_ms(-1),
                subscribed_topic_names=(TopicName("in"),) if joins else None,
                topic_partitions=() if joins else owned,
            ),
        )
        self.epoch = int(answer.member_epoch)
        if answer.assignment is not None:
            self.assigned = tuple(
                sorted(int(p) for each in answer.assignment.topic_partitions for p in each.partitions)
            )

    def commit(self, offset: int) -> None:
        r = m.offset_commit_request
        partitions = tuple(
            r.OffsetCommitRequestPartition(
                partition_index=i32(each), committed_offset=i64(offset), committed_metadata=None
            )
            for each in self.assigned
        )
        answer = self.client.call(
            ApiKey.OFFSET_COMMIT,
            r.OffsetCommitRequest(
                group_id="g",  # type: ignore[arg-type]
                generation_id_or_member_epoch=i32(self.epoch),
                member_id=self.name,
                topics=(r.OffsetCommitRequestTopic(name=TopicName("in"), topic_id=self.topic, partitions=partitions),),
            ),
        )
        assert all(int(p.error_code) == 0 for each in answer.topics for p in each.partitions)

    def leave(self) -> None:
        self.beat(-1)
        self.client.close()

    def close(self) -> None:
        """Vanish without a request."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_crash(broker: EmbeddedBroker) -> None:
    """Two members share four partitions; one crashes, and the other takes over. Needs a `ManualClock`."""
    with Member(broker, "one") as one, Member(broker, "two") as two:
        one.beat()
        two.beat()
        for _ in range(3):
            one.beat()
            two.beat()
        assert len(one.assigned) == len(two.assigned) == 2
        one.commit(10)
        two.commit(10)
        two.close()
        for _ in range(6):
            broker.clock.advance(10)
            one.beat()
            one.beat()
        assert len(one.assigned) == 4
        broker.clock.advance(2)
        one.commit(20)
