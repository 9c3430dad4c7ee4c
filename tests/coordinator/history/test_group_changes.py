"""Changes of a group that a recorder sees: leaves that no record shows yet, and static members."""

from __future__ import annotations

from headrace.coordinator.history.group_changes import GroupChanges
from headrace.coordinator.records import schemas as s


def generation(number: int, *members: str, instance: str | None = None) -> tuple[object, object]:
    value = s.GroupMetadataValue(
        protocol_type="consumer",
        generation=number,
        protocol="range",
        members=tuple(
            s.GroupMember(
                member_id=member,
                group_instance_id=instance,
                client_id=f"client-{member}",
                client_host="/h",
                session_timeout_ms=10_000,
                subscription=b"",
                assignment=b"",
            )
            for member in members
        ),
    )
    return s.GroupMetadataKey(group="g"), value


def test_a_leave_is_returned_once() -> None:
    changes = GroupChanges()
    assert [event.kind for event in changes.apply(*generation(1, "a", "b"), 0)] == ["joined", "joined", "rebalance"]
    assert changes.client_of("b") == "client-b"
    (left,) = changes.leave("b", 100)
    assert (left.kind, left.client_id, left.at_ms) == ("left", "client-b", 100)
    assert changes.leave("b", 150) == changes.leave("unknown", 150) == []
    assert [event.kind for event in changes.apply(*generation(2, "a"), 200)] == ["rebalance"]
    assert (changes.member_count, changes.client_of("b")) == (1, "")


def test_a_static_member_is_replaced_or_has_left() -> None:
    changes = GroupChanges()
    changes.apply(*generation(1, "a", instance="i"), 0)
    assert [event.kind for event in changes.apply(*generation(1, "b", instance="i"), 100)] == ["replaced"]
    assert changes.take_leaves() == []
    assert changes.apply(*generation(2, instance="i"), 200)[0].kind == "rebalance"
    assert [(event.kind, event.member_id) for event in changes.take_leaves()] == [("left", "b")]
    assert changes.take_leaves() == []
