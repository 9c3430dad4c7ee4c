"""Responses of StreamsGroupDescribe for large groups: the bytes of a member are kept while its description is the same.

During a rebalance every member of a group asks for the description of all. kio writes 1,000 members in 27 ms, so 1,000
requests took 27 s of the coordinator's core, and heartbeats waited behind them. The coordinator returns the very same
object for a member that did not change (`DescribedMembers`), so its bytes are looked up by the object's identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.protocol.array_bounds import encode_unsigned_varint

if TYPE_CHECKING:
    from headrace.protocol.messages import streams_group_describe_response as m

__all__ = ["MemberBytes"]

FEWEST_MEMBERS = 20
"""Smaller groups are written by kio: the splice writes the group three times without its members."""

MOST_KEPT = 20_000
_NO_ELEMENTS = 0x01  # a compact length is stored as length + 1


class MemberBytes:
    """Bytes of described members by version and identity. Mutable: a cache of at most MOST_KEPT members.

    An entry holds its member, so an identity is not reused while the entry exists.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[m.Member, bytes]] = {}

    def encode(
        self, api_version: int, response: m.StreamsGroupDescribeResponse, write: Callable[[object], bytes]
    ) -> bytes | None:
        """Return what `write(response)` returns, with kept bytes in place of members; None: not worth it.

        Args:
            api_version: version of the response.
            response: a StreamsGroupDescribeResponse.
            write: writes a response in that version.
        """
        if len(response.groups) != 1 or len(response.groups[0].members) < FEWEST_MEMBERS:
            return None
        group = response.groups[0]

        def write_with(*members: m.Member) -> bytes:
            return write(replace(response, groups=(replace(group, members=members),)))

        # 1. A group with one member differs from the group without members first in the length of the array: that is
        #    where members begin. Everything behind the empty array follows the members.
        empty, single = write_with(), write_with(group.members[0])
        begin = next(i for i, (left, right) in enumerate(zip(empty, single, strict=False)) if left != right)
        if empty[begin] != _NO_ELEMENTS:
            return None  # another layout: kio writes it
        tail = empty[begin + 1 :]
        # 2. A member's bytes are those between head and tail of a group that has only this member.
        parts = [empty[:begin], encode_unsigned_varint(len(group.members) + 1)]
        for member in group.members:
            key = (api_version, id(member))
            known = self._kept.get(key)
            if known is None:
                alone = write_with(member)
                known = self._kept[key] = member, alone[begin + 1 : len(alone) - len(tail)]
            parts.append(known[1])
        parts.append(tail)
        # 3. The oldest entries go first; a dictionary keeps the order of insertion.
        while len(self._kept) > max(MOST_KEPT, len(group.members)):
            del self._kept[next(iter(self._kept))]
        return b"".join(parts)
