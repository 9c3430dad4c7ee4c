"""Settings of topics, and the sources of every setting's value.

A topic setting has Kafka's name, type and default, and the broker setting that it falls back to. A topic's or group's
own value comes before this broker's dynamic one, the cluster's dynamic one, the one given at the start, and the default
(Kafka's synonyms). Numbers of the sources are those of DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.broker.config.broker_configuration import BROKER_SETTINGS, BrokerConfiguration
from headrace.broker.config.client_metrics_settings import CLIENT_METRICS_SETTINGS
from headrace.coordinator.metadata_image import TopicRetention
from headrace.coordinator.settings import GROUP_SETTINGS
from headrace.settings import Kind, Setting, Value, list_of, parse_value

__all__ = [
    "DEFAULT",
    "DYNAMIC_BROKER",
    "DYNAMIC_CLIENT_METRICS",
    "DYNAMIC_CLUSTER",
    "DYNAMIC_GROUP",
    "DYNAMIC_TOPIC",
    "STATIC_BROKER",
    "TOPIC_SETTINGS",
    "DescribedSetting",
    "Source",
    "broker_default",
    "broker_settings",
    "broker_settings_of",
    "client_metrics_settings",
    "cluster_settings",
    "effective_retention",
    "effective_value",
    "group_settings",
    "topic_setting",
    "topic_settings",
    "validated",
]


# Java's Long.MAX_VALUE, which Kafka's defaults use for "never" and tools print as it is.
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
    """Validate a value and return its stored form. Raises KeyError for an unknown name and ConfigError("bad-value")."""
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
    """Return the broker settings that a topic setting falls back to, in order."""
    synonym = TOPIC_SETTINGS[name].synonym
    return tuple(other for other, _ in _FALLBACKS[name]) if name in _FALLBACKS else (synonym,) if synonym else ()


def broker_default(name: str, broker: BrokerConfiguration) -> Value | None:
    """Return the value of a topic that has none of its own."""
    in_force = broker.in_force()
    # A broker setting in another unit (hours for ms) stands in where the precise one is not set; a negative value means
    # for ever in every unit.
    for other, factor in _FALLBACKS.get(name, ((TOPIC_SETTINGS[name].synonym or "", 1),)):
        value = in_force.get(other)
        if value is not None:
            return -1 if factor > 1 and int(value) < 0 else int(value) * factor if factor > 1 else value
    return TOPIC_SETTINGS[name].default


def effective_value(name: str, topic_configs: Mapping[str, str], broker: BrokerConfiguration) -> Value | None:
    """Return the effective, typed value for a topic."""
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


DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_CLUSTER, STATIC_BROKER, DEFAULT = 1, 2, 3, 4, 5
DYNAMIC_CLIENT_METRICS, DYNAMIC_GROUP = 7, 8
_FAMILIES = {
    "log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.ms", "log.roll.hours"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place that has a value, under the name it has there."""

    name: str
    value: Value | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedSetting:
    """`value` is in force and comes from `source`; `synonyms` begin with that place, and may be none."""

    setting: Setting
    value: Value | None
    source: int
    synonyms: tuple[Source, ...]
    read_only: bool = False


def topic_settings(own: Mapping[str, str], broker: BrokerConfiguration) -> Iterator[DescribedSetting]:
    """Return all settings of a topic with their sources."""
    for name in TOPIC_SETTINGS:
        yield topic_setting(name, own, broker)


def topic_setting(name: str, own: Mapping[str, str], broker: BrokerConfiguration) -> DescribedSetting:
    """Return one setting of a topic with its sources."""
    setting = TOPIC_SETTINGS[name]
    sources = tuple(_own(setting, own, DYNAMIC_TOPIC)) + _of_brokers(broker_settings_of(name), broker)
    # Without any source the default counts, as in Kafka's response.
    inherited = sources[0].source if sources else DEFAULT
    # Not simply the first source: log.retention.hours=168 describes itself as 168, and is in force as 604,800,000 ms.
    value = sources[0].value if name in own else broker_default(name, broker)
    return DescribedSetting(setting=setting, value=value, source=inherited, synonyms=sources)


def broker_settings(broker: BrokerConfiguration) -> Iterator[DescribedSetting]:
    """Return all settings of the broker with their sources."""
    for name, setting in BROKER_SETTINGS.items():
        sources = _of_brokers(_FAMILIES.get(name, (name,)), broker)
        if setting.internal and (not sources or sources[0].source == DEFAULT):
            continue  # as Kafka
        yield DescribedSetting(
            setting=setting,
            value=broker.get(name),
            source=sources[0].source if sources else DEFAULT,
            synonyms=sources,
            read_only=not setting.dynamic,
        )


def cluster_settings(broker: BrokerConfiguration) -> Iterator[DescribedSetting]:
    """Return the dynamic settings of the cluster's default resource: no static values, no defaults."""
    for name, value in sorted(broker.changed.of_cluster.items()):
        source = Source(name=name, value=value, source=DYNAMIC_CLUSTER)
        yield DescribedSetting(setting=BROKER_SETTINGS[name], value=value, source=DYNAMIC_CLUSTER, synonyms=(source,))


def group_settings(own: Mapping[str, str], broker: BrokerConfiguration) -> Iterator[DescribedSetting]:
    """Return all settings of a group with their sources."""
    for name, row in GROUP_SETTINGS.items():
        setting = row.setting
        if setting.internal and name not in own:
            continue  # as Kafka
        inherited = _of_brokers((setting.synonym,), broker) if setting.synonym is not None else ()
        sources = (*_own(setting, own, DYNAMIC_GROUP), *inherited)
        # Settings without a broker-wide counterpart have their own default as the last source.
        if setting.synonym is None:
            sources = (*sources, Source(name=name, value=setting.default, source=DEFAULT))
        yield DescribedSetting(setting=setting, value=sources[0].value, source=sources[0].source, synonyms=sources)


def client_metrics_settings(own: Mapping[str, str]) -> Iterator[DescribedSetting]:
    """Return all settings of a client metrics subscription with their sources."""
    for setting in CLIENT_METRICS_SETTINGS.values():
        # Kafka lists no defaults among the synonyms of these.
        sources = tuple(_own(setting, own, DYNAMIC_CLIENT_METRICS))
        value, source = (sources[0].value, sources[0].source) if sources else (setting.default, DEFAULT)
        yield DescribedSetting(setting=setting, value=value, source=source, synonyms=sources)


def _own(setting: Setting, own: Mapping[str, str], source: int) -> Iterable[Source]:
    if setting.name in own:
        yield Source(name=setting.name, value=parse_value(setting, own[setting.name]), source=source)


def _of_brokers(names: Iterable[str], broker: BrokerConfiguration) -> tuple[Source, ...]:
    """All values under these names, of the first name first. What has no value of its own but another name's default is
    given without sources, as Kafka gives it."""
    found: list[Source] = []
    for name in names:
        # In Kafka's order of precedence, which is the order that DescribeConfigs lists.
        for values, source in (
            (broker.changed.of_broker, DYNAMIC_BROKER),
            (broker.changed.of_cluster, DYNAMIC_CLUSTER),
            (broker.values, STATIC_BROKER),
        ):
            if name in values:
                found.append(Source(name=name, value=values[name], source=source))
        default = BROKER_SETTINGS[name].default
        if default is not None:
            found.append(Source(name=name, value=default, source=DEFAULT))
    first = next(iter(names), None)
    return tuple(found) if found and (found[0].name == first or found[0].source != DEFAULT) else ()
