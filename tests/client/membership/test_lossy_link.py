"""Whatever gets lost, late or doubled between members and coordinator: nobody works on what is not its own, what is to
be given back is given back, and the group settles."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.client.membership.lossy_group import FATES, Fate, LossyGroup
from tests.client.membership.virtual_group import settled

from headrace.client.membership.topology import Subtopology, Topology

PARTITIONS = 8
TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))
HAPPENINGS = ("join", "leave", "wait")


def settle(group: LossyGroup, limit_ms: int) -> None:
    began_ms = group.now_ms
    while not (settled(group, PARTITIONS) and group.described().group_state == "Stable"):
        assert group.now_ms - began_ms < limit_ms, f"not settled: {group.owned()} {group.described()}"
        group.run(100)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=12),
    happenings=st.lists(st.sampled_from(HAPPENINGS), max_size=4),
    close_ms=st.sampled_from([0, 50, 400]),
)
@example(seed=0, fates=["fine", "twice"], happenings=["join", "join", "leave"], close_ms=400)
@example(seed=0, fates=["fine", "request-lost"], happenings=["join", "join"], close_ms=0)
@example(seed=0, fates=["reply-lost", "fine"], happenings=["join", "join", "leave", "join"], close_ms=50)
@example(seed=0, fates=["very-late", "reply-lost", "late", "request-lost", "fine"], happenings=["join"], close_ms=400)
def test_lossy_link_never_yields_two_owners_and_settles(
    seed: int, fates: list[Fate], happenings: list[str], close_ms: int
) -> None:
    group = LossyGroup(TOPOLOGY, {"flights": PARTITIONS}, seed=seed, fates=fates, close_ms=close_ms)
    group.add("m0")
    for number, happening in enumerate(happenings, start=1):
        living = sorted(name for name, member in group.members.items() if member.alive)
        if happening == "join":
            group.add(f"m{number}")
        elif happening == "leave" and len(living) > 1:
            leaver = group.members[living[number % len(living)]]
            leaver.membership.leave(group.now_ms)
            group.run(6_000)  # its patience with a coordinator that does not answer
            leaver.alive = False
        group.run(1_500)
    group.is_calm = True
    settle(group, 65_000)  # a leave that nobody heard ends with the session
    shares = group.owned().values()
    assert max(shares) - min(shares) <= 1
