"""Sources of a setting's value: every place that has one, the one in force first (Kafka's synonyms).

A topic's or group's own value comes before this broker's dynamic one, the cluster's dynamic one, the one given at the
start, and the default. Numbers of the sources are those of DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.broker.config.broker_configuration import BROKER_SETTINGS, BrokerConfiguration
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS, broker_default, broker_settings_of
from headrace.coordinator.settings import GROUP_SETTINGS
from headrace.settings import Setting, Value, parse_value

__all__ = [
    "DEFAULT",
    "DYNAMIC_BROKER",
    "DYNAMIC_CLUSTER",
    "DYNAMIC_GROUP",
    "DYNAMIC_TOPIC",
    "STATIC_BROKER",
    "DescribedSetting",
    "Source",
    "broker_settings",
    "cluster_settings",
    "group_settings",
    "topic_setting",
    "topic_settings",
]

DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_CLUSTER, STATIC_BROKER, DEFAULT, DYNAMIC_GROUP = 1, 2, 3, 4, 5, 8
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
    """All settings of a topic with their sources."""
    for name in TOPIC_SETTINGS:
        yield topic_setting(name, own, broker)


def topic_setting(name: str, own: Mapping[str, str], broker: BrokerConfiguration) -> DescribedSetting:
    """One setting of a topic with its sources."""
    setting = TOPIC_SETTINGS[name]
    sources = tuple(_own(setting, own, DYNAMIC_TOPIC)) + _of_brokers(broker_settings_of(name), broker)
    inherited = sources[0].source if sources else DEFAULT
    value = sources[0].value if name in own else broker_default(name, broker)
    return DescribedSetting(setting=setting, value=value, source=inherited, synonyms=sources)


def broker_settings(broker: BrokerConfiguration) -> Iterator[DescribedSetting]:
    """All settings of the broker with their sources."""
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
    """The dynamic settings of the cluster's default resource: no static values, no defaults."""
    for name, value in sorted(broker.changed.of_cluster.items()):
        source = Source(name=name, value=value, source=DYNAMIC_CLUSTER)
        yield DescribedSetting(setting=BROKER_SETTINGS[name], value=value, source=DYNAMIC_CLUSTER, synonyms=(source,))


def group_settings(own: Mapping[str, str], broker: BrokerConfiguration) -> Iterator[DescribedSetting]:
    """All settings of a group with their sources."""
    for name, row in GROUP_SETTINGS.items():
        setting = row.setting
        if setting.internal and name not in own:
            continue  # as Kafka
        inherited = _of_brokers((setting.synonym,), broker) if setting.synonym is not None else ()
        sources = (*_own(setting, own, DYNAMIC_GROUP), *inherited)
        if setting.synonym is None:
            sources = (*sources, Source(name=name, value=setting.default, source=DEFAULT))
        yield DescribedSetting(setting=setting, value=sources[0].value, source=sources[0].source, synonyms=sources)


def _own(setting: Setting, own: Mapping[str, str], source: int) -> Iterable[Source]:
    if setting.name in own:
        yield Source(name=setting.name, value=parse_value(setting, own[setting.name]), source=source)


def _of_brokers(names: Iterable[str], broker: BrokerConfiguration) -> tuple[Source, ...]:
    """All values under these names, of the first name first. What has no value of its own but another name's default is
    given without sources, as Kafka gives it."""
    found: list[Source] = []
    for name in names:
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
