"""Facts that a group's events show about its members: their settings, how many there are, and how long they were away.

These are the inputs of a corrected configuration and of a replay. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cli.doctor.group_events import GroupEvent

__all__ = ["Absence", "GroupFacts", "collect_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A member that left and came back, or was replaced: from the leave to the next join, in ms."""

    client: str
    left_ms: int
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """Facts about a group.

    Attributes:
        group_type: classic, consumer or streams; "" if no member was seen.
        members: The most members at once.
        session_timeout_ms: The shortest session of a member; None outside classic groups.
        max_poll_interval_ms: The shortest rebalance timeout of a member; None if it is unknown.
        assignor: The newest assignor of a classic group.
        is_static: Whether all members have a group.instance.id.
        absences: Absences that were followed by a join.
    """

    group_type: str
    members: int
    session_timeout_ms: int | None
    max_poll_interval_ms: int | None
    assignor: str
    is_static: bool
    absences: tuple[Absence, ...]


def collect_facts(events: Sequence[GroupEvent], *, since_ms: int = 0) -> GroupFacts:
    """Return the facts that events in order of time show.

    Args:
        events: All known events: the settings of a member are in its join, which may be old.
        since_ms: Earlier absences are left out.
    """
    seen = [event for event in events if event.kind in ("joined", "replaced")]
    sessions = [event.session_timeout_ms for event in seen if event.session_timeout_ms is not None]
    # aiokafka and clients before Kafka 0.10.1 send their session as rebalance timeout; their interval is unknown.
    intervals = [
        event.rebalance_timeout_ms
        for event in seen
        if event.rebalance_timeout_ms is not None and event.rebalance_timeout_ms != event.session_timeout_ms
    ]
    return GroupFacts(
        group_type=next((event.group_type for event in reversed(seen) if event.group_type), ""),
        members=_most_at_once(events),
        session_timeout_ms=min(sessions, default=None),
        max_poll_interval_ms=min(intervals, default=None),
        assignor=next((event.assignor for event in reversed(events) if event.assignor), ""),
        is_static=bool(seen) and all(event.instance_id for event in seen),
        absences=tuple(absence for absence in _absences(events) if absence.left_ms >= since_ms),
    )


def _most_at_once(events: Sequence[GroupEvent]) -> int:
    present = most = 0
    for event in events:
        present += {"joined": 1, "left": -1}.get(event.kind, 0)
        most = max(most, present)
    return most


def _absences(events: Sequence[GroupEvent]) -> list[Absence]:
    """Pair each leave with the next join: of the same client if it comes back, else of a new one."""
    joins = [event for event in events if event.kind == "joined"]
    returning = Counter((event.client_id, event.client_host) for event in joins)
    waiting: dict[tuple[str, str], list[GroupEvent]] = defaultdict(list)
    found = []
    for event in events:
        client = (event.client_id, event.client_host)
        if event.kind == "left":
            # Whether the client itself comes back is known from the joins that are still to come.
            waiting[client if returning[client] else ("", "")].append(event)
        elif event.kind == "joined":
            returning[client] -= 1
            left = next((waiting[key].pop(0) for key in (client, ("", "")) if waiting[key]), None)
            if left is not None:
                found.append(Absence(client=left.client_id, left_ms=left.at_ms, duration_ms=event.at_ms - left.at_ms))
    return found
