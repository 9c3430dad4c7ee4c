"""The settings of a topic: Kafka's names, types, defaults, and the broker setting each falls back to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.coordinator.metadata_image import TopicRetention
from headrace.settings import Kind, Setting, Value, list_of, parse_value

__all__ = [
    "TOPIC_SETTINGS",
    "broker_default",
    "broker_settings_of",
    "effective_retention",
    "effective_value",
    "validated",
]

_LONGEST = 2**63 - 1


def _row(
    name: str,
    kind: Kind,
    default: Value,
    synonym: str | None,
    minimum: int | None = None,
    choices: tuple[str, ...] = (),
    maximum: int | None = None,
) -> tuple[str, Setting]:
    return name, Setting(
        name=name, kind=kind, default=default, synonym=synonym, minimum=minimum, maximum=maximum, choices=choices
    )


TOPIC_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    dict(
        (
            _row("cleanup.policy", "list", "delete", "log.cleanup.policy", choices=("compact", "delete")),
            _row(
                "compression.type",
                "string",
                "producer",
                "compression.type",
                choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            ),
            _row("delete.retention.ms", "long", 86400000, "log.cleaner.delete.retention.ms", 0),
            _row("file.delete.delay.ms", "long", 60000, "log.segment.delete.delay.ms", 0),
            _row("flush.messages", "long", _LONGEST, "log.flush.interval.messages", 1),
            _row("flush.ms", "long", _LONGEST, "log.flush.interval.ms", 0),
            _row("follower.replication.throttled.replicas", "list", "", None),
            _row("index.interval.bytes", "int", 4096, "log.index.interval.bytes", 0),
            _row("leader.replication.throttled.replicas", "list", "", None),
            _row("max.compaction.lag.ms", "long", _LONGEST, "log.cleaner.max.compaction.lag.ms", 1),
            _row("max.message.bytes", "int", 1048588, "message.max.bytes", 0),
            _row("message.timestamp.after.max.ms", "long", 3600000, "log.message.timestamp.after.max.ms", 0),
            _row("message.timestamp.before.max.ms", "long", _LONGEST, "log.message.timestamp.before.max.ms", 0),
            _row(
                "message.timestamp.type",
                "string",
                "CreateTime",
                "log.message.timestamp.type",
                choices=("CreateTime", "LogAppendTime"),
            ),
            _row("min.cleanable.dirty.ratio", "double", 0.5, "log.cleaner.min.cleanable.ratio", 0, maximum=1),
            _row("min.compaction.lag.ms", "long", 0, "log.cleaner.min.compaction.lag.ms", 0),
            _row("min.insync.replicas", "int", 1, "min.insync.replicas", 1),
            _row("preallocate", "boolean", False, "log.preallocate"),
            _row("retention.bytes", "long", -1, "log.retention.bytes", -1),
            _row("retention.ms", "long", 604800000, "log.retention.ms", -1),
            _row("segment.bytes", "int", 1073741824, "log.segment.bytes", 14),
            _row("segment.index.bytes", "int", 10485760, "log.index.size.max.bytes", 4),
            _row("segment.jitter.ms", "long", 0, None, 0),
            _row("segment.ms", "long", 604800000, "log.roll.ms", 1),
            _row("unclean.leader.election.enable", "boolean", False, "unclean.leader.election.enable"),
        )
    )
)


def validated(name: str, value: str) -> str:
    """The value as it shall be kept. Raises KeyError for an unknown name and ConfigError("bad-value")."""
    parse_value(TOPIC_SETTINGS[name], value)
    return value.strip()


# Kafka reads these in this order; the first that is set counts, in its own unit.
_FALLBACKS: Mapping[str, tuple[tuple[str, int], ...]] = MappingProxyType(
    {
        "retention.ms": (
            ("log.retention.ms", 1),
            ("log.retention.minutes", 60_000),
            ("log.retention.hours", 3_600_000),
        ),
        "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
    }
)


def broker_settings_of(name: str) -> tuple[str, ...]:
    """The broker settings that a topic setting falls back to, in order."""
    synonym = TOPIC_SETTINGS[name].synonym
    return tuple(other for other, _ in _FALLBACKS[name]) if name in _FALLBACKS else (synonym,) if synonym else ()


def broker_default(name: str, broker: BrokerConfiguration) -> Value | None:
    """Return the value of a topic that has none of its own."""
    in_force = broker.in_force()
    for other, factor in _FALLBACKS.get(name, ((TOPIC_SETTINGS[name].synonym or "", 1),)):
        value = in_force.get(other)
        if value is not None:
            return -1 if factor > 1 and int(value) < 0 else int(value) * factor if factor > 1 else value
    return TOPIC_SETTINGS[name].default


def effective_value(name: str, topic_configs: Mapping[str, str], broker: BrokerConfiguration) -> Value | None:
    """The typed value in force for a topic."""
    if name in topic_configs:
        return parse_value(TOPIC_SETTINGS[name], topic_configs[name])
    return broker_default(name, broker)


def effective_retention(topic_configs: Mapping[str, str], broker: BrokerConfiguration) -> TopicRetention:
    """Return which records a topic with these settings of its own removes."""
    return TopicRetention(
        cleanup_policy=frozenset(list_of(str(effective_value("cleanup.policy", topic_configs, broker)))),
        retention_ms=int(str(effective_value("retention.ms", topic_configs, broker))),
        retention_bytes=int(str(effective_value("retention.bytes", topic_configs, broker))),
    )
