"""Settings of the internal topics that an application finds: a changelog must keep its values.

Our broker keeps the group NOT_READY for a topic that removes needed records. Apache Kafka 4.3 and 4.4 do not check, so
the application compares the settings itself before it joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.client.admin import Admin
from headrace.client.membership.topology import Topology
from headrace.coordinator.streams.internal_topics import add_config, required_changes, retention_of
from headrace.errors import BrokerError

__all__ = ["UnsafeTopic", "refuse_unsafe_topics", "unsafe_internal_topics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsafeTopic:
    """An internal topic that removes records the application still needs, and the command that corrects it."""

    name: str
    message: str
    fix: str


def refuse_unsafe_topics(admin: Admin, topology: Topology, bootstrap_servers: str) -> None:
    """Check the settings of all internal topics that exist.

    Raises:
        BrokerError: `internal-topic-unsafe` for the first topic that would remove needed records.
    """
    for topic in unsafe_internal_topics(admin, topology, bootstrap_servers):
        raise BrokerError("internal-topic-unsafe", topic.message, topic.fix, topic=topic.name)


def unsafe_internal_topics(admin: Admin, topology: Topology, bootstrap_servers: str) -> Iterator[UnsafeTopic]:
    """Yield the internal topics of the topology that exist and remove records it needs.

    Yields nothing for topics that may not be described (DESCRIBE_CONFIGS is missing): the check is a safeguard, and an
    application needs no such right otherwise.
    """
    internal = topology.internal_topics
    existing = admin.list_topics() if internal else {}
    settings = _effective_settings(admin, [topic.name for topic in internal if topic.name in existing])
    for topic in internal:
        retention = retention_of(settings.get(topic.name, {}))
        changes = () if retention is None else tuple(required_changes(dict(topic.configs), retention))
        if changes:
            yield UnsafeTopic(
                name=topic.name,
                message=f"The internal topic {topic.name} would remove records that the application needs: "
                + "; ".join(map(str, changes))
                + ".",
                fix=f"headrace configs --bootstrap-server {bootstrap_servers} --alter --topic {topic.name} "
                f"--add-config {add_config(changes)}",
            )


def _effective_settings(admin: Admin, names: list[str]) -> Mapping[str, Mapping[str, str]]:
    try:
        described = admin.describe_configs([("topic", name) for name in names]) if names else {}
    except BrokerError as error:
        if error.code != "not-authorized":
            raise
        return {}
    return {
        name: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        for (_, name), entries in described.items()
    }
