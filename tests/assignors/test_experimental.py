"""The experimental assignors: the seed's example, leaders that die, loads, spares, and user data of strangers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assignors.leader_kills import Group, Moves, play_leader_kills

from headrace.assignors.assignor import NO_GENERATION, Assignment, Assignor, Subscription, TopicPartition
from headrace.assignors.experimental import LeaderIndependentSticky, Load, Roles, WarmSpares, WeightedByLoad
from headrace.assignors.experimental.user_data import MAX_BODY_BYTES, pack, unpack
from headrace.assignors.experimental.weighted import weight_of
from headrace.assignors.kafka_assignors import StickyAssignor

KINDS: list[Callable[[], Assignor]] = [LeaderIndependentSticky, WeightedByLoad, WarmSpares]


# LeaderIndependentSticky


def test_the_example_m1_m2_m3_with_twelve_partitions_under_a_new_leader() -> None:
    group = Group(LeaderIndependentSticky, {"t": 12})
    m1, m2 = group.join(), group.join()
    before = group.rebalance(leader=m1)
    assert [len(before[m1]), len(before[m2])] == [6, 6]
    m3 = group.join()
    after = group.rebalance(leader=m3)  # the newcomer leads, and has seen nothing of the group before
    assert [len(after[m]) for m in (m1, m2, m3)] == [4, 4, 4]
    assert set(after[m1]) <= set(before[m1])
    assert set(after[m2]) <= set(before[m2])
    assert group.moves.moved == group.moves.must == 4


def test_static_members_that_all_restart_find_their_places_again() -> None:
    def moved(make: Callable[[], Assignor]) -> int:
        group = Group(make, {"t": 30})
        for number in range(5):
            group.join(f"i{number}")
            group.rebalance()
        group.moves.moved = 0
        for member in sorted(group.members)[:4]:
            group.restart(member)
        group.rebalance()
        return group.moves.moved

    assert moved(LeaderIndependentSticky) == 0
    assert moved(StickyAssignor) > 0, "nobody told it who had what"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_leader_kills_move_no_more_than_must(seed: int) -> None:
    moves = play_leader_kills(LeaderIndependentSticky, seed, rounds=12)
    assert moves.moved == moves.must


def test_fewer_than_sticky_and_far_fewer_than_a_naive_one() -> None:
    from tests.assignors.leader_kills import ASSIGNORS

    total: dict[str, Moves] = {}
    for name, make in ASSIGNORS.items():
        total[name] = Moves()
        for seed in range(12):
            moves = play_leader_kills(make, seed, rounds=12)
            total[name].moved += moves.moved
            total[name].must += moves.must
    ours, sticky, naive = (total[name].moved for name in ASSIGNORS)
    assert ours == total["leader-independent"].must
    assert ours < sticky < naive


def test_a_copy_that_one_member_garbled_is_taken_from_another() -> None:
    group = Group(LeaderIndependentSticky, {"t": 12})
    for number in range(3):
        group.join(f"i{number}")
    group.rebalance()
    group.garbage = b"PSUD\x01\x02nonsense"
    group.restart(max(group.members))
    group.rebalance()
    assert group.moves.moved == 0


def test_a_cooperative_group_hands_over_in_two_steps_and_keeps_the_plan() -> None:
    assignor = LeaderIndependentSticky()
    first = assignor.assign({"t": 4}, {"a": Subscription(topics=("t",))})
    assignor.on_assignment(first["a"], 1)
    told = assignor.subscription_user_data(("t",))
    a = Subscription(topics=("t",), user_data=told, owned_partitions=first["a"].partitions, generation_id=1)
    second = LeaderIndependentSticky().assign({"t": 4}, {"a": a, "b": Subscription(topics=("t",))})
    assert len(second["a"].partitions) == 2
    assert second["b"].partitions == ()
    newcomer = LeaderIndependentSticky()
    newcomer.on_assignment(second["b"], 2)
    b = Subscription(topics=("t",), user_data=newcomer.subscription_user_data(("t",)), generation_id=2)
    a = Subscription(topics=("t",), owned_partitions=second["a"].partitions, generation_id=2)
    third = LeaderIndependentSticky().assign({"t": 4}, {"a": a, "b": b})
    assert set(third["a"].partitions) == set(second["a"].partitions)
    assert len(third["b"].partitions) == 2


# WeightedByLoad


def divide(loads: Mapping[str, Load | None], partitions: int, had: Mapping[str, int] | None = None) -> dict[str, int]:
    members = {}
    for name, load in loads.items():
        assignor = WeightedByLoad(lambda load=load: load or Load())  # type: ignore[misc]
        if had is not None:
            start = sum(had[other] for other in loads if other < name)
            assignor.on_assignment(Assignment(partitions=tuple(("t", start + n) for n in range(had[name]))), 1)
        told = assignor.subscription_user_data(("t",)) if load is not None else b"a stranger's"
        members[name] = Subscription(topics=("t",), user_data=told)
    given_now = WeightedByLoad().assign({"t": partitions}, members)
    assert sorted(each for a in given_now.values() for each in a.partitions) == [("t", n) for n in range(partitions)]
    return {name: len(assignment.partitions) for name, assignment in given_now.items()}


def test_the_busy_get_less() -> None:
    assert divide({"a": Load(), "b": Load(cpu=0.5)}, 12) == {"a": 8, "b": 4}
    assert divide({"a": Load(memory=0.9), "b": Load(), "c": Load()}, 21) == {"a": 1, "b": 10, "c": 10}
    assert divide({"a": Load(lag=10), "b": Load(lag=10), "c": Load(lag=1_000)}, 10) == {"a": 4, "b": 4, "c": 2}


def test_without_loads_it_is_even() -> None:
    assert divide({"a": None, "b": None, "c": Load()}, 10) == {"a": 4, "b": 3, "c": 3}


def test_small_changes_of_load_move_nothing() -> None:
    had = {"a": 6, "b": 6}
    assert divide({"a": Load(cpu=0.52), "b": Load(cpu=0.48)}, 12, had) == had
    assert divide({"a": Load(cpu=0.8), "b": Load(cpu=0.2)}, 12, had) == {"a": 2, "b": 10}


def test_moved_partitions_stay_in_their_rack_if_possible() -> None:
    members = {}
    for name, rack, count in (("a", "east", 8), ("b", "west", 0), ("c", "east", 0)):
        assignor = WeightedByLoad(lambda rack=rack: Load(rack=rack))  # type: ignore[misc]
        assignor.on_assignment(Assignment(partitions=tuple(("t", n) for n in range(count))), 1)
        members[name] = Subscription(topics=("t",), user_data=assignor.subscription_user_data(("t",)))
    first = WeightedByLoad().assign({"t": 8}, members)
    assert [len(first[name].partitions) for name in "abc"] == [3, 2, 3]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0, 7.0])
def test_loads_that_cannot_be(value: float) -> None:
    assert 0.1 <= weight_of(Load(cpu=value, memory=value, lag=-9), 1.0) <= 1.0
    assert sum(divide({"a": Load(cpu=value), "b": Load()}, 7).values()) == 7


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_weighted_assignments_are_whole_and_come_to_rest(seed: int) -> None:
    random = Random(seed)
    loads = {f"m{n}": Load(cpu=random.random(), lag=random.randint(-1, 50)) for n in range(random.randint(1, 6))}
    first = divide(loads, random.randint(1, 40))
    assert divide(loads, sum(first.values()), first) == first


# WarmSpares


class SpareGroup:
    """Mutable: members of a cooperative group with their roles; one `rebalance` is as many generations as it takes."""

    def __init__(self, partitions: int, spares: int) -> None:
        self.topics = {"t": partitions}
        self.spares = spares
        self.members: dict[str, WarmSpares] = {}
        self.owned: dict[str, tuple[TopicPartition, ...]] = {}
        self.generation_id = 0

    def join(self, name: str) -> None:
        self.members[name] = WarmSpares(self.spares)
        self.owned[name] = ()

    def kill(self, name: str) -> None:
        del self.members[name], self.owned[name]

    def generation(self) -> bool:
        """Whether somebody had to give something back, and asks for another one."""
        self.generation_id += 1
        said = {
            name: Subscription(
                topics=("t",),
                user_data=assignor.subscription_user_data(("t",)),
                owned_partitions=self.owned[name],
                generation_id=self.generation_id - 1 if self.owned[name] else NO_GENERATION,
            )
            for name, assignor in self.members.items()
        }
        acting = {each: name for name, assignor in self.members.items() for each in assignor.roles.active}
        given_now = min(self.members.items())[1].assign(self.topics, said)
        again = False
        for name, assignor in self.members.items():
            assignment = given_now[name]
            again |= not set(self.owned[name]) <= set(assignment.partitions)
            assignor.on_assignment(assignment, self.generation_id)
            self.owned[name] = assignment.partitions
            for each in assignor.roles.active:
                assert acting.get(each, name) == name, "two act on one partition"
        return again

    def rebalance(self) -> None:
        for _ in range(4):
            if not self.generation():
                break
        else:
            raise AssertionError("it does not come to rest")
        active = sorted(each for assignor in self.members.values() for each in assignor.roles.active)
        assert active == [("t", number) for number in range(self.topics["t"])]
        wanted = min(self.spares, len(self.members) - 1)
        for number in range(self.topics["t"]):
            warm = [name for name, assignor in self.members.items() if ("t", number) in assignor.roles.spare]
            assert len(warm) == wanted


def test_each_partition_has_an_owner_and_a_spare_elsewhere() -> None:
    group = SpareGroup(6, spares=1)
    for name in "abc":
        group.join(name)
    group.rebalance()
    for assignor in group.members.values():
        assert len(assignor.roles.active) == 2
        assert not assignor.roles.active & assignor.roles.spare


def test_spares_take_over_in_the_generation_after_a_death() -> None:
    group = SpareGroup(6, spares=1)
    for name in "abc":
        group.join(name)
    group.rebalance()
    orphans = group.members["a"].roles.active
    warm = {each: name for name in "bc" for each in group.members[name].roles.spare if each in orphans}
    group.kill("a")
    group.generation()  # one is enough
    assert {each: name for name in "bc" for each in group.members[name].roles.active if each in orphans} == warm


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_two_never_act_on_one_partition(seed: int) -> None:
    random = Random(seed)
    group = SpareGroup(random.randint(1, 12), random.randint(0, 3))
    group.join("m0")
    for number in range(1, 8):
        if len(group.members) > 1 and random.random() < 0.4:
            group.kill(random.choice(sorted(group.members)))
        else:
            group.join(f"m{number}")
        group.rebalance()


def test_roles_are_reported() -> None:
    heard: list[Roles] = []
    assignor = WarmSpares(on_roles=heard.append)
    given_now = assignor.assign({"t": 1}, {"a": Subscription(topics=("t",)), "b": Subscription(topics=("t",))})
    assignor.on_assignment(given_now["a"], 4)
    assert heard == [assignor.roles]
    assert heard[0].generation_id == 4
    assert heard[0].active | heard[0].spare == {("t", 0)}


# User data


@settings(max_examples=25, deadline=None)
@given(garbage=st.binary(max_size=60), kind=st.integers(1, 5), seed=st.integers(0, 1 << 30))
def test_user_data_of_another_assignor_changes_no_assignment(garbage: bytes, kind: int, seed: int) -> None:
    random = Random(seed)
    for make in KINDS:
        forms = [garbage, pack(kind, garbage), None, make().subscription_user_data(("t",))]
        members = {
            f"m{number}": Subscription(
                topics=("t",), user_data=random.choice(forms), owned_partitions=random.choice([(), (("t", 1),)])
            )
            for number in range(3)
        }
        given_now = make().assign({"t": 7}, members)
        assert given_now.keys() == members.keys()
        assert {p for a in given_now.values() for p in a.partitions} <= {("t", n) for n in range(7)}
        make().on_assignment(Assignment(partitions=(("t", 0),), user_data=random.choice(forms)), 1)


def test_user_data_is_bounded_versioned_and_checked() -> None:
    data = pack(1, b"body" * 100)
    assert data is not None
    assert len(data) < 100
    reader = unpack(1, data)
    assert reader is not None
    assert reader.left == 400
    assert unpack(2, data) is None
    assert unpack(1, data[:4] + b"\x02" + data[5:]) is None, "a later version"
    assert unpack(1, data[:-1] + b"x") is None, "damaged"
    assert pack(1, bytes(MAX_BODY_BYTES + 1)) is None
    import zlib

    bomb = zlib.compress(bytes(4 << 20))
    assert unpack(1, struct.pack(">4sBBI", b"PSUD", 1, 0x81, zlib.crc32(bomb)) + bomb) is None


def test_an_assignment_too_large_for_the_user_data_still_works() -> None:
    names = {f"{number:04}{'x' * 240}": 1 for number in range(5_000)}
    members = {"a": Subscription(topics=tuple(names)), "b": Subscription(topics=tuple(names))}
    given_now = LeaderIndependentSticky().assign(names, members)
    assert [len(assignment.partitions) for assignment in given_now.values()] == [2_500, 2_500]
    assert {assignment.user_data for assignment in given_now.values()} == {None}
    assignor = LeaderIndependentSticky()
    assignor.on_assignment(given_now["a"], 3)
    assert assignor.subscription_user_data(()) is None
