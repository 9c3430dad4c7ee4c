"""ListGroups (API 16): v4 filters by state, v5 by type. Filters ignore case and underscores, so NotReady is found."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

from kio.schema.types import GroupId

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.group_registry import Group
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.messages import list_groups_response as m

__all__ = ["list_groups"]


def list_groups(groups: Iterable[Group], states: Collection[str], types: Collection[str]) -> tuple[m.ListedGroup, ...]:
    """Those whose state and type are asked for; an empty filter asks for all."""
    wanted_states, wanted_types = [_plain(state) for state in states], [_plain(kind) for kind in types]
    listed = (_listed(group) for group in groups)
    return tuple(
        group
        for group in listed
        if (not wanted_states or _plain(group.group_state) in wanted_states)
        and (not wanted_types or _plain(group.group_type) in wanted_types)
    )


def _listed(group: Group) -> m.ListedGroup:
    if isinstance(group, StreamsGroup):
        protocol_type, state, kind = "streams", group.state().value, "streams"
    elif isinstance(group, ConsumerGroup):
        protocol_type, state, kind = "consumer", group.state().value, "consumer"
    else:
        protocol_type, state, kind = group.protocol_type, group.state(), "classic"
    return m.ListedGroup(
        group_id=cast("GroupId", group.group_id), protocol_type=protocol_type, group_state=state, group_type=kind
    )


def _plain(name: str) -> str:
    return name.strip().replace("_", "").lower()
