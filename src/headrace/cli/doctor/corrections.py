"""The corrected configuration for a finding, by the rules of `headrace advise`. Pure.

What the group's history shows (sessions, intervals, how long members were away) becomes the situation that `advise` is
given; settings that no record holds are left to the client's defaults and are not mentioned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.advice.advise import advise
from headrace.cli.advice.given_configuration import Client, GivenConfiguration, assignor_for
from headrace.cli.advice.situation import GroupKind, Situation, in_words
from headrace.coordinator.group_conversion import KAFKAS_ASSIGNORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.doctor.findings import Finding
    from headrace.cli.doctor.group_facts import GroupFacts

__all__ = ["Correction", "correct_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Settings that prevent a finding.

    Attributes:
        situation: What the history showed, in words.
        given: Settings that the history shows.
        changes: Setting → its new value; None removes it.
        reasons: Why, one for each rule of `advise`.
    """

    situation: str
    given: dict[str, str]
    changes: dict[str, str | None]
    reasons: tuple[str, ...]


def correct_settings(finding: Finding, facts: GroupFacts, *, client: Client = "java") -> Correction | None:
    """Return the corrected settings for a finding, or None if settings of members do not prevent it.

    Args:
        finding: The finding.
        facts: Facts about the group.
        client: The client whose names and defaults count.
    """
    if facts.group_type not in ("classic", "consumer") or not facts.absences:
        return None
    kind: GroupKind = "classic" if facts.group_type == "classic" else "consumer"
    longest_ms = max(absence.duration_ms for absence in facts.absences)
    match finding.cause:
        case "slow-batches" if facts.max_poll_interval_ms is not None:
            worst_ms = facts.max_poll_interval_ms + longest_ms
            situation, words = Situation(kind=kind, worst_batch_ms=worst_ms), f"batches up to {in_words(worst_ms)}"
            wanted: Sequence[str] = ("max.poll.interval.ms",)
        case "session-expired" | "unsuitable-settings" if facts.session_timeout_ms is not None:
            pause_ms = facts.session_timeout_ms + longest_ms
            situation, words = Situation(kind=kind, longest_pause_ms=pause_ms), f"pauses up to {in_words(pause_ms)}"
            wanted = ("session.timeout.ms", "heartbeat.interval.ms")
        case "rolling-deploy-without-static-members":
            situation = Situation(kind=kind, restart_ms=longest_ms, deploy="kept-names")
            words = f"restarts of {in_words(longest_ms)}; instances keep their names"
            wanted = ("group.instance.id", "session.timeout.ms", "heartbeat.interval.ms")
        case _:
            return None
    given = _given(facts, client)
    advice = advise(given, situation)
    changes = {name: value for each in advice.findings for name, value in each.changes.items() if name in wanted}
    if not changes:
        return None
    reasons = tuple(f"{each.setting}: {each.reason}" for each in advice.findings if each.changes.keys() & changes)
    return Correction(situation=words, given=dict(given.values), changes=changes, reasons=reasons)


def _given(facts: GroupFacts, client: Client) -> GivenConfiguration:
    values: dict[str, str] = {}
    if facts.group_type == "consumer":
        values["group.protocol"] = "consumer"
    elif facts.assignor in KAFKAS_ASSIGNORS:
        values["partition.assignment.strategy"] = assignor_for(client, facts.assignor)
    if facts.session_timeout_ms is not None:
        values["session.timeout.ms"] = str(facts.session_timeout_ms)
    if facts.max_poll_interval_ms is not None:
        values["max.poll.interval.ms"] = str(facts.max_poll_interval_ms)
    return GivenConfiguration(client=client, values=values)
