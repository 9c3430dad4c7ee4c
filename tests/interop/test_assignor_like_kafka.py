"""240 histories through Kafka's StickyTaskAssignor 4.3.1 and ours: no more moves, balance as good, all standbys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
from tests.interop.assignor_peer import Assignment, KafkasAssignor, OurAssignor, Peer

from headrace.coordinator.assignors.task_assignor import AssignableSubtopology

pytestmark = pytest.mark.interop

HISTORIES = 240
ROUNDS = 8


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkasAssignor]:
    with KafkasAssignor() as peer:
        yield peer


@dataclass
class Tally:
    """Summed up over histories. `state_moved`: stateful tasks that came to a process without their state."""

    active_moved: int = 0
    state_moved: int = 0
    imbalance: int = 0
    imbalance_with_standbys: int = 0
    standbys_missing: int = 0
    piled: int = 0
    rounds: int = 0


def play(peer: Peer, seed: int, tally: Tally) -> None:
    random = Random(seed)
    subtopologies = tuple(
        AssignableSubtopology(subtopology_id=f"s{number}", tasks=random.randint(1, 24), stateful=random.random() < 0.7)
        for number in range(random.randint(1, 4))
    )
    standbys = random.choice([0, 0, 1, 2])
    peer.reset(subtopologies, standbys)
    members: dict[str, str] = {}
    serial = 0
    before: Assignment = {}
    for _ in range(ROUNDS):
        for _ in range(random.choice([1, 1, 1, 2, 4])):
            if len(members) > 1 and random.random() < 0.45:
                gone = random.choice(sorted(members))
                del members[gone]
                peer.leave(gone)
            else:
                serial += 1
                members[f"m{serial}"] = f"p{serial if random.random() < 0.8 else random.randint(1, 3)}"
                peer.join(f"m{serial}", members[f"m{serial}"])
        after = peer.assign()
        count(tally, subtopologies, standbys, members, before, after)
        before = after


def count(
    tally: Tally,
    subtopologies: tuple[AssignableSubtopology, ...],
    standbys: int,
    members: dict[str, str],
    before: Assignment,
    after: Assignment,
) -> None:
    tally.rounds += 1
    owner = {task: member for member, tasks in before.items() for task in tasks.active}
    moved = [task for member, tasks in after.items() for task in tasks.active if owner.get(task, member) != member]
    tally.active_moved += len(moved)
    stateful = {each.subtopology_id for each in subtopologies if each.stateful}
    had = {
        (task, members[member])
        for member, tasks in before.items()
        if member in members
        for task in (*tasks.active, *tasks.standby)
    }
    has = {(task, members[m]) for m, tasks in after.items() for task in (*tasks.active, *tasks.standby)}
    if before:
        tally.state_moved += sum(task[0] in stateful for task, _ in has - had)
    loads = [len(tasks.active) for tasks in after.values()]
    tally.imbalance += max(0, max(loads) - min(loads) - 1)
    totals = [len(tasks.active) + len(tasks.standby) for tasks in after.values()]
    tally.imbalance_with_standbys += max(0, max(totals) - min(totals) - 1)
    wanted = min(standbys, len(set(members.values())) - 1)
    placed = sum(len(tasks.standby) for tasks in after.values())
    tally.standbys_missing += wanted * sum(each.tasks for each in subtopologies if each.stateful) - placed
    for each in subtopologies:
        share = -(-each.tasks // len(members))
        for tasks in after.values():
            tally.piled += max(0, sum(task[0] == each.subtopology_id for task in tasks.active) - share)


def test_histories(kafka: KafkasAssignor, capsys: pytest.CaptureFixture[str]) -> None:
    kafkas, ours = Tally(), Tally()
    our_assignor = OurAssignor()
    for seed in range(HISTORIES):
        play(kafka, seed, kafkas)
        play(our_assignor, seed, ours)
    with capsys.disabled():
        print(f"\n  Kafka {kafkas}\n  ours  {ours}")
    assert ours.rounds == kafkas.rounds == HISTORIES * ROUNDS
    # The histories differ after the first round. Kafka leaves some members with a task too many, so it moves that many
    # fewer; that ours moves the fewest possible in each round is a property test of its own.
    assert ours.active_moved <= kafkas.active_moved + kafkas.imbalance
    assert ours.state_moved <= kafkas.state_moved
    assert ours.imbalance == 0 <= kafkas.imbalance
    assert ours.standbys_missing == 0 <= kafkas.standbys_missing
    assert ours.imbalance_with_standbys <= kafkas.imbalance_with_standbys
    assert ours.piled <= kafkas.piled
