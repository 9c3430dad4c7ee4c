"""Replay of an incident in the simulator: as it was, with the corrected settings, and with the new protocol.

The simulator runs the real coordinator and the real memberships under virtual time, so a row is a run, not an estimate.
The recorded absences become disturbances one after the other, each of them after the group has settled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.cli.advice.situation import in_words
from headrace.cli.terminal import align
from headrace.coordinator.group_conversion import KAFKAS_ASSIGNORS
from headrace.simulator.incident_replay import (
    Disturbance,
    DisturbanceKind,
    ReplayOutcome,
    ReplaySettings,
    replay_incident,
)

if TYPE_CHECKING:
    from headrace.cli.doctor.corrections import Correction
    from headrace.cli.doctor.findings import Finding
    from headrace.cli.doctor.group_facts import GroupFacts

__all__ = ["WhatIf", "replay_finding", "what_if_lines", "what_if_rows"]

# Bounds of a replay that takes about a second for each row.
MOST_DISTURBANCES, MOST_MEMBERS, MOST_PARTITIONS, LONGEST_MS = 5, 12, 48, 900_000
_KINDS: dict[str, DisturbanceKind] = {
    "slow-batches": "busy",
    "session-expired": "pause",
    "unsuitable-settings": "pause",
    "rolling-deploy-without-static-members": "restart",
}
_WORDS: dict[DisturbanceKind, str] = {
    "busy": "batches of up to {}",
    "pause": "pauses of up to {}",
    "restart": "restarts of up to {}",
}
DEFAULT_SESSION_MS, DEFAULT_POLL_MS, BROKER_HEARTBEAT_MS = 45_000, 300_000, 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Replays of one finding.

    Attributes:
        cause: The finding's cause.
        incident: What is replayed, in words.
        rows: Label of the settings and the outcome of each replay; the first one is as it was.
    """

    cause: str
    incident: str
    rows: tuple[tuple[str, ReplayOutcome], ...]


def replay_finding(
    finding: Finding, facts: GroupFacts, correction: Correction | None, *, partitions: int
) -> WhatIf | None:
    """Return the replays of a finding, or None if the simulator cannot express its cause.

    Args:
        finding: The finding.
        facts: Facts about the group.
        correction: The corrected settings, if there are any.
        partitions: Partitions that the group reads; 0: unknown, two for each member.
    """
    kind = _KINDS.get(finding.cause)
    if kind is None or facts.group_type not in ("classic", "consumer") or not facts.absences or not facts.members:
        return None
    if kind == "busy" and facts.max_poll_interval_ms is None:
        return None
    was = _settings(facts)
    disturbances = _disturbances(kind, facts, was)
    members = min(facts.members, MOST_MEMBERS)
    count = min(partitions or 2 * members, MOST_PARTITIONS)
    rows = [("as it was", was)]
    if correction is not None:
        text = ", ".join(f"{name}={value}" for name, value in correction.changes.items() if value is not None)
        rows.append((text, _corrected(was, correction)))
    if was.protocol == "classic":
        modern = replace(was, protocol="consumer", session_timeout_ms=DEFAULT_SESSION_MS)
        rows.append(("group.protocol=consumer", replace(modern, heartbeat_interval_ms=BROKER_HEARTBEAT_MS)))
    if len(rows) < 2:
        return None  # nothing to compare with
    longest = in_words(max(each.duration_ms for each in disturbances))
    return WhatIf(
        cause=finding.cause,
        incident=f"{len(disturbances)} {_WORDS[kind].format(longest)}, {members} members, {count} partitions",
        rows=tuple(
            (label, replay_incident(settings, disturbances, members=members, partitions=count))
            for label, settings in rows
        ),
    )


def _settings(facts: GroupFacts) -> ReplaySettings:
    is_classic = facts.group_type == "classic"
    session_ms = facts.session_timeout_ms or DEFAULT_SESSION_MS
    return ReplaySettings(
        protocol="classic" if is_classic else "consumer",
        assignor=facts.assignor if facts.assignor in KAFKAS_ASSIGNORS else "range",
        session_timeout_ms=session_ms,
        # Records do not hold the heartbeat; clients' default is 3 s, and no session is below three of them.
        heartbeat_interval_ms=min(3_000, session_ms // 4) if is_classic else BROKER_HEARTBEAT_MS,
        max_poll_interval_ms=facts.max_poll_interval_ms or DEFAULT_POLL_MS,
        static=facts.is_static,
    )


def _corrected(was: ReplaySettings, correction: Correction) -> ReplaySettings:
    changes = correction.changes
    session_ms = int(changes.get("session.timeout.ms") or was.session_timeout_ms)
    return replace(
        was,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=int(changes.get("heartbeat.interval.ms") or was.heartbeat_interval_ms),
        max_poll_interval_ms=int(changes.get("max.poll.interval.ms") or was.max_poll_interval_ms),
        static=was.static or bool(changes.get("group.instance.id")),
    )


def _disturbances(kind: DisturbanceKind, facts: GroupFacts, was: ReplaySettings) -> list[Disturbance]:
    """The newest absences: a pause begins a session, a batch an interval before the member is gone."""
    before_ms = {"pause": was.session_timeout_ms, "busy": was.max_poll_interval_ms}.get(kind, 0)
    clients = sorted({absence.client for absence in facts.absences})
    found: list[Disturbance] = []
    at_ms = 5_000
    for absence in facts.absences[-MOST_DISTURBANCES:]:
        duration_ms = min(absence.duration_ms + before_ms, LONGEST_MS)
        member = clients.index(absence.client)
        found.append(Disturbance(at_ms=at_ms, member=member, kind=kind, duration_ms=duration_ms))
        at_ms += duration_ms + was.session_timeout_ms + 10_000
    return found


def what_if_rows(what_if: WhatIf) -> list[tuple[str, ...]]:
    """Return the replays as rows of texts, headings first."""
    rows: list[tuple[str, ...]] = [
        ("settings", "rebalances", "interruptions", "standstill", "longest", "processed twice")
    ]
    rows += [
        (
            label,
            str(outcome.rebalances),
            str(outcome.interrupted),
            in_words(outcome.standstill_ms),
            in_words(outcome.longest_standstill_ms),
            str(outcome.processed_twice),
        )
        for label, outcome in what_if.rows
    ]
    return rows


def what_if_lines(what_if: WhatIf) -> list[str]:
    """Return the replays as a table for the terminal."""
    rows = what_if_rows(what_if)
    return [f"what if  {what_if.incident}, replayed in the simulator", *align(rows, indent="  ")]
