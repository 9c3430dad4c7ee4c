"""Random histories of consumer groups, recorded: the entries agree with the coordinator's state at every step."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.coordinator.consumer.consumer_histories import GROUP, History

from headrace.coordinator.history.group_histories import RECORDER, GroupHistories
from headrace.coordinator.history.history_record import Author, HistoryRecord
from headrace.coordinator.records.schemas import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord, CoordinatorResult

AUTHOR = Author(client_id="c", client_host="/127.0.0.1", request="ConsumerGroupHeartbeat")


class Twin:
    """Owners of partitions, compared with those before after each result: when each was lost and assigned again."""

    def __init__(self) -> None:
        self.owners: dict[tuple[UUID, int], str] = {}
        self.lost_ms: dict[tuple[UUID, int], int] = {}
        self.found: list[tuple[str, int, int, int]] = []

    def look(self, group: Any, now_ms: int) -> None:
        owners = {
            (topic_id, number): member.member_id
            for member in (() if group is None else group.members.values())
            for topic_id, numbers in member.assigned.items()
            for number in numbers
        }
        for key in self.owners.keys() | owners.keys():
            before, after = self.owners.get(key), owners.get(key)
            if before == after:
                continue
            if before is not None:
                self.lost_ms[key] = now_ms
            if after is not None and key in self.lost_ms:
                self.found.append((str(key[0]), key[1], self.lost_ms.pop(key), now_ms))
        self.owners = owners


def record(history: History) -> tuple[GroupHistories, Twin]:
    """Observe all results of a history."""
    world = history.world
    histories, twin = GroupHistories(topic_name=str), Twin()
    apply = world.apply

    def observed(result: CoordinatorResult, shard: Any = None) -> CoordinatorResult:
        apply(result, shard)
        histories.observe(result.records, result.events, AUTHOR, world.now_ms)
        # Also called while a shard is loaded, which changes nothing.
        if shard is None:
            twin.look(world.group(), world.now_ms)
        return result

    world.apply = observed  # type: ignore[method-assign]
    return histories, twin


@pytest.mark.parametrize("seed", range(12))
def test_entries_agree_with_the_coordinator(seed: int) -> None:
    history = History(seed)
    histories, twin = record(history)
    entries: list[HistoryRecord] = []
    present: dict[str, None] = {}
    for _ in range(150):
        history.step()
        histories.on_time(history.world.now_ms)
        new = histories.take_entries()
        for entry in new:
            if entry.kind in ("joined", "replaced"):
                present[entry.member_id] = None
            elif entry.kind == "left":
                del present[entry.member_id]
        entries += new
        group = history.world.group()
        members = {} if group is None else group.members
        # Replacing a static member is one change: the old id has no entry of its own.
        replaced = {entry.instance_id for entry in entries if entry.kind == "replaced"}
        assert members.keys() <= present.keys()
        if not replaced:
            assert members.keys() == present.keys()
    histories.on_time(history.world.now_ms + 3_600_000)
    entries += histories.take_entries()
    assert [entry.sequence for entry in entries] == list(range(len(entries)))
    assert all(entry.step <= entry.sequence and entry.group_id == GROUP for entry in entries)
    standstills = [each for entry in entries for each in entry.partitions]
    assert sorted((each.topic, each.partition, each.lost_ms, each.assigned_ms) for each in standstills) == sorted(
        twin.found
    )
    # Each removal has its reason; members that asked for it have an author.
    for entry in entries:
        if entry.kind == "left":
            assert entry.reason


def commit(group: str, partition: int, offset: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        key=OffsetCommitKey(group=group, topic="in", partition=partition),
        value=OffsetCommitValue(offset=offset, commit_timestamp=0),
    )


def test_groups_without_members_have_no_history() -> None:
    histories = GroupHistories(topic_name=str)
    for offset in range(100):
        histories.observe((commit("g", 0, offset),), (), AUTHOR, offset)
    histories.on_time(10_000_000)
    assert histories.take_entries() == []


def test_a_group_that_was_deleted_goes_on_with_its_sequence() -> None:
    histories = GroupHistories(topic_name=str, sequences={"g": 5})
    began = CoordinatorEvent(name="RebalanceBegan", group_id="g", details=(("reason", "a joined"),))
    gone = CoordinatorRecord(key=GroupMetadataKey(group="g"), value=None)
    histories.observe((), (began,), AUTHOR, 1_000)
    histories.observe((gone,), (), AUTHOR, 2_000)
    histories.observe((), (began,), AUTHOR, 3_000)
    assert [(entry.kind, entry.sequence, entry.reason) for entry in histories.take_entries()] == [
        ("waiting", 5, "a joined"),
        ("deleted", 6, ""),
        ("waiting", 7, "a joined"),
    ]


def test_entries_about_the_recorder_have_a_group_of_their_own() -> None:
    histories = GroupHistories(topic_name=str, sequences={RECORDER: 3})
    histories.add_own("lost 7 changes", 1_000)
    (entry,) = histories.take_entries()
    assert (entry.group_id, entry.sequence, entry.kind, entry.detail) == (RECORDER, 3, "recorder", "lost 7 changes")


def test_entries_of_the_past_are_dropped_with_their_numbers() -> None:
    histories = GroupHistories(topic_name=str, sequences={"g": 5, "deleted": 8})
    gone = CoordinatorRecord(key=GroupMetadataKey(group="deleted"), value=None)
    for group_id in ("g", "deleted"):
        began = CoordinatorEvent(name="RebalanceBegan", group_id=group_id, details=(("reason", "a joined"),))
        histories.observe((), (began,), AUTHOR, 1_000)
    histories.observe((gone,), (), AUTHOR, 1_500)
    histories.drop_entries()
    histories.on_time(10_000_000)
    assert histories.take_entries() == []
    for group_id in ("g", "deleted"):
        began = CoordinatorEvent(name="RebalanceBegan", group_id=group_id, details=(("reason", "b joined"),))
        histories.observe((), (began,), AUTHOR, 10_000_001)
    assert [(entry.group_id, entry.sequence, entry.step) for entry in histories.take_entries()] == [
        ("g", 5, 5),
        ("deleted", 8, 8),
    ]
