"""`headrace advise` as a function: the rules in order, the printed report, and the templates of the four stages.

Each rule sees the configuration as corrected by the rules before it, so that the proposed heartbeat fits the proposed
session. A corrected configuration has no findings, and neither has a template in its situation (property tests; each
template is also passed to librdkafka and to our own Consumer).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cli.advice import liveness_rules, protocol_rules
from headrace.cli.advice.given_configuration import Client, GivenConfiguration, assignor_for
from headrace.cli.advice.situation import Finding, Rule, Situation, in_words
from headrace.cli.terminal import align

__all__ = [
    "RULES",
    "TEMPLATES",
    "Advice",
    "Template",
    "advice_document",
    "advice_lines",
    "advise",
    "situation_words",
    "template",
    "template_text",
]

# The order is part of the result. Rules about the file's form come first, since they remove what later rules would
# misread; then what the protocol allows, since it decides which times count at all; then the times, each after those it
# depends on: the session after static membership, the heartbeat after the session.
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
    Rule(name="auto-commit", check=liveness_rules.auto_commit),
    Rule(name="first-position", check=liveness_rules.first_position),
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
        # The tuple is made before the first change: a rule judges one configuration, not one that changes under it.
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
    # 1. Anything worse than a hint is a risk. Eager assignment is a hint only because it needs a rollout to change, and
    #    it stops all members at each change.
    if any(finding.level != "hint" or finding.rule == "eager-assignor" for finding in findings):
        return 1
    # 2. Untouched timeouts show that no thought was given to pauses, unless the work is handed to other threads.
    chosen = [
        name for name in ("session.timeout.ms", "max.poll.interval.ms") if given.text(name) != given.default(name)
    ]
    if not chosen and not situation.hands_over:
        return 1
    # 3. With automatic commits a poll counts as success, so work cannot be apart from polls.
    if given.flag("enable.auto.commit"):
        return 2
    return 4 if given.given("group.instance.id") else 3


_PACKAGE = "org.apache.kafka.clients.consumer."  # the file has it, a row need not


def situation_words(situation: Situation) -> str:
    """`a classic group; batches up to 4 min; instances keep their names`."""
    parts = [f"a {situation.kind} group"]
    if situation.worst_batch_ms is not None:
        parts.append(f"batches up to {in_words(situation.worst_batch_ms)}")
    if situation.longest_pause_ms is not None:
        parts.append(f"pauses up to {in_words(situation.longest_pause_ms)}")
    if situation.restart_ms is not None:
        parts.append(f"restarts of {in_words(situation.restart_ms)}")
    if situation.deploy is not None:
        parts.append("instances keep their names" if situation.deploy == "kept-names" else "names change at a restart")
    if situation.hands_over:
        parts.append("records are handed to other threads")
    if situation.state_bytes is not None:
        parts.append(f"{situation.state_bytes / 1e9:g} GB of state")
    return "; ".join(parts)


def advice_lines(advice: Advice) -> list[str]:
    """Return the findings as aligned lines, each with its reason below it."""
    rows = [(_setting_text(finding), finding.word, finding.rule, _change(finding)) for finding in advice.findings]
    lines = []
    for head, finding in zip(align(rows, indent="  "), advice.findings, strict=True):
        lines += [head, f"      {finding.reason}"]
    return lines


def _setting_text(finding: Finding) -> str:
    return finding.setting if finding.given is None else f"{finding.setting}={finding.given.replace(_PACKAGE, '')}"


def _change(finding: Finding) -> str:
    lines = []
    for setting, value in finding.changes.items():
        name = "" if setting == finding.setting else f"{setting}="
        lines.append("out" if value is None else f"{name}{value.replace(_PACKAGE, '')}")
    return "→ " + ", ".join(lines) if lines else "yours to decide"


def advice_document(advice: Advice, situation: Situation, file: str, written: str | None) -> dict[str, object]:
    """Return the findings as the document that `--json` prints."""
    return {
        "file": file,
        "client": advice.corrected.client,
        "group": situation.kind,
        "stage": advice.stage,
        "findings": [
            {
                "rule": finding.rule,
                "setting": finding.setting,
                "given": finding.given,
                "level": finding.level,
                "word": finding.word,
                "reason": finding.reason,
                "changes": finding.changes,
            }
            for finding in advice.findings
        ],
        "written": written,
    }


_COOPERATIVE = "cooperative-sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """`settings`: (setting, value, why); assignors in short names."""

    stage: int
    what: str
    situation: Situation
    settings: tuple[tuple[str, str, str], ...]


_CALM = (
    ("session.timeout.ms", "60000", "A long pause of the process is no death."),
    ("heartbeat.interval.ms", "15000", "A quarter of the session: three may be lost."),
)
_TUNED = (
    *_CALM,
    ("max.poll.interval.ms", "600000", "At least twice your worst batch: measure it, then change this."),
    ("partition.assignment.strategy", _COOPERATIVE, "A change stops only the partitions that move."),
    ("auto.offset.reset", "earliest", "A new partition is read from its beginning."),
)

# Each template is the answer to a situation, which is written beside it: a property test passes the template through
# the rules in that situation and expects no finding.
TEMPLATES: dict[str, Template] = {
    "first-steps": Template(
        stage=1,
        what="defaults, named, and what is worth a look before the first incident",
        situation=Situation(kind="classic"),
        settings=(
            ("session.timeout.ms", "45000", "Kafka's default since 3.0."),
            ("heartbeat.interval.ms", "15000", "A third of the session: two may be lost."),
            ("max.poll.interval.ms", "300000", "A batch must be done in five minutes, on the worst day too."),
            ("partition.assignment.strategy", _COOPERATIVE, "In a new group from the first day on."),
            ("auto.offset.reset", "earliest", "A new partition is read from its beginning."),
        ),
    ),
    "tuned": Template(
        stage=2,
        what="times that fit a process with pauses, and cooperative moves",
        situation=Situation(kind="classic", worst_batch_ms=240_000, longest_pause_ms=10_000),
        settings=_TUNED,
    ),
    "decoupled": Template(
        stage=3,
        what="work apart from polls: ParallelConsumer, or a pool of your own that commits what is finished",
        situation=Situation(kind="classic", longest_pause_ms=10_000, hands_over=True),
        settings=(*_TUNED, ("enable.auto.commit", "false", "A record counts when it is done, not when it is polled.")),
    ),
    "k8s-static": Template(
        stage=4,
        what="instances that keep their names: a rolling restart moves nothing",
        situation=Situation(
            kind="classic", longest_pause_ms=10_000, restart_ms=60_000, deploy="kept-names", hands_over=True
        ),
        settings=(
            ("group.instance.id", "${HOSTNAME}", "The pod's name in a StatefulSet; one for each instance."),
            ("session.timeout.ms", "120000", "Longer than a restart takes, so that it causes no rebalance."),
            ("heartbeat.interval.ms", "30000", "A quarter of the session: three may be lost."),
            *_TUNED[2:],
            ("enable.auto.commit", "false", "A record counts when it is done, not when it is polled."),
        ),
    ),
    "k8s-consumer-protocol": Template(
        stage=4,
        what="the same for a group of the new protocol (Kafka 4.0 and later), whose session is set on the broker",
        situation=Situation(kind="consumer", deploy="kept-names", hands_over=True),
        settings=(
            ("group.protocol", "consumer", "The broker assigns, and a change stops only what moves (KIP-848)."),
            ("group.instance.id", "${HOSTNAME}", "The pod's name in a StatefulSet; one for each instance."),
            *_TUNED[2:3],
            ("auto.offset.reset", "earliest", "A new partition is read from its beginning."),
            ("enable.auto.commit", "false", "A record counts when it is done, not when it is polled."),
        ),
    ),
}


def template(name: str, client: Client) -> GivenConfiguration:
    """Return a template as a client's configuration. `name` is one of TEMPLATES."""
    values = {setting: _value(setting, value, client) for setting, value, _ in TEMPLATES[name].settings}
    return GivenConfiguration(client=client, values={**values, **_for(client)})


def template_text(name: str, client: Client) -> str:
    """Return a template as a properties file with its reasons."""
    found = TEMPLATES[name]
    lines = [f"# Stage {found.stage} of 4: {found.what}.", "# Written by: headrace advise --template " + name, ""]
    for setting, value, why in found.settings:
        lines += [f"# {why}", f"{setting}={_value(setting, value, client)}"]
    lines += [f"{setting}={value}" for setting, value in _for(client).items()]
    return "\n".join(lines) + "\n"


def _value(setting: str, value: str, client: Client) -> str:
    return assignor_for(client, value) if setting == "partition.assignment.strategy" else value


def _for(client: Client) -> dict[str, str]:
    """librdkafka stores the offsets of all records it returns, unless configured otherwise."""
    # Java's client has no such setting: there a poll marks the records of the previous poll.
    return {"enable.auto.offset.store": "false"} if client == "librdkafka" else {}
