"""Groups with members that move between the classic and the consumer protocol: what cannot be seen beside Kafka, and
policies. The rest is in `tests/interop/test_live_migration_like_kafka.py` and `consumer/test_mixed_histories.py`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.coordinator.classic_context import GROUP, ClassicContext

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as h

TOPIC = TopicImage(name="in", topic_id=UUID(int=7), partitions=4)
READS = (("range", encode_subscription(Subscription(topics=("in",)))),)
ALL = tuple(("in", number) for number in range(4))


class Mixed(ClassicContext):
    """A topic "in" of four partitions; consumers besides."""

    def __init__(self, **settings: object) -> None:
        given = {"initial_rebalance_delay_ms": 0, "consumer_assignment_interval_ms": 0, **settings}
        super().__init__(**given)
        self.image = MetadataImage(version=1, topics={"in": TOPIC})
        self._load()

    def beat(self, member_id: str, epoch: int = 0, instance: str | None = None) -> Any:
        """The answer, or the CoordinatorError."""
        is_join = epoch == 0
        request = h.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,  # type: ignore[arg-type]
            member_id=member_id,
            member_epoch=epoch,  # type: ignore[arg-type]
            instance_id=instance,
            rebalance_timeout=from_ms(20_000 if is_join else -1),
            subscribed_topic_names=("in",) if is_join else None,  # type: ignore[arg-type]
            topic_partitions=() if is_join else None,
        )
        return self.answers[
            self.ask(lambda context: self.shard.consumer_group_heartbeat(request, context, now_ms=self.now_ms), 1)
        ]

    def alone(self, *, user_data: bytes = b"", **fields: Any) -> str:
        """A classic member that has everything, its id."""
        member_id = self.admitted(**self.joins(**fields))
        token = self.join(member_id, **self.joins(**fields))
        self.sleep(self.configuration.initial_rebalance_delay_ms)
        generation = self.answers[token].generation_id
        share = encode_assignment(Assignment(partitions=ALL, user_data=user_data))
        self.sync(member_id, generation, {member_id: share})
        return member_id

    @staticmethod
    def joins(**fields: Any) -> dict[str, Any]:
        return {"protocols": READS, "protocol_type": "consumer", **fields}

    @property
    def group(self) -> Any:
        return self.shard.group(GROUP)

    def error(self, answer: Any) -> str:
        code = getattr(answer, "code", None) or answer.error_code
        return str(code.name)

    def check_replay(self) -> None:
        assert self.replayed().digest() == self.shard.digest()


def test_a_group_before_its_first_generation_is_upgraded() -> None:
    group = Mixed(initial_rebalance_delay_ms=3_000)
    member_id = group.admitted(**group.joins())
    token = group.join(member_id, **group.joins())
    assert group.code(token) == "waits"
    assert group.beat("a").member_epoch == 2
    assert group.code(token) == "rebalance_in_progress"
    assert isinstance(group.group, ConsumerGroup)
    assert sorted(group.group.members) == sorted([member_id, "a"])
    group.check_replay()


@pytest.mark.parametrize("name", ["range", "cooperative-sticky"])
def test_user_data_that_nobody_reads_is_not_in_the_way(name: str) -> None:
    """As librdkafka's leaders send it."""
    group = Mixed()
    group.alone(user_data=b"\x00\x00\x00\x00", protocols=((name, READS[0][1]),))
    assert group.error(group.beat("a")) == "none"
    assert isinstance(group.group, ConsumerGroup)
    group.check_replay()


def test_user_data_of_somebody_s_own_assignor_is() -> None:
    group = Mixed()
    group.alone(user_data=b"mine", protocols=(("mine", READS[0][1]),))
    assert group.error(group.beat("a")) == "group_id_not_found"
    assert isinstance(group.group, ClassicGroup)


def test_failed_append_leaves_the_group_unchanged() -> None:
    group = Mixed()
    first = group.alone()
    token = group.join(group.admitted(**group.joins()), **group.joins())
    group.log.refuses = True
    assert group.error(group.beat("a")) == "coordinator_not_available"
    assert group.code(token) == "waits"
    assert isinstance(group.group, ClassicGroup)
    group.log.refuses = False
    group.beat("a")
    assert group.code(token) == "rebalance_in_progress"
    group.log.refuses = True
    assert group.error(group.beat("a", -1)) == "coordinator_not_available"
    assert isinstance(group.group, ConsumerGroup)
    group.log.refuses = False
    assert group.error(group.beat("a", -1)) == "none"
    assert isinstance(group.group, ClassicGroup)
    assert group.heartbeat(first, 2) == "rebalance_in_progress"
    group.check_replay()


@pytest.mark.parametrize(
    ("policy", "may_go_up", "may_go_down"),
    [
        ("bidirectional", True, True),
        ("UPGRADE", True, False),
        ("Downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_policies(policy: str, may_go_up: bool, may_go_down: bool) -> None:
    group = Mixed(consumer_migration_policy=policy)
    member_id = group.alone()
    assert (group.error(group.beat("a")) == "none") is may_go_up
    assert isinstance(group.group, ConsumerGroup) is may_go_up
    assert group.leave(member_id) == "none"
    if may_go_up:
        group.beat("a", -1)
    group.beat("b")
    assert isinstance(group.group, ConsumerGroup), "an empty group always moves"
    token = group.join(**group.joins(version=3))
    assert (group.code(token) == "inconsistent_group_protocol") is (policy == "disabled")
    group.beat("b", -1)
    assert isinstance(group.group, ClassicGroup) is may_go_down
    group.check_replay()


def test_a_restart_in_the_middle() -> None:
    group = Mixed()
    member_id = group.alone(session_ms=10_000)
    epoch = group.beat("a").member_epoch
    group.restart()
    assert group.heartbeat(member_id, 1) == "rebalance_in_progress"
    token = group.join(member_id, **group.joins())
    generation = group.answers[token].generation_id
    assert generation == epoch
    assert len(decode_assignment(group.answers[group.sync(member_id, generation)].assignment).partitions) == 2
    group.restart()
    for _ in range(2):
        group.sleep(9_000)
        assert group.heartbeat(member_id, generation) == "none"
    group.sleep(10_001)
    assert "a" in group.group.members
    assert member_id not in group.group.members, "its own session, not the consumers' one of 45 s"
    group.check_replay()


def test_a_member_that_cannot_be_downgraded_keeps_nobody_from_leaving() -> None:
    group = Mixed()
    member_id = group.alone()
    group.beat("a")
    common = (("other", b"\x00\x00"), ("range", b""))
    token = group.join(member_id, **group.joins(protocols=(READS[0], *common[:1])))
    assert group.code(token) == "none"
    unreadable = (("other", READS[0][1]), ("range", b""))
    second = group.join("q", **group.joins(protocols=unreadable))
    assert group.code(second) == "none"
    third = group.join(member_id, **group.joins(protocols=(("range", READS[0][1]),)))
    assert group.code(third) == "none"
    assert group.error(group.beat("a", -1)) == "none"
    assert isinstance(group.group, ConsumerGroup)
    assert "a" not in group.group.members
    group.check_replay()


def test_all_left_while_the_group_rebalances() -> None:
    group = Mixed()
    first = group.alone()
    group.join(group.admitted(**group.joins()), **group.joins())
    for member_id in [first, *(each for each in group.membership.members if each != first)]:
        group.leave(member_id)
    group.beat("a")
    assert list(group.group.members) == ["a"]
    group.check_replay()


def test_a_classic_member_that_becomes_a_consumer_need_not_join() -> None:
    group = Mixed()
    member_id = group.alone(rebalance_ms=5_000)
    epoch = group.beat("a").member_epoch
    assert group.heartbeat(member_id, 1) == "rebalance_in_progress"
    assert group.beat(member_id).member_epoch == epoch
    for _ in range(3):
        group.sleep(4_000)
        group.beat(member_id, epoch)
    assert member_id in group.group.members
