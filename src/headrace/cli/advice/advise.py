"""The rules in the order in which they are asked, each seeing what those before it have changed.

So the advice is one whole: the heartbeat fits the session that is proposed, not the one that was found. Advice taken
has no further advice (a property test).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cli.advice import liveness_rules, progress_rules, protocol_rules
from headrace.cli.advice.finding import Finding, Rule
from headrace.cli.advice.given_configuration import GivenConfiguration
from headrace.cli.advice.situation import Situation

__all__ = ["RULES", "Advice", "advise"]

RULES = (
    Rule(name="written-twice", check=protocol_rules.written_twice),
    Rule(name="mistyped-setting", check=protocol_rules.mistyped_setting),
    Rule(name="no-number", check=protocol_rules.no_number),
    Rule(name="client-release", check=protocol_rules.client_release),
    Rule(name="set-on-the-broker", check=protocol_rules.set_on_the_broker),
    Rule(name="eager-assignor", check=protocol_rules.eager_assignor),
    Rule(name="static-member", check=liveness_rules.static_member),
    Rule(name="session-timeout", check=liveness_rules.session_timeout),
    Rule(name="heartbeat-interval", check=liveness_rules.heartbeat_interval),
    Rule(name="max-poll-interval", check=liveness_rules.max_poll_interval),
    Rule(name="auto-commit", check=progress_rules.auto_commit),
    Rule(name="first-position", check=progress_rules.first_position),
    Rule(name="standby-replicas", check=protocol_rules.standby_replicas),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Findings for one configuration; `stage` is its place, 1 to 4, between defaults and a platform.

    docs/reference/advice.md describes the stages.
    """

    findings: tuple[Finding, ...]
    corrected: GivenConfiguration
    stage: int


def advise(given: GivenConfiguration, situation: Situation) -> Advice:
    """Apply all rules in order. Each one sees the configuration as corrected by those before it."""
    corrected = given
    findings: list[Finding] = []
    for rule in RULES:
        for finding in tuple(rule.check(corrected, situation)):
            findings.append(finding)
            corrected = corrected.with_values(finding.changes)
    return Advice(findings=tuple(findings), corrected=corrected, stage=_stage(given, situation, findings))


def _stage(given: GivenConfiguration, situation: Situation, findings: list[Finding]) -> int:
    """Return how far the configuration is on the way from defaults to a platform, by what it shows.

    1: something is at risk, a change stops all members, or times are the client's defaults. 2: times were chosen, and a
    change stops only what moves. 3: commits are the program's own, so that work may be apart from polls. 4: members
    keep their names, so that a restart moves nothing.
    """
    if any(finding.level != "hint" or finding.rule == "eager-assignor" for finding in findings):
        return 1
    chosen = [
        name for name in ("session.timeout.ms", "max.poll.interval.ms") if given.text(name) != given.default(name)
    ]
    if not chosen and not situation.hands_over:
        return 1
    if given.flag("enable.auto.commit"):
        return 2
    return 4 if given.given("group.instance.id") else 3
