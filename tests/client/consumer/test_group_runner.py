"""Our consumers in groups of our own broker, in both protocols; the same and more on Apache Kafka in tests/interop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.consumer.group_listeners import EVERY, poll_for_ever
from tests.client.running_consumers import RunningConsumer, write_forty_records
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.polling import wait_until

from headrace.assignors.kafka_assignors import RangeAssignor
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.membership.group_events import SubscriptionPattern
from headrace.errors import BrokerError, ConfigError, Fenced

broker = broker_fixture(
    {"t": 4, "beside": 1}, config=CLASSIC_GROUPS_WITHOUT_DELAYS, scope="module", setup=write_forty_records
)


@pytest.mark.parametrize(
    ("protocol", "strategy"), [("consumer", None), ("classic", "range"), ("classic", "cooperative-sticky")]
)
def test_members_share_and_take_over(broker: EmbeddedBroker, protocol: str, strategy: str | None) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.protocol": protocol, "heartbeat.interval.ms": 200}
    more: dict[str, Any] = {
        "config": settings,
        "group_id": f"share-{protocol}-{strategy}",
        "partition_assignment_strategy": strategy,
    }
    with RunningConsumer("t", **more) as first:
        wait_until(lambda: first.assigned == EVERY, "the first takes everything")
        with RunningConsumer("t", **more) as second:
            wait_until(lambda: len(first.assigned) == len(second.assigned) == 2, "the two share")
        wait_until(lambda: first.assigned == EVERY, "who stays takes over")
        wait_until(lambda: len(first.read) + len(second.read) >= 40, "everything is read")
    assert not first.errors + second.errors
    assert len({*first.read, *second.read}) == len(first.read) + len(second.read) == 40


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_fenced_consumer_commits_nothing(broker: EmbeddedBroker, protocol: str) -> None:
    """The group is empty then, and the coordinator would take a stranger's commit."""
    group, told = f"gone-{protocol}", list[tuple[object, object]]()
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.protocol": protocol}
    with Consumer(
        "t", group_id=group, enable_auto_commit=False, max_poll_interval_ms=2000, config=settings
    ) as consumer:
        wait_until(lambda: polled(consumer) == EVERY, "it has everything")
        assert [*broker.group(group).members.values()] == [{"t": (0, 1, 2, 3)}]
        consumer.commit({("t", 0): 7})
        wait_until(lambda: broker.group(group).state == "Empty", "without a poll it has left")
        # The coordinator may know before the client has heard its answer.
        with pytest.raises(Fenced, match=r"not a member of gone-|UNKNOWN_MEMBER_ID"):
            consumer.commit({("t", 0): 3})
        consumer.commit({("t", 0): 3}, wait=False, callback=lambda *outcome: told.append(outcome))
        wait_until(lambda: told, "the callback was told")
        assert isinstance(told[0][1], Fenced)
        assert broker.group(group).offsets[("t", 0)] == 7


def polled(consumer: Consumer) -> set[TopicPartition]:
    consumer.poll_records(0.1)
    return set(consumer.assignment())


def test_every_poll_raises_the_fatal_error(broker: EmbeddedBroker) -> None:
    with Consumer("t", group_id="kind", bootstrap_servers=broker.bootstrap_servers, group_protocol="classic") as there:
        while not there.assignment():
            there.poll_records(0.1)
        other = Consumer(
            "t",
            group_id="kind",
            bootstrap_servers=broker.bootstrap_servers,
            group_protocol="classic",
            partition_assignment_strategy="roundrobin",
        )
        with other:
            for _ in range(2):
                with pytest.raises(BrokerError) as raised:
                    poll_for_ever(other)
                assert raised.value.code == "assignors-differ"


class Weighty(RangeAssignor):
    """Says more of itself than a broker takes."""

    name = "weighty"

    def __init__(self, weight_bytes: int) -> None:
        self.weight_bytes = weight_bytes

    def subscription_user_data(self, topics: Sequence[str]) -> bytes:
        return b"x" * self.weight_bytes


WRONG: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "a pattern that is none": (SubscriptionPattern("(["), {}, "heartbeat-refused", "INVALID_REGULAR_EXPRESSION"),
    "a pattern of great length": (SubscriptionPattern("a" * 9_000), {}, "heartbeat-refused", "INVALID_REGULAR_EXP"),
    "a pattern of many states": (SubscriptionPattern("(a{1,99}){1,99}"), {}, "heartbeat-refused", "INVALID_REGULAR"),
    "an assignor that brokers do not have": (
        "t",
        {"config": {"group.remote.assignor": "uniforn"}},
        "heartbeat-refused",
        "UNSUPPORTED_ASSIGNOR",
    ),
    "more user data than a record holds": (
        "t",
        {"group_protocol": "classic", "partition_assignment_strategy": Weighty(2 << 20)},
        "heartbeat-refused",
        "UNKNOWN_SERVER_ERROR",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_subscription_is_raised_and_other_groups_continue(broker: EmbeddedBroker, what: str) -> None:
    topics, settings, code, named = WRONG[what]
    settings_beside = {"bootstrap.servers": broker.bootstrap_servers}
    with RunningConsumer("beside", group_id="beside", config=settings_beside) as beside:
        wait_until(lambda: beside.assigned, "a group beside it")
        with (
            Consumer(
                topics, group_id=f"wrong: {what}", bootstrap_servers=broker.bootstrap_servers, **settings
            ) as wrong,
            pytest.raises(BrokerError) as raised,
        ):
            poll_for_ever(wrong)
        assert raised.value.code == code
        assert named in raised.value.message
        before = len(beside.read)
        broker.produce("beside", [b"late"])
        wait_until(lambda: len(beside.read) > before, "it reads on")
    assert not beside.errors


def test_an_expression_that_would_explode_is_resolved(broker: EmbeddedBroker) -> None:
    """In time that grows with the name, on the broker; what matches is read."""
    broker.create_topics({"a" * 120: 1})
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    with RunningConsumer(SubscriptionPattern("(a*)*(a|aa)+"), group_id="explodes", config=settings) as member:
        wait_until(lambda: member.assigned == {("a" * 120, 0)}, "it is resolved")
    assert not member.errors


def test_the_second_with_one_instance_id_takes_over_in_a_classic_group(broker: EmbeddedBroker) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.protocol": "classic",
        "heartbeat.interval.ms": 200,
    }
    more: dict[str, Any] = {"group_id": "double", "group_instance_id": "one", "config": settings}
    with RunningConsumer("t", **more) as first:
        wait_until(lambda: first.assigned == EVERY, "the first has everything")
        with RunningConsumer("t", **more) as second:
            wait_until(lambda: second.assigned == EVERY, "the second has everything")
            wait_until(lambda: first.errors, "the first hears it")
        assert not second.errors
    error = first.errors[0]
    assert isinstance(error, BrokerError)
    assert error.code == "instance-fenced"


@pytest.mark.parametrize("strategy", ["rang", "range,range", ""])
def test_assignors_that_nobody_knows(strategy: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Consumer("t", group_id="g", group_protocol="classic", partition_assignment_strategy=strategy)
    assert raised.value.code == "bad-value"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_static_members_by_expression_restart_without_a_rebalance(broker: EmbeddedBroker, protocol: str) -> None:
    broker.create_topics({f"{protocol}-{name}": 2 for name in "ab"})
    every = {(f"{protocol}-{name}", number) for name in "ab" for number in range(2)}
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.protocol": protocol, "heartbeat.interval.ms": 200}

    def member(instance_id: str) -> RunningConsumer:
        wanted = re.compile(f"{protocol}-.*") if protocol == "classic" else SubscriptionPattern(f"{protocol}-.*")
        return RunningConsumer(wanted, group_id=f"static-{protocol}", group_instance_id=instance_id, config=settings)

    with member("one") as one:
        wait_until(lambda: one.assigned == every, "one has what matches")
        with member("two") as two:
            wait_until(lambda: len(one.assigned) == len(two.assigned) == 2, "they share")
            had, generation, revoked = two.assigned, one.consumer.generation, one.heard.named("revoked")
        with member("two") as again:
            wait_until(lambda: again.assigned == had, "it is back")
            assert (one.consumer.generation, one.heard.named("revoked")) == (generation, revoked)
            again.stop(leave_group=True)
        wait_until(lambda: one.assigned == every, "for good is for good")
    assert not one.errors + two.errors + again.errors
