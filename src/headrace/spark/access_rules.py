"""The access rules (ACLs) that an application needs on a cluster which has an authorizer: these, and no more.

The names of its internal topics and transactional ids begin with the application's name and a hyphen, so a rule with a
prefix covers them, also those that a later version adds. READ and WRITE include DESCRIBE.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from headrace.client.admin_access import AclBinding
from headrace.spark.topology.nodes import CompiledTopology, TopicSource

__all__ = ["as_commands", "rules_for"]

_FLAGS = {"TOPIC": "--topic", "GROUP": "--group", "TRANSACTIONAL_ID": "--transactional-id"}


def rules_for(compiled: CompiledTopology, *, principal: str, exactly_once: bool) -> tuple[AclBinding, ...]:
    """Return the ACL bindings that an instance of the application needs, ordered by resource.

    Args:
        compiled: The compiled application.
        principal: The Kafka principal, for example `User:etl`.
        exactly_once: Include the rules for transactional ids.
    """
    name = compiled.app_name
    wanted: list[tuple[str, str, str, tuple[str, ...]]] = [("GROUP", name, "LITERAL", ("READ",))]
    wanted += [("TOPIC", topic, "LITERAL", ("READ",)) for topic in _read(compiled)]
    wanted += [
        ("TOPIC", topic, "LITERAL", ("WRITE", "CREATE") if created else ("WRITE",))
        for topic, created in _written(compiled).items()
    ]
    # CREATE and DELETE: internal topics are created by the group coordinator with the member's rights (KIP-1071), and
    # rows of repartition topics are deleted when they are committed.
    if any(part.changelog_topics for part in compiled.subtopologies):
        wanted.append(("TOPIC", f"{name}-", "PREFIXED", ("READ", "WRITE", "CREATE", "DELETE")))
    if exactly_once:
        wanted.append(("TRANSACTIONAL_ID", f"{name}-", "PREFIXED", ("WRITE",)))
    return tuple(
        AclBinding(resource_type=kind, name=resource, pattern=pattern, principal=principal, operation=operation)
        for kind, resource, pattern, operations in wanted
        for operation in operations
    )


def as_commands(rules: Iterable[AclBinding]) -> list[str]:
    """Return the `headrace acls` and `kafka-acls` command lines, one per resource, without `--bootstrap-server`."""
    lines = []
    for (kind, name, pattern, principal), found in groupby(
        rules, lambda rule: (rule.resource_type, rule.name, rule.pattern, rule.principal)
    ):
        operations = " ".join(f"--operation {rule.operation.title()}" for rule in found)
        prefixed = " --resource-pattern-type prefixed" if pattern == "PREFIXED" else ""
        lines.append(f"--add --allow-principal {principal} {operations} {_FLAGS[kind]} {name}{prefixed}")
    return lines


def _read(compiled: CompiledTopology) -> list[str]:
    sources = [source for part in compiled.subtopologies for source in part.sources]
    return sorted({topic for source in sources if isinstance(source, TopicSource) for topic in source.topics})


def _written(compiled: CompiledTopology) -> dict[str, bool]:
    """Return the topics that the application writes: topic → whether it creates the topic when it is missing."""
    found: dict[str, bool] = {}
    for part in compiled.subtopologies:
        for source in part.sources:
            if isinstance(source, TopicSource):
                found |= dict.fromkeys(source.dead_letter_topics, True)
    for sink in compiled.topic_sinks():
        found[sink.topic] = found.get(sink.topic, False) or sink.partitions is not None
    return dict(sorted(found.items()))
