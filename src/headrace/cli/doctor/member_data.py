"""User data of a classic group's members, from the newest generation that the coordinator recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.cli.doctor.group_events import GroupRecord
from headrace.cli.member_user_data import report_member_data
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.serde import decode
from headrace.coordinator.request_context import CorruptRecord

__all__ = ["MemberData", "newest_member_data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberData:
    """One member's user data in both directions, as text: JSON where the layout is known, else hexadecimal digits."""

    member_id: str
    client_id: str
    protocol: str
    sent: str
    received: str


def newest_member_data(records: Iterable[GroupRecord], group_id: str) -> tuple[MemberData, ...]:
    """Return the user data of the newest generation with members; members without user data are left out."""
    newest: s.GroupMetadataValue | None = None
    for record in records:
        try:
            found = decode(record.key, record.value)
        except CorruptRecord:
            continue  # a version that is newer than this program
        if found is None or not isinstance(found.key, s.GroupMetadataKey) or found.key.group != group_id:
            continue
        if isinstance(found.value, s.GroupMetadataValue) and found.value.members:
            newest = found.value
    if newest is None:
        return ()
    read = [_member(newest.protocol_type, newest.protocol or "", member) for member in newest.members]
    return tuple(each for each in read if (each.sent, each.received) != ("-", "-"))


def _member(protocol_type: str, protocol: str, member: s.GroupMember) -> MemberData:
    return MemberData(
        member_id=member.member_id,
        client_id=member.client_id,
        protocol=protocol,
        sent=report_member_data(protocol_type, protocol, "subscription", member.subscription).text(),
        received=report_member_data(protocol_type, protocol, "assignment", member.assignment).text(),
    )
