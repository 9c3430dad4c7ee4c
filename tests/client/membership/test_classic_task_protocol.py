"""Assignments by the leader of a classic group: no task has two owners, moves settle, nothing moves without need."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from headrace.assignors.assignor import Subscription
from headrace.client.membership.assignment import OwnedTasks, StatusCode, task_ids, tasks_of
from headrace.client.membership.classic_task_leader import TaskAssignment, TaskReport
from headrace.client.membership.classic_task_protocol import ClassicTaskProtocol, hash_of
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.streams_heartbeat import TaskId
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology

READ = Subtopology(
    subtopology_id="flights", source_topics=("flights", "late"), repartition_sink_topics=("app-by-origin-repartition",)
)
COUNT = Subtopology(
    subtopology_id="by-origin",
    repartition_source_topics=(InternalTopic(name="app-by-origin-repartition"),),
    state_changelog_topics=(InternalTopic(name="app-by-origin-changelog", configs=(("cleanup.policy", "compact"),)),),
)
TOPOLOGY = Topology(subtopologies=(READ, COUNT))
PARTITIONS = {"flights": 6, "late": 2, "app-by-origin-repartition": 6, "app-by-origin-changelog": 6}
ALL = {(name, number) for name in ("flights", "by-origin") for number in range(6)}


class Group:
    """Members that hold tasks, and rebalances in which one of them leads."""

    def __init__(self, *, standbys: int = 0, copies_ahead: bool = False) -> None:
        self.standbys = standbys
        self.lag = 100 if copies_ahead else None
        self.copied: set[tuple[str, TaskId]] = set()  # warm-up tasks that have caught up
        self.members: dict[str, OwnedTasks] = {}
        self.found: dict[str, TaskAssignment] = {}

    def protocol(self, member_id: str) -> ClassicTaskProtocol:
        host = member_id.partition(".")[0]
        return ClassicTaskProtocol(
            topology=TOPOLOGY,
            process_id=host,
            endpoint=Endpoint(host, 80),
            num_standby_replicas=self.standbys,
            acceptable_recovery_lag=self.lag,
        )

    def rebalance(self, leader: str | None = None) -> bool:
        """Assign once, open what came, give back what went; whether a member gave something back."""
        subscriptions = {}
        for member_id, owned in self.members.items():
            copies = task_ids(owned.standby) | task_ids(owned.warmup)
            offsets = {task: 900 if (member_id, task) in self.copied else 10 for task in copies}
            report = TaskReport(owned=owned, task_offsets=offsets, task_end_offsets=dict.fromkeys(copies, 1_000))
            data = self.protocol(member_id).encode_report(report)
            subscriptions[member_id] = Subscription(topics=("flights",), user_data=data)
        protocol = self.protocol(leader or min(self.members))
        plan = protocol.assign(subscriptions, PARTITIONS)
        assert plan.missing_topics == ()
        gave_back = False
        self.found = {one: protocol.decode_assignment(data) for one, data in plan.user_data.items()}
        # New owners open at once, former ones close later: no other member may have the task open meanwhile.
        opened = Counter(task for owned in self.members.values() for task in task_ids(owned.active))
        for member_id, found in self.found.items():
            opened.update(task_ids(found.tasks.active) - task_ids(self.members[member_id].active))
        assert set(opened.values()) <= {1}, opened
        for member_id, found in self.found.items():
            revoked = task_ids(self.members[member_id].active) - task_ids(found.tasks.active)
            gave_back |= bool(revoked)
            if self.lag is not None:
                self.check_copies({task for task in revoked if task[0] == "by-origin"}, process_of(member_id))
            assert task_ids(found.tasks.active).isdisjoint(task_ids(found.tasks.warmup))
            assert task_ids(found.tasks.standby).isdisjoint(task_ids(found.tasks.warmup))
            assert found.follow_up == bool(found.tasks.warmup)
            assert task_ids(found.tasks.active).isdisjoint(task_ids(found.tasks.standby))
            self.members[member_id] = found.tasks
        return gave_back

    def settle(self) -> int:
        """Rebalance until no member gives anything back; return how often."""
        count = 1
        while self.rebalance() or any(owned.warmup for owned in self.members.values()):
            self.catch_up()
            count += 1
            assert count < 10
        return count

    def catch_up(self) -> None:
        """Let every copy catch up."""
        for member_id, owned in self.members.items():
            self.copied |= {(member_id, task) for task in task_ids(owned.standby) | task_ids(owned.warmup)}

    def check_copies(self, revoked: set[TaskId], process: str) -> None:
        """Each stateful task that is revoked from a living owner has a current copy, or moves within its process."""
        here = {one for one in self.members if process_of(one) == process}
        for task in revoked:
            assert len(here) > 1 or any((one, task) in self.copied for one in self.members), task

    def check(self) -> None:
        active = [task for owned in self.members.values() for task in task_ids(owned.active)]
        assert sorted(active) == sorted(ALL)
        loads = [len(task_ids(owned.active)) for owned in self.members.values()]
        assert max(loads) - min(loads) <= 1, loads
        hosts = Counter(member_id.partition(".")[0] for member_id in self.members)
        copies = Counter(task for owned in self.members.values() for task in task_ids(owned.standby))
        wanted = min(self.standbys, len(hosts) - 1)
        assert copies == Counter({("by-origin", number): wanted for number in range(6)} if wanted else {})


def process_of(member_id: str) -> str:
    return member_id.partition(".")[0]


@pytest.mark.parametrize("copies_ahead", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_random_groups_settle_without_two_owners(seed: int, copies_ahead: bool) -> None:
    chance = random.Random(seed)
    group = Group(standbys=chance.randrange(3), copies_ahead=copies_ahead)
    group.members = {"h0.0": OwnedTasks()}
    group.settle()
    for step in range(12):
        # 1. Members come, leave or die, some of them in the middle of a move.
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.6 or len(group.members) == 1:
                group.members[f"h{chance.randrange(4)}.{step}{chance.randrange(100)}"] = OwnedTasks()
            else:
                group.members.pop(chance.choice(sorted(group.members)))
        if chance.random() < 0.4:
            group.rebalance(chance.choice(sorted(group.members)))
            continue
        # 2. A rebalance for the change, and one for what was given back in it.
        #    With copies made ahead: two rebalances more at most, once the copies have caught up.
        assert group.settle() <= (5 if copies_ahead else 3)
        group.check()


def test_stateful_task_moves_when_the_copy_of_its_new_owner_has_caught_up() -> None:
    group = Group(copies_ahead=True)
    group.members = {"a.0": OwnedTasks()}
    group.settle()
    group.members["b.0"] = OwnedTasks()
    # 1. Stateless tasks move at once; the stateful ones stay, and are warmed up at the new owner.
    assert group.rebalance()
    a, b = group.members["a.0"], group.members["b.0"]
    assert len(a.active["by-origin"]) == 6
    copied = task_ids(b.warmup)
    assert {name for name, _ in copied} == {"by-origin"}
    # 2. Nothing more moves while the copies are behind.
    group.rebalance()
    assert not group.rebalance()
    assert task_ids(group.members["b.0"].warmup) == copied
    assert len(group.members["a.0"].active["by-origin"]) == 6
    # 3. They have caught up: the owner gives the tasks back, then the new owner opens them.
    group.catch_up()
    assert group.rebalance()
    assert task_ids(group.members["a.0"].active).isdisjoint(copied)
    assert task_ids(group.members["b.0"].standby) >= copied, "the copy stays until the task is opened"
    assert not group.rebalance()
    assert task_ids(group.members["b.0"].active) >= copied
    assert not group.members["b.0"].warmup
    group.check()


def test_tasks_of_a_member_that_died_wait_for_no_copy() -> None:
    group = Group(copies_ahead=True)
    group.members = {"a.0": OwnedTasks(), "b.0": OwnedTasks()}
    group.settle()
    del group.members["b.0"]
    assert not group.rebalance()
    group.check()


def test_tasks_move_within_a_process_without_a_copy() -> None:
    group = Group(copies_ahead=True)
    group.members = {"a.0": OwnedTasks()}
    group.settle()
    group.members["a.1"] = OwnedTasks()
    assert group.settle() == 2
    group.check()


def test_nothing_moves_without_need() -> None:
    group = Group(standbys=1)
    group.members = {f"h{n}.0": OwnedTasks() for n in range(3)}
    group.settle()
    before = dict(group.members)
    assert group.settle() == 1
    assert group.members == before
    # A member that dies gives its tasks to the others, which keep theirs.
    died = group.members.pop("h1.0")
    group.settle()
    for member_id, owned in group.members.items():
        assert task_ids(owned.active) >= task_ids(before[member_id].active)
    group.check()
    # The state of its tasks is where the copies were.
    copies = {task for owned in before.values() for task in task_ids(owned.standby)}
    moved = {task for task in task_ids(died.active) if task[0] == "by-origin"}
    assert moved <= copies
    for task in moved:
        [owner] = [one for one, owned in group.members.items() if task in task_ids(owned.active)]
        assert task in task_ids(before[owner].standby)


def test_a_task_that_is_to_come_keeps_its_copy_until_then() -> None:
    group = Group(standbys=1)
    group.members = {"a.0": OwnedTasks(active=tasks_of({"flights": range(6), "by-origin": range(6)}))}
    group.members["b.0"] = OwnedTasks(standby=tasks_of({"by-origin": range(6)}))
    assert group.rebalance()
    assert group.members["b.0"].active == {}, "the other one still has them open"
    assert group.members["b.0"].standby == {"by-origin": tuple(range(6))}
    assert not group.rebalance()
    assert len(task_ids(group.members["b.0"].active)) == 6
    group.check()


def test_two_claims_of_one_task_are_both_refused() -> None:
    group = Group()
    both = OwnedTasks(active={"flights": (0,)})
    group.members = {"a.0": both, "b.0": both}
    data = {
        one: Subscription(
            topics=(),
            user_data=group.protocol(one).encode_report(TaskReport(owned=both, task_offsets={}, task_end_offsets={})),
        )
        for one in group.members
    }
    plan = group.protocol("a.0").assign(data, PARTITIONS)
    assert all(0 not in found.get("flights", ()) for found in plan.active.values())
    group.members = dict.fromkeys(group.members, OwnedTasks())
    group.settle()
    group.check()


def test_missing_internal_topics_are_created_first_with_their_partitions() -> None:
    members = {"a": Subscription(topics=(), user_data=_report())}
    plan = Group().protocol("a").assign(members, {"flights": 6, "late": 2})
    assert [(topic.name, topic.partitions, dict(topic.configs)) for topic in plan.missing_topics] == [
        ("app-by-origin-changelog", 6, {"cleanup.policy": "compact"}),
        ("app-by-origin-repartition", 6, {}),
    ]
    assert plan.user_data == {}


def test_missing_source_topics_are_told_to_every_member() -> None:
    members = {one: Subscription(topics=(), user_data=_report()) for one in "ab"}
    protocol = Group().protocol("a")
    plan = protocol.assign(members, {"flights": 6})
    for data in plan.user_data.values():
        found = protocol.decode_assignment(data)
        assert found.tasks == OwnedTasks()
        assert found.status == ((StatusCode.MISSING_SOURCE_TOPICS, "Source topics late are missing."),)


def test_source_topics_that_grew_leave_running_tasks_as_they_are() -> None:
    group = Group()
    group.members = {"a.0": OwnedTasks()}
    group.settle()
    owned = group.members["a.0"]
    report = TaskReport(owned=owned, task_offsets={}, task_end_offsets={})
    protocol = group.protocol("a.0")
    members = {"a.0": Subscription(topics=(), user_data=protocol.encode_report(report))}
    plan = protocol.assign(members, PARTITIONS | {"flights": 8})
    found = protocol.decode_assignment(plan.user_data["a.0"])
    assert task_ids(found.tasks.active) >= task_ids(owned.active)
    assert found.tasks.active["by-origin"] == tuple(range(6))


def test_members_with_another_topology_have_no_tasks() -> None:
    protocol = Group().protocol("a")
    other = replace(protocol, topology=Topology(subtopologies=(READ, replace(COUNT, state_changelog_topics=()))))
    report = TaskReport(owned=OwnedTasks(), task_offsets={}, task_end_offsets={})
    members = {
        "a": Subscription(topics=(), user_data=protocol.encode_report(report)),
        "b": Subscription(topics=(), user_data=other.encode_report(report)),
        "c": Subscription(topics=(), user_data=b"no report of ours"),
        "d": Subscription(topics=(), user_data=None),
    }
    plan = protocol.assign(members, PARTITIONS)
    found = {one: protocol.decode_assignment(data) for one, data in plan.user_data.items()}
    assert task_ids(found["a"].tasks.active) == ALL
    assert found["b"].tasks == OwnedTasks()
    assert found["b"].status[0][0] == StatusCode.STALE_TOPOLOGY
    assert found.keys() == {"a", "b"}


def test_equal_topologies_have_one_hash_in_whatever_order_they_were_declared() -> None:
    assert hash_of(TOPOLOGY) == hash_of(Topology(subtopologies=(COUNT, READ)))
    assert hash_of(TOPOLOGY) == hash_of(Topology.from_json(TOPOLOGY.to_json()))
    assert hash_of(TOPOLOGY) != hash_of(Topology(subtopologies=(READ,)))


def test_a_wish_to_stop_reaches_every_member() -> None:
    protocol = Group().protocol("a")
    report = TaskReport(owned=OwnedTasks(), task_offsets={}, task_end_offsets={}, shutdown_application=True)
    data = protocol.encode_report(report)
    members = {"a": Subscription(topics=(), user_data=_report()), "b": Subscription(topics=(), user_data=data)}
    plan = protocol.assign(members, PARTITIONS)
    for found in map(protocol.decode_assignment, plan.user_data.values()):
        assert [code for code, _ in found.status] == [StatusCode.SHUTDOWN_APPLICATION]


def test_endpoints_have_the_partitions_of_their_processes() -> None:
    group = Group(standbys=1)
    group.members = {"a.0": OwnedTasks(), "a.1": OwnedTasks(), "b.0": OwnedTasks()}
    group.settle()
    endpoints = group.found["b.0"].endpoints
    assert set(endpoints) == {Endpoint("a", 80), Endpoint("b", 80)}
    served = [p for found in endpoints.values() for p in found.active.get("flights", ())]
    assert sorted(served) == list(range(6))
    assert sorted(p for found in endpoints.values() for p in found.active.get("late", ())) == [0, 1]
    copied = [p for found in endpoints.values() for p in found.standby["app-by-origin-repartition"]]
    assert sorted(copied) == list(range(6))


def _report() -> bytes:
    return Group().protocol("a").encode_report(TaskReport(owned=OwnedTasks(), task_offsets={}, task_end_offsets={}))


@pytest.mark.parametrize(("members", "has_endpoints"), [(20, True), (200, False)])
def test_the_endpoint_map_is_left_out_where_the_group_would_not_fit(members: int, has_endpoints: bool) -> None:
    subtopologies = tuple(
        Subtopology(subtopology_id=f"of-region-{n}", source_topics=(f"flights-of-region-{n}",)) for n in range(4)
    )
    topology = Topology(subtopologies=subtopologies)
    protocols = {
        f"m{n:03}": ClassicTaskProtocol(
            topology=topology, process_id=f"p{n}", endpoint=Endpoint(f"host-{n}.example.com", 8080)
        )
        for n in range(members)
    }
    nothing = TaskReport(owned=OwnedTasks(), task_offsets={}, task_end_offsets={})
    subscriptions = {
        member_id: Subscription(topics=("flights",), user_data=protocol.encode_report(nothing))
        for member_id, protocol in protocols.items()
    }
    partitions = {f"flights-of-region-{n}": 1000 for n in range(4)}
    plan = protocols["m000"].assign(subscriptions, partitions)
    found = {member_id: protocols[member_id].decode_assignment(data) for member_id, data in plan.user_data.items()}
    assert sum(len(task_ids(one.tasks.active)) for one in found.values()) == 4000
    assert {len(one.endpoints) for one in found.values()} == ({members} if has_endpoints else {0})
    assert sum(map(len, plan.user_data.values())) < 800_000
