"""Decoding of members' user data for people: what each member sent to the leader, and what the leader sent back. Pure.

Kafka has user data in two places that are easily confused: in the *subscription* of each member (JoinGroup, member to
leader) and in its *assignment* (SyncGroup, leader to member). Only the assignor that wrote user data knows its layout,
so bytes are decoded by the group's assignor; those of an unknown assignor are shown as hexadecimal digits.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from headrace.assignors.assignor import partitions_by_topic
from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment, decode_subscription
from headrace.assignors.experimental.leader_independent import LeaderIndependentSticky
from headrace.assignors.experimental.leader_independent import decode_user_data as _leader_independent
from headrace.assignors.experimental.warm_spares import WarmSpares
from headrace.assignors.experimental.warm_spares import decode_user_data as _warm_spares
from headrace.assignors.experimental.weighted import WeightedByLoad
from headrace.assignors.experimental.weighted import decode_user_data as _weighted
from headrace.assignors.kafka_assignors import CooperativeStickyAssignor, StickyAssignor, decode_sticky_user_data
from headrace.assignors.streams_user_data import (
    STREAMS_ASSIGNOR,
    decode_streams_assignment,
    decode_streams_subscription,
)

__all__ = ["Role", "UserDataReport", "report_user_data"]

Role = Literal["subscription", "assignment"]
Decode = Callable[[bytes], dict[str, object] | None]
# One line of a terminal; the number of bytes follows.
MAX_HEX_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDataReport:
    """User data of one member in one direction.

    `user_data` is None where the member sent none; `decoded` is None where the assignor's layout is unknown or the
    bytes do not have it; `unreadable` is the reason why the whole subscription or assignment could not be read.
    """

    role: Role
    user_data: bytes | None = None
    decoded: Mapping[str, object] | None = None
    unreadable: str | None = None

    def text(self) -> str:
        """Return one line: JSON of decoded bytes, else hexadecimal digits (of the first 64 bytes), else `-`."""
        if self.unreadable is not None:
            return f"unreadable {self.role}: {self.unreadable}"
        if self.user_data is None:
            return "-"
        if self.decoded is not None:
            return json.dumps(self.decoded, separators=(",", ":"), ensure_ascii=False)
        more = "…" if len(self.user_data) > MAX_HEX_BYTES else ""
        return f"0x{self.user_data[:MAX_HEX_BYTES].hex()}{more} ({len(self.user_data)} bytes)"


def report_user_data(assignor: str, role: Role, data: bytes, decode: Decode | None = None) -> UserDataReport:
    """Read the user data inside a member's subscription or assignment.

    Args:
        assignor: name of the assignor that the group has chosen.
        role: which of the two `data` is.
        data: the member's bytes as DescribeGroups returns them; empty where there are none.
        decode: decodes the user data; None takes the decoder of the assignor, if it is known here.
    """
    if not data:
        return UserDataReport(role=role)
    try:
        read = decode_subscription(data) if role == "subscription" else decode_assignment(data)
    except MalformedUserData as error:
        return UserDataReport(role=role, user_data=data, unreadable=str(error))
    if read.user_data is None:
        return UserDataReport(role=role)
    # By the group's assignor, not by trial: bytes of one layout may be valid in another.
    if decode is None:
        decode = _DECODERS.get((assignor, role), _DECODERS.get(assignor))
    decoded = None if decode is None else decode(read.user_data)
    return UserDataReport(role=role, user_data=read.user_data, decoded=decoded)


def _sticky(data: bytes) -> dict[str, object] | None:
    try:
        owned, generation_id = decode_sticky_user_data(data)
    except MalformedUserData:
        return None
    return {"generation": generation_id, "owned": partitions_by_topic(owned)}


def _cooperative_sticky(data: bytes) -> dict[str, object] | None:
    """The generation alone: owned partitions are a field of the subscription itself."""
    return {"generation": struct.unpack(">i", data)[0]} if len(data) == struct.calcsize(">i") else None


_DECODERS: Final[Mapping[str | tuple[str, Role], Decode]] = MappingProxyType(
    {
        StickyAssignor.name: _sticky,
        CooperativeStickyAssignor.name: _cooperative_sticky,
        (STREAMS_ASSIGNOR, "subscription"): decode_streams_subscription,
        (STREAMS_ASSIGNOR, "assignment"): decode_streams_assignment,
        LeaderIndependentSticky.name: _leader_independent,
        WarmSpares.name: _warm_spares,
        WeightedByLoad.name: _weighted,
    }
)
