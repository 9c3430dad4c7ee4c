"""A consumer group across restarts, upgrades and changes of its type."""

from __future__ import annotations

from tests.coordinator.consumer.consumer_histories import GROUP
from tests.coordinator.consumer.heartbeat_scripts import join, refused, world

from headrace.coordinator.records.schemas import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult
from headrace.protocol.error_codes import ErrorCode


def test_a_group_is_heard_again_after_a_restart() -> None:
    """Sessions begin anew, an open revocation ends in time."""
    w = world()
    join(w, "a", "in")
    join(w, "b", "in")
    w.beat("a", 2)
    w.sleep(4_000)
    w.shard = w.fresh()
    w.sleep(4_900)
    assert w.beat("b", 3).error_code is ErrorCode.none
    w.sleep(200)
    group = w.group()
    assert group is not None
    assert list(group.members) == ["b"]
    w.sleep(8_000)
    assert not group.members


def test_empty_consumer_group_converts_to_classic_but_not_to_streams() -> None:
    w = world()
    join(w, "a", "in")
    w.beat("a", -1)
    assert refused(w.shard._registry.streams_group_to_join, GROUP) is ErrorCode.group_id_not_found
    _, records = w.shard._registry.classic_group_to_join(GROUP)
    assert [type(record.key).__name__ for record in records][-1] == "ConsumerGroupMetadataKey"
    w.apply(CoordinatorResult(records=records))
    assert w.shard.group(GROUP) is None


def test_records_of_brokers_before_4_1_are_removed_with_the_next_epoch() -> None:
    w = world()
    join(w, "a", "in")
    old = CoordinatorRecord(
        key=ConsumerGroupPartitionMetadataKey(group_id=GROUP), value=ConsumerGroupPartitionMetadataValue()
    )
    w.apply(CoordinatorResult(records=(old,)))
    w.shard = w.fresh()
    join(w, "b", "in")
    group = w.group()
    assert group is not None
    assert group.partition_metadata is None
