"""The small parts under the shard: partition of a group, metadata hash, timers, settings."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import TopicImage, group_hash, topic_hash
from headrace.coordinator.result import CancelTimer, SetTimer, TimerKey, TimerQueue
from headrace.protocol.partitioner import partition_for_group

KEYS = [TimerKey(kind="session", group_id="g", member_id=f"m{number}") for number in range(4)]


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("", 0), ("a", 97 % 50), ("flight-delays", 43), ("polygenelubricants", 0), ("größe-🚀", 49)],
)
def test_the_partition_of_a_group(group_id: str, partition: int) -> None:
    """As a JVM says. "polygenelubricants" hashes to INT_MIN, whose absolute value Kafka calls 0."""
    assert partition_for_group(group_id) == partition


def test_the_metadata_hash_is_kafkas() -> None:
    topic_id = UUID("01234567-89ab-cdef-1122-334455667788")
    topic = TopicImage(name="in", topic_id=topic_id, partitions=4)
    assert topic_hash(topic) == 5518723589746575815
    assert group_hash([topic]) == 1364400081024103826
    assert group_hash([]) == 0
    other = TopicImage(name="a", topic_id=topic_id, partitions=4)
    assert group_hash([topic, other]) == group_hash([other, topic]) != group_hash([topic])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 50)), max_size=40), st.integers(0, 60))
def test_timers_fire_as_a_plain_dict_says(changes: list[tuple[TimerKey, int | None]], now_ms: int) -> None:
    queue = TimerQueue()
    naive: dict[TimerKey, int] = {}
    for key, deadline_ms in changes:
        if deadline_ms is None:
            queue.apply([CancelTimer(key=key)])
            naive.pop(key, None)
        else:
            queue.apply([SetTimer(key=key, deadline_ms=deadline_ms)])
            naive[key] = deadline_ms
        assert queue.next_deadline_ms() == min(naive.values(), default=None)
        assert queue.deadline_ms(key) == naive.get(key)
    due = []
    while (fired := queue.pop_due(now_ms)) is not None:
        due.append(fired)
    expected = sorted((deadline_ms, key.member_id) for key, deadline_ms in naive.items() if deadline_ms <= now_ms)
    assert [key.member_id for key in due] == [member_id for _, member_id in expected]
    assert len(queue) == len(naive) - len(due)


def test_a_session_that_is_renewed_costs_no_memory() -> None:
    queue = TimerQueue()
    for deadline_ms in range(10_000):
        queue.apply([SetTimer(key=KEYS[0], deadline_ms=deadline_ms)])
    assert len(queue._heap) == 1
    assert queue.next_deadline_ms() == 9_999


def test_broker_settings_have_kafkas_names() -> None:
    configuration = GroupCoordinatorConfiguration.from_settings(
        {
            "group.streams.max.session.timeout.ms": "90000",
            "group.streams.session.timeout.ms": "70000",
            "group.streams.num.standby.replicas": 1,
            "log.dirs": "/tmp",
        }
    )
    group = configuration.for_streams_group("g")
    assert (group.session_timeout_ms, group.num_standby_replicas) == (70_000, 1)
    assert (group.heartbeat_interval_ms, group.assignment_interval_ms) == (5_000, 1_000)
    assert group.assignment_configs == (("num.standby.replicas", "1"),)
    with pytest.raises(ValueError, match=r"group\.streams\.max\.size: Value must be at least 1"):
        GroupCoordinatorConfiguration.from_settings({"group.streams.max.size": 0})
    with pytest.raises(ValueError, match=r"Not a number of type INT"):
        GroupCoordinatorConfiguration.from_settings({"group.streams.max.size": "many"})


def test_a_group_has_its_own_settings() -> None:
    configuration = GroupCoordinatorConfiguration().with_group_settings("g", {"streams.num.standby.replicas": "2"})
    assert configuration.for_streams_group("g").num_standby_replicas == 2
    assert configuration.for_streams_group("h").num_standby_replicas == 0


def test_a_stored_group_setting_out_of_bounds_is_clamped() -> None:
    configuration = GroupCoordinatorConfiguration(groups={"g": {"streams.heartbeat.interval.ms": "1", "x": "y"}})
    assert configuration.for_streams_group("g").heartbeat_interval_ms == 5_000
