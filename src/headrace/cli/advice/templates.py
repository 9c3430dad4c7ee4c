"""Configurations to hand out, one for each stage of the way from defaults to a platform (`headrace advise --template`).

The rules have nothing against any of them in the situation it is for; a test holds them to that, and gives each to
librdkafka and to our own Consumer.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cli.advice.given_configuration import Client, GivenConfiguration, assignor_for
from headrace.cli.advice.situation import Situation

__all__ = ["TEMPLATES", "Template", "template", "template_text"]

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
    """As a client's configuration. `name` is one of TEMPLATES."""
    values = {setting: _value(setting, value, client) for setting, value, _ in TEMPLATES[name].settings}
    return GivenConfiguration(client=client, values={**values, **_for(client)})


def template_text(name: str, client: Client) -> str:
    """As a properties file with its reasons."""
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
    return {"enable.auto.offset.store": "false"} if client == "librdkafka" else {}
