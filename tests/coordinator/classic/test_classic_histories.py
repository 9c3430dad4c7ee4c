"""Random histories of a classic group: members with and without instance ids join, sync, beat, leave, fall silent, say
nonsense; time passes, the disk refuses, the broker restarts. After each step what must always hold is checked.

- Live hard state equals replayed state.
- Nobody is answered twice; whoever waits is known to the group, or its broker died; when all have fallen silent and
  time has passed, nobody waits and the group is empty.
- A generation has one leader, one protocol and one assignment: what a member gets is what that leader gave it.
- The book-keeping of the membership (who waits, how many speak what, which instance is whom) is what its members say.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.coordinator.classic_context import ClassicContext

from headrace.coordinator.classic.group import ClassicGroup, ClassicGroupState

STEPS = 250
PROTOCOLS = ("range", "roundrobin", "sticky")


class History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.context = ClassicContext(
            initial_rebalance_delay_ms=self.random.choice((0, 500)), max_size=self.random.choice((4, 100))
        )
        self.ids: list[str] = []
        self.parked: dict[int, str] = {}
        self.lost: set[int] = set()
        self.given: dict[int, dict[str, bytes]] = {}
        self.leaders: dict[int, str] = {}
        self.synced: dict[int, tuple[str, int]] = {}
        self.stable_generations = 0

    def play(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (4, self.new_member),
            (4, self.static_member),
            (30, self.join_again),
            (40, self.sync),
            (6, self.beat),
            (3, self.leave),
            (10, self.pass_time),
            (1, self.restart),
            (2, self.disk_refuses),
            (2, self.nonsense),
        ]
        weights = [weight for weight, _ in steps]
        for _ in range(STEPS):
            (step,) = self.random.choices([play for _, play in steps], weights)
            step()
            self.check()
        self.context.log.refuses = False
        self.context.sleep(2_000_000)
        self.hear()
        self.check()
        assert set(self.parked) <= self.lost, "nobody waits for ever"
        group = self.context.shard.group("g")
        assert group is None or (isinstance(group, ClassicGroup) and group.is_empty)

    # --- steps ---

    def new_member(self) -> None:
        token = self.context.join(**self.fields())
        self.heard_join(token)

    def static_member(self) -> None:
        token = self.context.join(instance=self.random.choice("xyz"), **self.fields())
        self.heard_join(token)

    def join_again(self) -> None:
        member_id = self.some_id()
        group = self.context.shard.group("g")
        instance = None
        if isinstance(group, ClassicGroup) and member_id in group.membership.members:
            instance = group.membership.members[member_id].instance_id
        self.heard_join(self.context.join(member_id, instance=instance, **self.fields()))

    def sync(self) -> None:
        group = self.context.shard.group("g")
        if not isinstance(group, ClassicGroup) or not group.membership.members:
            return
        membership = group.membership
        member_id = self.random.choice([*membership.members, membership.leader or ""])
        generation = membership.generation if self.random.random() < 0.9 else self.random.randint(-1, 9)
        assignments = None
        if membership.leader == member_id:
            names = [name for name in membership.members if self.random.random() < 0.9] + ["nobody"]
            assignments = {name: self.random.randbytes(4) for name in names}
        writes = membership.state is ClassicGroupState.COMPLETING_REBALANCE and generation == membership.generation
        token = self.context.sync(member_id, generation, assignments)
        if assignments is not None and writes and self.context.code(token) == "none":
            assert generation not in self.given, "a generation is given one assignment"
            self.given[generation] = assignments
            self.leaders[generation] = member_id
            self.stable_generations += 1
        self.parked[token] = member_id
        self.synced[token] = member_id, generation
        self.hear()

    def beat(self) -> None:
        group = self.context.shard.group("g")
        generation = group.membership.generation if isinstance(group, ClassicGroup) else 1
        self.context.heartbeat(self.some_id(), generation)

    def leave(self) -> None:
        if self.random.random() < 0.3:
            self.context.leave("", instance=self.random.choice("xyz"))
        else:
            self.context.leave(self.some_id())
        self.hear()

    def pass_time(self) -> None:
        self.context.log.refuses = False
        self.context.sleep(self.random.choice((0, 10, 600, 3_000, 12_000)))
        self.hear()

    def restart(self) -> None:
        self.context.log.refuses = False
        self.context.restart()
        self.lost |= set(self.parked)
        # what was forgotten may be given anew
        group = self.context.shard.group("g")
        last = group.membership.generation if isinstance(group, ClassicGroup) else 0
        self.given = {number: given for number, given in self.given.items() if number <= last}

    def disk_refuses(self) -> None:
        self.context.log.refuses = not self.context.log.refuses

    def nonsense(self) -> None:
        token = self.context.join(self.some_id(), protocols=(), protocol_type=self.random.choice(("", "other")))
        assert self.context.code(token) != "waits"
        self.context.join(self.some_id(), instance="nobody's")
        self.context.shard.delete_groups(["g"], self.context.context(0), now_ms=self.context.now_ms)

    # --- parts ---

    def fields(self) -> dict[str, Any]:
        names = self.random.sample(PROTOCOLS, self.random.randint(1, 3))
        if "range" not in names and self.random.random() < 0.9:
            names.append("range")
        metadata = self.random.choice((b"", b"x"))
        return {
            "protocols": tuple((name, metadata) for name in names),
            "session_ms": self.random.choice((6_000, 20_000)),
            "rebalance_ms": self.random.choice((-1, 0, 1_000, 1_000, 5_000, 5_000)),
            "version": self.random.choice((3, 5, 9)),
        }

    def some_id(self) -> str:
        group = self.context.shard.group("g")
        if isinstance(group, ClassicGroup) and group.membership.members and self.random.random() < 0.8:
            return self.random.choice(list(group.membership.members))
        return self.random.choice(self.ids[-8:]) if self.ids else "nobody"

    def heard_join(self, token: int) -> None:
        self.parked[token] = ""
        self.hear()

    def hear(self) -> None:
        for token in list(self.parked):
            answer = self.context.answers.get(token)
            if answer is None:
                continue
            del self.parked[token]
            member_id = getattr(answer, "member_id", "")
            if member_id and member_id not in self.ids:
                self.ids.append(member_id)
            if token in self.synced and self.context.code(token) == "none":
                name, generation = self.synced[token]
                if generation in self.given and name in self.given[generation]:
                    assert answer.assignment == self.given[generation][name], "as the leader gave it"

    def check(self) -> None:
        assert self.context.shard.digest() == self.context.replayed().digest()
        group = self.context.shard.group("g")
        if not isinstance(group, ClassicGroup):
            return
        membership = group.membership
        members = membership.members.values()
        assert membership.joined_count == sum(each.is_awaiting_join for each in members)
        assert membership.static_members == {
            each.instance_id: each.member_id for each in members if each.instance_id is not None
        }
        names = [name for each in members for name in dict.fromkeys(name for name, _ in each.protocols)]
        assert membership.protocol_counts == {name: names.count(name) for name in names}
        assert (membership.leader in membership.members) == bool(members)
        assert set(membership.pending_syncs) <= set(membership.members)
        assert not set(membership.pending_joins) & set(membership.members)
        assert membership.is_empty <= (not members)
        waiting = {each.join_token for each in members} | {each.sync_token for each in members}
        assert set(self.parked) - self.lost <= waiting, "who waits is known"


@pytest.mark.parametrize("seed", range(12))
def test_a_random_history(seed: int) -> None:
    history = History(seed)
    history.play()


def test_random_histories_reach_every_state() -> None:
    histories = [History(seed) for seed in range(100, 106)]
    for each in histories:
        each.play()
    assert sum(each.stable_generations for each in histories) > 10
