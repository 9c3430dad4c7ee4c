"""Members of a classic group with tasks against the rules of our own coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.membership.classic_task_group import TOPOLOGY, Application, ClassicTaskGroup, settled_group
from tests.client.membership.group_script import GroupScript, beaten, joined, synced
from tests.coordinator.classic_context import GROUP

from headrace.assignors.assignor import Assignment
from headrace.assignors.consumer_protocol import decode_subscription, encode_assignment
from headrace.client.membership import events as e
from headrace.client.membership.assignment import OwnedTasks, task_ids
from headrace.client.membership.classic_streams_membership import ClassicStreamsMembership
from headrace.client.membership.classic_task_leader import PROTOCOL_NAME, TaskAssignment
from headrace.client.membership.classic_task_protocol import ClassicTaskProtocol
from headrace.client.membership.classic_user_data import encode_assignment as encode_user_data
from headrace.client.membership.member_core import MemberState
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def kinds(application: Application) -> list[str]:
    return [type(event).__name__ for event in application.told]


def test_tasks_that_stay_are_never_revoked_when_a_member_joins() -> None:
    group = settled_group("a")
    first = group.applications["a"]
    kept_before = dict(first.positions)
    told = len(first.told)
    group.add("b")
    group.settle()
    assert len(first.positions) == len(group.applications["b"].positions) == 3
    later = first.told[told:]
    assert not any(isinstance(event, e.Lost) for event in later)
    revoked = [task for event in later if isinstance(event, e.AssignmentChanged) for task in task_ids(event.revoked)]
    assert len(revoked) == 3
    assert set(revoked).isdisjoint(first.positions)
    assert all(first.positions[task] > kept_before[task] for task in first.positions), "they went on"


def test_moved_task_reaches_its_new_owner_only_after_it_was_given_back() -> None:
    group = settled_group("a")
    first = group.applications["a"]
    first.closes_in_ms = 4_000
    second = group.add("b")
    group.run(3_000)
    assert not second.positions, "the application has not given its tasks back"
    assert isinstance(first.change, tuple)
    # Another rebalance, with which the tasks are still open: the claim is repeated.
    third = group.add("c")
    group.run(500)
    assert not second.positions
    assert not third.positions
    group.settle()
    assert [len(each.positions) for each in group.applications.values()] == [2, 2, 2]


def test_new_generation_reaches_the_application_as_a_change_of_the_epoch_alone() -> None:
    group = settled_group("a")
    first = group.applications["a"]
    told, epoch = len(first.told), first.membership.assignment.member_epoch
    group.add("b")
    group.settle()
    only_epoch = [
        event
        for event in first.told[told:]
        if isinstance(event, e.AssignmentChanged) and not event.added and not event.revoked
    ]
    assert only_epoch
    assert only_epoch[0].assignment.member_epoch == epoch + 1
    assert first.membership.assignment.member_id


def test_heartbeat_refused_with_illegal_generation_loses_all_tasks() -> None:
    group = settled_group("a")
    application = group.applications["a"]
    member = application.membership
    while not isinstance(request := _next_request(group, member), m.heartbeat_request.HeartbeatRequest):
        pass
    assert request.generation_id == member.assignment.member_epoch
    member.on_response(beaten(ErrorCode.illegal_generation), group.now_ms)
    fenced, lost = member.take_events()
    assert isinstance(fenced, e.Fenced)
    assert fenced.kafka_name == "ILLEGAL_GENERATION"
    assert lost == e.Lost(reason="fenced")
    assert member.ownership.commit_generation(10**6, [("counts", 0)]) is None


@pytest.mark.parametrize(("instance_id", "keeps"), [("i", False), (None, True)])
def test_static_member_that_missed_a_generation_loses_its_tasks(instance_id: str | None, keeps: bool) -> None:
    script = GroupScript(_member_with_task(instance_id))
    script.answer(beaten(ErrorCode.rebalance_in_progress))
    # Generation 2 formed without this member: only a static one is still known to the coordinator.
    assert isinstance(script.next_sent(), m.join_group_request.JoinGroupRequest)
    events = script.answer(joined(generation=3, protocol=PROTOCOL_NAME))
    member = script.member
    if keeps:
        assert [type(event).__name__ for event in events] == ["AssignmentChanged"]
        assert member.ownership.commit_generation(1, [("counts", 0)]) == 3
    else:
        assert [type(event).__name__ for event in events] == ["Fenced", "Lost"]
        assert member.ownership.commit_generation(1, [("counts", 0)]) is None
        rejoin = script.next_sent()
        assert isinstance(rejoin, m.join_group_request.JoinGroupRequest)
        assert rejoin.member_id == "m1"
        assert not decode_subscription(bytes(rejoin.protocols[0].metadata)).owned_partitions


def _member_with_task(instance_id: str | None) -> Any:
    """A follower of generation 1 with the task counts-0, and a heartbeat in flight."""
    protocol = ClassicTaskProtocol(topology=TOPOLOGY, process_id="p")
    member: Any = ClassicStreamsMembership(GROUP, protocol, TOPOLOGY, chance=lambda: 0.0, instance_id=instance_id)
    script = GroupScript(member)
    member.join(script.now_ms)
    script.find_coordinator()
    assert isinstance(script.next_sent(), m.join_group_request.JoinGroupRequest)
    script.answer(joined(generation=1, protocol=PROTOCOL_NAME))
    assert isinstance(script.next_sent(), m.sync_group_request.SyncGroupRequest)
    tasks = encode_user_data(TaskAssignment(tasks=OwnedTasks(active={"counts": (0,)})))
    script.answer(synced(encode_assignment(Assignment(partitions=(("flights", 0),), user_data=tasks))))
    member.acknowledge({"counts": (0,)}, script.now_ms)
    assert isinstance(script.next_sent(), m.heartbeat_request.HeartbeatRequest)
    return member


def test_batch_planned_in_the_former_generation_is_committed_with_the_newest() -> None:
    group = ClassicTaskGroup()
    group.add("a")
    group.settle()
    for name in "bcd":
        group.add(name)
        group.run(2_000)
    group.settle()
    assert group.late_commits > 0


@pytest.mark.parametrize("seed", range(16))
def test_lost_messages_never_let_two_members_commit_one_position(seed: int) -> None:
    group = ClassicTaskGroup(seed=seed)
    chance = group.chance
    for number in range(3):
        group.add(
            f"m{number}", closes_in_ms=chance.choice((0, 300, 2_000)), instance_id=chance.choice((None, f"i{number}"))
        )
    for round_ in range(8):
        group.run(chance.choice((200, 1_000, 4_000)), lose=chance.choice((0.0, 0.1, 0.3)))
        living = [each for each in group.applications.values() if each.alive]
        match chance.randrange(5):
            case 0 if len(living) < 5:
                group.add(f"late{round_}", closes_in_ms=chance.choice((0, 1_000)))
            case 1 if len(living) > 1:
                chance.choice(living).membership.leave(group.now_ms)
            case 2 if len(living) > 1:
                chance.choice(living).alive = False
            case 3:
                chance.choice(living).paused_until_ms = group.now_ms + chance.choice((500, 8_000, 25_000))
            case _:
                pass
        for each in living:
            if each.membership.state is MemberState.UNSUBSCRIBED:
                each.alive = False
    if all(not each.alive or each.membership.state is MemberState.UNSUBSCRIBED for each in group.applications.values()):
        group.add("last")
    group.settle(200_000)
    assert group.commits > 0


def _next_request(group: ClassicTaskGroup, member: Any) -> object:
    while not (sent := member.poll(group.now_ms).requests):
        group.context.sleep(10)
    return sent[0].request
