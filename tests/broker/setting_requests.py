"""The same requests about settings and features to any broker, and its answers as plain words.

What Apache Kafka 4.3.1 answers is kept in golden/settings-4.3.1.json: our broker is held against it in every run, and
Kafka itself when there is one (tests/interop). Everything is put back at the end.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kio.static.primitive import i8, i16
from tests.harness.polling import wait_until

from headrace.client.admin import Admin
from headrace.protocol import messages as m

GOLDEN = Path(__file__).parent / "golden" / "settings-4.3.1.json"
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
TYPES = {"topic": 2, "broker": 4, "logger": 8, "metrics": 16, "group": 32, "none": 99}
GROUP, TOPIC = "settings-group", "settings-topic"

# As the broker of tests/interop is started.
BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.session.timeout.ms": 1000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 500,
}

Change = tuple[str, int, str | None]

# (resource type, name, changes): each is one IncrementalAlterConfigs request.
CHANGES: list[tuple[str, str, list[Change]]] = [
    ("group", GROUP, [("streams.num.standby.replicas", SET, value)])
    for value in ("1", "3", "-1", "x", " 2 ", "", None)
] + [
    ("group", GROUP, [(name, SET, value)])
    for name, value in (
        ("nope", "1"),
        ("streams.session.timeout.ms", "500"),
        ("streams.session.timeout.ms", "70000"),
        ("streams.session.timeout.ms", "0"),
        ("streams.heartbeat.interval.ms", "50"),
        ("streams.heartbeat.interval.ms", "20000"),
        ("streams.session.timeout.ms", "1000"),
        ("streams.heartbeat.interval.ms", "999"),
        ("streams.heartbeat.interval.ms", "1001"),
        ("streams.assignment.interval.ms", "15001"),
        ("streams.assignment.interval.ms", "-1"),
        ("streams.initial.rebalance.delay.ms", "-1"),
        ("streams.initial.rebalance.delay.ms", "2147483647"),
        ("streams.initial.rebalance.delay.ms", "2147483648"),
        ("consumer.session.timeout.ms", "1"),
        ("consumer.session.timeout.ms", "50000"),
        ("consumer.heartbeat.interval.ms", "1"),
        ("consumer.assignment.interval.ms", "20000"),
        ("share.auto.offset.reset", "nope"),
        ("share.auto.offset.reset", "by_duration:"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.delivery.count.limit", "50"),
        ("share.delivery.count.limit", "1"),
        ("share.isolation.level", "nope"),
        ("share.partition.max.record.locks", "100000"),
        ("share.record.lock.duration.ms", "100000"),
        ("share.record.lock.duration.ms", "1000"),
        ("share.renew.acknowledge.enable", "maybe"),
        ("share.renew.acknowledge.enable", "FALSE"),
        ("share.session.timeout.ms", "1"),
        ("share.assignment.interval.ms", "20000"),
    )
] + [
    ("group", GROUP, [("streams.session.timeout.ms", SET, "1000"), ("streams.heartbeat.interval.ms", SET, "1000")]),
    ("group", GROUP, [("streams.num.standby.replicas", SET, "1"), ("streams.num.standby.replicas", SET, "2")]),
    ("group", GROUP, [("streams.num.standby.replicas", APPEND, "1")]),
    ("group", GROUP, [("streams.num.standby.replicas", SUBTRACT, "1")]),
    ("group", GROUP, [("nope", APPEND, "1")]),
    ("group", GROUP, [("nope", DELETE, None)]),
    ("group", GROUP, []),
    ("group", "", [("streams.num.standby.replicas", SET, "1")]),
    ("broker", "", [("group.streams.assignment.interval.ms", SET, "1600")]),
    ("broker", "1", [("group.streams.assignment.interval.ms", SET, "1500")]),
    ("broker", "1", [("group.streams.assignment.interval.ms", SET, "x")]),
    ("broker", "1", [("group.streams.session.timeout.ms", SET, "46000")]),
    ("broker", "1", [("log.retention.ms", SET, "1500000")]),
    ("broker", "1", [("log.retention.ms", APPEND, "1")]),
    ("broker", "1", [("log.retention.ms", SUBTRACT, "1")]),
    ("broker", "1", [("log.retention.ms", SET, None)]),
    ("broker", "1", [("message.max.bytes", SET, "-7")]),
    ("broker", "2", [("log.retention.ms", SET, "1")]),
    ("broker", "x", [("log.retention.ms", SET, "1")]),
    ("broker", "1", [("nope.nope", SET, "1")]),
    ("broker", "", [("log.cleanup.policy", APPEND, "compact")]),
    ("topic", TOPIC, [("cleanup.policy", APPEND, "compact")]),
    ("topic", TOPIC, [("cleanup.policy", APPEND, "burn")]),
    ("topic", TOPIC, [("retention.ms", APPEND, "1")]),
    ("topic", TOPIC, [("nope", APPEND, "1")]),
    ("topic", TOPIC, [("nope", SET, "1")]),
    ("topic", TOPIC, [("retention.ms", SET, "x")]),
    ("topic", TOPIC, [("retention.ms", SET, "-5")]),
    ("topic", TOPIC, [("retention.ms", SET, None)]),
    ("topic", "settings-missing", [("retention.ms", SET, "1")]),
    ("logger", "1", [("x.y", SET, "INFO")]),
    ("metrics", "m", [("interval.ms", SET, "1000")]),
    ("none", "m", [("interval.ms", SET, "1000")]),
]  # fmt: skip

DESCRIBED: list[tuple[str, str, tuple[str, ...]]] = [
    ("group", "settings-fresh", ()),
    ("group", GROUP, ()),
    ("group", GROUP, ("streams.num.standby.replicas", "nope")),
    ("group", "", ()),
    (
        "broker",
        "1",
        (
            "group.streams.assignment.interval.ms",
            "group.streams.session.timeout.ms",
            "group.streams.heartbeat.interval.ms",
            "log.retention.ms",
            "log.retention.hours",
            "log.roll.ms",
            "log.cleanup.policy",
            "nope",
        ),
    ),
    ("broker", "", ("group.streams.assignment.interval.ms", "log.cleanup.policy")),
    ("broker", "2", ()),
    ("broker", "abc", ()),
    ("logger", "2", ()),
    ("metrics", "", ()),
    ("topic", TOPIC, ("cleanup.policy", "retention.ms", "segment.ms", "flush.messages", "max.message.bytes")),
    ("topic", "settings-missing", ()),
    ("topic", "bad name!", ()),
    ("topic", "", ()),
]

FEATURES: list[tuple[list[tuple[str, int, int]], bool]] = [
    ([("streams.version", 0, UPGRADE)], False),
    ([("streams.version", 1, UPGRADE)], False),
    ([("streams.version", 0, SAFE_DOWNGRADE)], True),
    ([("streams.version", 0, SAFE_DOWNGRADE)], False),
    ([("streams.version", 0, SAFE_DOWNGRADE)], False),
    ([("streams.version", 1, SAFE_DOWNGRADE)], False),
    ([("streams.version", 1, UNSAFE_DOWNGRADE)], False),
    ([("streams.version", 2, UPGRADE)], False),
    ([("streams.version", 1, UPGRADE)], False),
    ([("streams.version", 0, UNSAFE_DOWNGRADE)], False),
    ([("streams.version", 1, UPGRADE)], False),
    ([("streams.version", -1, UNSAFE_DOWNGRADE)], False),
    ([("streams.version", 1, 0)], False),
    ([("streams.version", 1, 9)], False),
    ([("nope", 1, UPGRADE)], False),
    ([("nope", 0, SAFE_DOWNGRADE)], False),
    ([("", 1, UPGRADE)], False),
    ([], False),
    ([("streams.version", 0, SAFE_DOWNGRADE), ("nope", 3, UPGRADE)], False),
    ([("group.version", 0, SAFE_DOWNGRADE)], False),
    ([("group.version", 1, UPGRADE)], False),
    ([("metadata.version", 99, UPGRADE)], True),
]

# What our broker answers otherwise than Kafka, by the question; the reason beside it.
INTENDED_DIFFERENCES: dict[str, tuple[str, str]] = {
    "broker 1 [('nope.nope', 0, '1')]": (
        "invalid_request: Unknown broker config name: nope.nope",
        "Kafka keeps a name that nobody knows; a setting that does nothing is worse than none",
    ),
    "logger 1 [('x.y', 0, 'INFO')]": (
        "invalid_request: This broker's loggers cannot be changed while it runs.",
        "there are no loggers to name here",
    ),
    "describe topic settings-missing []": (
        "unknown_topic_or_partition: The topic 'settings-missing' does not exist.",
        "Kafka sends the code alone",
    ),
    "features [('metadata.version', 99, 1)] dry": (
        (
            "invalid_update_version: The update failed for all features since the following feature had an error: "
            "Invalid update version 99 for feature metadata.version. Local controller 1 only supports versions 30-30"
        ),
        "one metadata.version is supported, and nothing to migrate between several",
    ),
}

# Group settings of Kafka 4.4, which 4.3.1 does not describe.
SINCE_4_4 = ("streams.assignor.name", "streams.rack.aware.assignment.tags")


def answers(servers: str) -> dict[str, Any]:
    """Question → answer; a question that comes again has a number behind it."""
    told: dict[str, Any] = {}

    def note(question: str, answer: Any) -> None:
        number = sum(known == question or known.startswith(f"{question} #") for known in told)
        told[f"{question} #{number + 1}" if number else question] = answer

    with Admin(servers, client_id="setting-requests") as admin:
        admin.create_topics({TOPIC: 1}, replication_factor=1, exist_ok=True)
        try:
            for kind, name, changes in CHANGES:
                note(f"{kind} {name} {changes}", _altered(admin, kind, name, changes))
            # Kafka\'s broker follows its controller a moment later, in order: the last change seen means all are.
            wait_until(lambda: _described(admin, "topic", TOPIC, ("cleanup.policy",))["cleanup.policy"][1] == 1)
            for kind, name, keys in DESCRIBED:
                note(f"describe {kind} {name} {list(keys)}", _described(admin, kind, name, keys))
            note("listed", _listed(admin, (32, 2)))
            note("listed unknown", _listed(admin, (99,)))
            note("replaced", _replaced(admin, {"streams.num.standby.replicas": "2"}))
            wait_until(lambda: set(_set_of_group(admin)) == {"streams.num.standby.replicas"})
            note("described then", _described(admin, "group", GROUP, ()))
            note("replaced by unknown", _replaced(admin, {"nope": "2"}))
            note("twice", _twice(admin))
            for updates, validate_only in FEATURES:
                note(f"features {updates}{' dry' if validate_only else ''}", _updated(admin, updates, validate_only))
        finally:
            _put_back(admin)
        wait_until(lambda: _listed(admin, (32, 2)) == [])
        note("listed at last", _listed(admin, (32,)))
    return told


def _set_of_group(admin: Admin) -> list[str]:
    return [name for name, entry in _described(admin, "group", GROUP, ()).items() if entry[1] == 8]


def golden() -> dict[str, Any]:
    """What Apache Kafka 4.3.1 answers."""
    stored: dict[str, Any] = json.loads(GOLDEN.read_text())
    return stored


def _altered(admin: Admin, kind: str, name: str, changes: Iterable[Change], *, validate_only: bool = False) -> str:
    r = m.incremental_alter_configs_request
    resource = r.AlterConfigsResource(
        resource_type=i8(TYPES[kind]),
        resource_name=name,
        configs=tuple(
            r.AlterableConfig(name=key, config_operation=i8(operation), value=value)
            for key, operation, value in changes
        ),
    )
    request = r.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    return _outcome(admin.client.call(request).responses[0])


def _replaced(admin: Admin, values: dict[str, str]) -> str:
    r = m.alter_configs_request
    resource = r.AlterConfigsResource(
        resource_type=i8(TYPES["group"]),
        resource_name=GROUP,
        configs=tuple(r.AlterableConfig(name=name, value=value) for name, value in values.items()),
    )
    return _outcome(admin.client.call(r.AlterConfigsRequest(resources=(resource,), validate_only=False)).responses[0])


def _twice(admin: Admin) -> list[str]:
    r = m.incremental_alter_configs_request
    resource = r.AlterConfigsResource(resource_type=i8(TYPES["group"]), resource_name=GROUP, configs=())
    request = r.IncrementalAlterConfigsRequest(resources=(resource, resource), validate_only=False)
    return [_outcome(each) for each in admin.client.call(request).responses]


def _outcome(response: Any) -> str:
    code = response.error_code.name
    return f"{code}: {response.error_message}" if response.error_message else str(code)


def _described(admin: Admin, kind: str, name: str, keys: tuple[str, ...]) -> Any:
    r = m.describe_configs_request
    resource = r.DescribeConfigsResource(
        resource_type=i8(TYPES[kind]), resource_name=name, configuration_keys=keys or None
    )
    request = r.DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=False)
    (result,) = admin.client.call(request).results
    if result.error_code.name != "none":
        return _outcome(result)
    return {
        entry.name: [
            entry.value,
            int(entry.config_source),
            "read only" if entry.read_only else "",
            int(entry.config_type),
            [[each.name, each.value, int(each.source)] for each in entry.synonyms],
        ]
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    }


def _listed(admin: Admin, types: tuple[int, ...]) -> Any:
    request = m.list_config_resources_request.ListConfigResourcesRequest(
        resource_types=tuple(i8(number) for number in types)
    )
    response = admin.client.call(request)
    if response.error_code.name != "none":
        return response.error_code.name
    ours = [each for each in response.config_resources if each.resource_name.startswith("settings-")]
    return sorted([int(each.resource_type), each.resource_name] for each in ours)


def _updated(admin: Admin, updates: list[tuple[str, int, int]], validate_only: bool) -> str:
    r = m.update_features_request
    request = r.UpdateFeaturesRequest(
        timeout=dt.timedelta(seconds=10),
        feature_updates=tuple(
            r.FeatureUpdateKey(feature=name, max_version_level=i16(level), upgrade_type=i8(kind))
            for name, level, kind in updates
        ),
        validate_only=validate_only,
    )
    return _outcome(admin.client.call(request))


def _put_back(admin: Admin) -> None:
    deleted = ("log.retention.ms", "group.streams.assignment.interval.ms", "log.cleanup.policy", "nope.nope")
    for name in ("1", ""):
        for key in deleted:
            _altered(admin, "broker", name, [(key, DELETE, None)])
    _altered(admin, "group", GROUP, [(name, DELETE, None) for name in _set_of_group(admin)])
    _altered(admin, "metrics", "m", [("interval.ms", DELETE, None)])
    _updated(admin, [("streams.version", 1, UPGRADE), ("group.version", 1, UPGRADE)], False)
    admin.delete_topics([TOPIC])
