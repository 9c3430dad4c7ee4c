"""Offsets expire by age unless a member reads their topic; empty groups without offsets go with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.offset_deletion import OFFSET_EXPIRY
from headrace.coordinator.records import schemas as s
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard

NOW_MS = 1_760_000_000_000
MINUTE_MS = 60_000
CONFIGURATION = GroupCoordinatorConfiguration.from_settings(
    {"offsets.retention.minutes": 10, "offsets.retention.check.interval.ms": 30_000}
)
TOPOLOGY = s.StreamsGroupTopologyValue(
    epoch=0,
    subtopologies=(
        s.Subtopology(
            subtopology_id="0",
            source_topics=("read",),
            repartition_source_topics=(s.TopicInfo(name="repartition", partitions=1),),
        ),
    ),
)


def offset(group: str, topic: str, partition: int, age_minutes: float, *, expires_ms: int = -1) -> CoordinatorRecord:
    value = s.OffsetCommitValue(
        offset=5, commit_timestamp=int(NOW_MS - age_minutes * MINUTE_MS), expire_timestamp=expires_ms
    )
    return CoordinatorRecord(key=s.OffsetCommitKey(group=group, topic=topic, partition=partition), value=value)


def streams_group(group: str, *, members: int) -> list[CoordinatorRecord]:
    metadata = s.StreamsGroupMetadataValue(epoch=3, metadata_hash=1)
    records = [
        CoordinatorRecord(key=s.StreamsGroupMetadataKey(group_id=group), value=metadata),
        CoordinatorRecord(key=s.StreamsGroupTopologyKey(group_id=group), value=TOPOLOGY),
    ]
    for n in range(members):
        key = s.StreamsGroupMemberMetadataKey(group_id=group, member_id=f"m{n}")
        value = s.StreamsGroupMemberMetadataValue(
            client_id="c", client_host="/h", rebalance_timeout_ms=10**9, topology_epoch=0, process_id="p"
        )
        records.append(CoordinatorRecord(key=key, value=value))
    return records


def classic_group(group: str, *, members: int, since_ms: int, protocol_type: str = "consumer") -> CoordinatorRecord:
    member = s.GroupMember(
        member_id="m", client_id="c", client_host="/h", session_timeout_ms=1, subscription=b"", assignment=b""
    )
    value = s.GroupMetadataValue(
        protocol_type=protocol_type, current_state_timestamp=since_ms, members=(member,) * members
    )
    return CoordinatorRecord(key=s.GroupMetadataKey(group=group), value=value)


def loaded(
    *records: CoordinatorRecord, configuration: GroupCoordinatorConfiguration = CONFIGURATION
) -> GroupCoordinatorShard:
    shard = GroupCoordinatorShard(0, configuration, MetadataImage(version=1, topics={}))
    for record in records:
        shard.replay(record)
    # The check itself is due at NOW_MS.
    shard.apply_timers(shard.on_loaded(now_ms=NOW_MS - 30_000).timers)
    return shard


def passed(shard: GroupCoordinatorShard, now_ms: int = NOW_MS) -> list[CoordinatorResult]:
    results = []
    for result in shard.on_timers(now_ms=now_ms):
        results.append(result)
        for record in result.records:
            shard.replay(record)
        shard.apply_timers(result.timers)
    return results


def tombstones(results: list[CoordinatorResult]) -> list[object]:
    """A group with members also does other things in its time."""
    return [record.key for result in results for record in result.records if record.value is None]


def test_an_offset_goes_when_its_retention_is_over_and_not_before() -> None:
    shard = loaded(
        offset("simple", "t", 1, 10),
        offset("simple", "t", 0, 10),
        offset("simple", "t", 2, 9.999),
        offset("other", "t", 0, 1),
    )
    results = passed(shard)
    assert tombstones(results) == [s.OffsetCommitKey(group="simple", topic="t", partition=n) for n in (0, 1)]
    (event,) = [event for result in results for event in result.events]
    assert (event.name, event.group_id) == ("OffsetsExpired", "simple")
    assert dict(event.details) == {"offsets": "2", "group": "kept"}


def test_a_group_goes_with_its_last_offset() -> None:
    shard = loaded(offset("simple", "t", 0, 11), *streams_group("streams", members=0), offset("streams", "read", 0, 11))
    keys = tombstones(passed(shard))
    assert keys == [
        s.OffsetCommitKey(group="simple", topic="t", partition=0),
        s.GroupMetadataKey(group="simple"),
        s.OffsetCommitKey(group="streams", topic="read", partition=0),
        s.StreamsGroupTargetAssignmentMetadataKey(group_id="streams"),
        s.StreamsGroupMetadataKey(group_id="streams"),
        s.StreamsGroupTopologyKey(group_id="streams"),
    ]
    assert list(shard.hard_state()) == []


def test_empty_streams_group_without_offsets_is_removed_by_cleanup() -> None:
    shard = loaded(*streams_group("streams", members=0))
    assert len(tombstones(passed(shard))) == 3
    assert shard.group("streams") is None


def test_topics_that_members_read_keep_their_offsets() -> None:
    shard = loaded(
        *streams_group("streams", members=1),
        offset("streams", "read", 0, 99),
        offset("streams", "repartition", 0, 99),
        offset("streams", "formerly", 0, 99),
    )
    keys = tombstones(passed(shard))
    assert keys == [s.OffsetCommitKey(group="streams", topic="formerly", partition=0)]


def test_a_group_with_members_stays_without_offsets() -> None:
    shard = loaded(*streams_group("streams", members=1))
    assert tombstones(passed(shard)) == []


@pytest.mark.parametrize(
    ("members", "since_minutes", "protocol_type", "goes"),
    [
        (1, 99, "consumer", False),  # its subscriptions are not known
        (1, 99, "connect", False),
        (0, 10, "consumer", True),  # counted from when it became empty, the commit is older
        (0, 9, "consumer", False),
        (0, None, "consumer", True),  # an old record without that time: counted from the commit
        (0, 9, "", True),
    ],
)
def test_a_classic_group(members: int, since_minutes: int | None, protocol_type: str, goes: bool) -> None:
    since_ms = -1 if since_minutes is None else NOW_MS - since_minutes * MINUTE_MS
    shard = loaded(
        classic_group("g", members=members, since_ms=since_ms, protocol_type=protocol_type), offset("g", "t", 0, 99)
    )
    expected = [s.OffsetCommitKey(group="g", topic="t", partition=0), s.GroupMetadataKey(group="g")] if goes else []
    assert tombstones(passed(shard)) == expected


def test_an_explicit_expire_timestamp_counts_instead() -> None:
    shard = loaded(offset("g", "t", 0, 1, expires_ms=NOW_MS), offset("g", "t", 1, 99, expires_ms=NOW_MS + 1))
    assert tombstones(passed(shard)) == [s.OffsetCommitKey(group="g", topic="t", partition=0)]


def test_the_next_pass_is_an_interval_later_by_the_newest_settings() -> None:
    shard = loaded()
    assert shard.next_deadline_ms() == NOW_MS
    passed(shard)
    assert shard.next_deadline_ms() == NOW_MS + 30_000
    list(shard.on_configuration(replace(CONFIGURATION, offsets_retention_check_interval_ms=7), now_ms=NOW_MS))
    passed(shard, NOW_MS + 30_000)
    assert shard.next_deadline_ms() == NOW_MS + 30_007


def test_many_offsets_go_in_portions_that_fit_into_a_batch() -> None:
    shard = loaded(*[offset(f"g{n % 3}", "t", n, 11) for n in range(2_500)])
    results = passed(shard)
    assert [len(result.records) for result in results] == [1_000, 1_000, 503, 0]
    assert [event.name for result in results for event in result.events] == ["OffsetsExpired"] * 3
    assert list(shard.hard_state()) == []
    assert OFFSET_EXPIRY in [timer.key for timer in results[-1].timers]
