"""Which of the protocols that all members speak a generation uses: a vote, each member for the one it prefers.

A draw is decided as Kafka decides it, by the order in which a small Java hash map walks its keys: two members with
opposite preferences get the same protocol from both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headrace.coordinator.classic.member import ClassicMember
from headrace.protocol.partition_hash import java_hash

__all__ = ["candidates", "selected_protocol"]

_FIRST_TABLE = 16
_LOAD = 0.75


def candidates(support: Mapping[str, int], member_count: int) -> frozenset[str]:
    """`support`: protocol → how many members speak it."""
    return frozenset(name for name, count in support.items() if count == member_count)


def selected_protocol(members: Iterable[ClassicMember], common: Collection[str]) -> str:
    """Raises LookupError when a member speaks none of `common`."""
    votes: dict[str, int] = {}
    for member in members:
        choice = member.vote(common)
        votes[choice] = votes.get(choice, 0) + 1
    size = _FIRST_TABLE
    while len(votes) > size * _LOAD:
        size *= 2
    walked = sorted(votes, key=lambda name: _bucket(name, size))  # stable: in a bucket the older comes first
    return max(walked, key=lambda name: votes[name])


def _bucket(name: str, size: int) -> int:
    code = java_hash(name)
    return (code ^ (code >> 16)) & (size - 1)
