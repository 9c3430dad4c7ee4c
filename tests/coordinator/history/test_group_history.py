"""History of one group: reasons, authors, steps, and rates before, during and after."""

from __future__ import annotations

from headrace.assignors.consumer_protocol import Assignment, encode_assignment
from headrace.coordinator.history.group_history import RATE_WINDOW_MS, STEP_QUIET_MS, GroupHistory
from headrace.coordinator.history.history_record import MOST_PARTITIONS, Author, HistoryRecord
from headrace.coordinator.records import schemas as s
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord

LEADER = Author(client_id="leader", client_host="/10.0.0.1", request="SyncGroup")
NOBODY = Author()
SECOND_MS = 1_000


def generation(number: int, **members: list[int]) -> CoordinatorRecord:
    value = s.GroupMetadataValue(
        protocol_type="consumer",
        generation=number,
        protocol="range",
        members=tuple(
            s.GroupMember(
                member_id=member,
                client_id=f"client-{member}",
                client_host="/h",
                session_timeout_ms=10_000,
                subscription=b"",
                assignment=encode_assignment(Assignment(partitions=tuple(("in", each) for each in partitions))),
            )
            for member, partitions in members.items()
        ),
    )
    return CoordinatorRecord(key=s.GroupMetadataKey(group="g"), value=value)


def commit(partition: int, offset: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        key=s.OffsetCommitKey(group="g", topic="in", partition=partition),
        value=s.OffsetCommitValue(offset=offset, commit_timestamp=0),
    )


def event(name: str, **details: str) -> CoordinatorEvent:
    return CoordinatorEvent(name=name, group_id="g", details=tuple(sorted(details.items())))


def history(next_sequence: int = 0) -> GroupHistory:
    return GroupHistory("g", topic_name=str, next_sequence=next_sequence)


def kinds(entries: list[HistoryRecord]) -> list[str]:
    return [entry.kind for entry in entries]


def test_a_fenced_member_of_a_classic_group_leaves_at_once_and_with_its_reason() -> None:
    group = history()
    group.observe([generation(1, a=[0], b=[1])], [], LEADER, 0)
    fenced = event("MemberFenced", member="b", reason="its session timed out")
    began = event("RebalanceBegan", generation="1", reason="a session timed out")
    group.observe([], [fenced, began], NOBODY, 20_000)
    group.observe([generation(2, a=[0, 1])], [], LEADER, 22_000)
    group.observe([commit(0, 1), commit(1, 1)], [], LEADER, 23_000)
    group.on_time(23_000)
    entries = group.take_entries()
    assert kinds(entries) == ["joined", "joined", "rebalance", "left", "waiting", "rebalance", "standstill"]
    left, waiting, _, standstill = entries[3:]
    assert (left.client_id, left.reason, left.author, left.at_ms) == (
        "client-b",
        "its session timed out",
        NOBODY,
        20_000,
    )
    assert (waiting.reason, waiting.detail) == ("a session timed out", "JoinGroup of 1 member")
    assert [(each.partition, each.at_least_ms, each.from_member, each.to_member) for each in standstill.partitions] == [
        (0, 2_000, "client-a", "client-a"),
        (1, 2_000, "client-b", "client-a"),
    ]
    # The leave is the cause of all that follows it.
    assert [entry.step for entry in entries] == [0, 0, 0, 3, 3, 3, 3]


def test_members_join_by_themselves_whoever_sends_the_assignment() -> None:
    group = history()
    group.observe([generation(1, a=[0])], [], LEADER, 0)
    joined, rebalance = group.take_entries()
    assert (joined.author.client_id, joined.author.request) == ("client-a", "JoinGroup")
    assert rebalance.author == LEADER


def test_changes_apart_are_steps_of_their_own() -> None:
    group = history(7)
    for number, at_ms in enumerate((0, STEP_QUIET_MS - 1, 2 * STEP_QUIET_MS - 1)):
        group.observe([generation(number + 1)], [], LEADER, at_ms)
    assert [(entry.sequence, entry.step) for entry in group.take_entries()] == [(7, 7), (8, 7), (9, 9)]
    assert group.next_sequence == 10


def test_the_rates_show_the_cliff() -> None:
    group = history()
    group.observe([generation(1, a=[0])], [], LEADER, 0)
    offset = 0
    for second in range(5, 400, 5):
        at_ms = second * SECOND_MS
        offset += 500 if second <= 200 else 10 if second <= 220 else 300
        group.observe([commit(0, offset)], [], LEADER, at_ms)
        if second == 200:
            group.observe([], [event("RebalanceBegan", reason="b joins")], NOBODY, at_ms)
        if second == 220:
            group.observe([generation(2, a=[0])], [], LEADER, at_ms)
        group.on_time(at_ms)
    rates = [entry for entry in group.take_entries() if entry.kind == "rate"]
    # No rates of the start: nothing is known from before it.
    (cliff,) = (entry for entry in rates if entry.rate_before)
    # True are 100, 2 and 60; an interval of ten seconds at each edge also holds a commit of the time before it.
    assert cliff.rate_before == 100
    assert cliff.rate_during is not None
    assert cliff.rate_during < 30
    assert cliff.rate_after is not None
    assert 50 < cliff.rate_after < 60
    assert cliff.at_ms == 220 * SECOND_MS + RATE_WINDOW_MS
    assert not group.is_waiting


def test_an_existing_group_has_no_entries_for_its_past() -> None:
    group = history()
    group.load([generation(1, a=[0], b=[1]), commit(0, 5)], 50_000)
    assert group.take_entries() == []
    group.observe([], [event("MemberLeft", member="b", reason="not provided")], LEADER, 60_000)
    (left,) = group.take_entries()
    assert (left.kind, left.client_id, left.reason, left.author) == ("left", "client-b", "", LEADER)


def test_one_entry_names_a_bounded_number_of_partitions() -> None:
    group = history()
    count = MOST_PARTITIONS + 50
    group.observe([generation(1, a=list(range(count)))], [], LEADER, 0)
    group.observe([], [event("RebalanceBegan", reason="b joins")], NOBODY, 1_000)
    group.observe([generation(2, a=list(range(count)))], [], LEADER, 2_000)
    group.observe([commit(partition, 1) for partition in range(count)], [], LEADER, 3_000)
    group.on_time(3_000)
    standstill = group.take_entries()[-1]
    assert (standstill.kind, len(standstill.partitions), standstill.partition_count) == (
        "standstill",
        MOST_PARTITIONS,
        count,
    )


def test_topology_conversion_and_absence_are_entries() -> None:
    group = history()
    events = [
        event("TopologyNotReady", reason="topics are missing: in", status="MISSING_SOURCE_TOPICS"),
        event("TopologyReady"),
        event("StaticMemberAway", member_id="m", reason="will be back"),
        event("GroupUpgraded", members="2"),
    ]
    group.observe([], events, LEADER, 0)
    entries = group.take_entries()
    assert kinds(entries) == ["not-ready", "ready", "away", "converted"]
    assert (entries[0].reason, entries[0].detail) == ("topics are missing: in", "MISSING_SOURCE_TOPICS")
