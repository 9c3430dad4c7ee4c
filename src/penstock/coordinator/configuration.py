"""Settings of the coordinator and of single groups, frozen, with Kafka's names, defaults and bounds.

Facts: `configs-4.3.1`, and KIP-1071 for the rule that a group's own value counts only when it was set. A stored group
value outside the broker's bounds is clamped; setting one outside is refused by `validate_group_setting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

__all__ = ["GroupCoordinatorConfiguration", "InvalidGroupSetting", "StreamsGroupConfiguration"]

_INT_MAX = 2**31 - 1


class InvalidGroupSetting(ValueError):
    """A group setting that Kafka would refuse with INVALID_CONFIG; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupConfiguration:
    """What holds for one streams group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    num_standby_replicas: int
    initial_rebalance_delay_ms: int
    assignment_interval_ms: int
    max_size: int
    task_offset_interval_ms: int = 60_000
    acceptable_recovery_lag: int = 10_000
    rack_aware_assignment_tags: tuple[str, ...] = ()

    @property
    def assignment_configs(self) -> tuple[tuple[str, str], ...]:
        """What an assignor sees, as stored in the group's metadata record; another value is a new group epoch."""
        configs: tuple[tuple[str, str], ...] = (("num.standby.replicas", str(self.num_standby_replicas)),)
        if self.rack_aware_assignment_tags:
            configs += (("rack.aware.assignment.tags", ",".join(self.rack_aware_assignment_tags)),)
        return configs


class _Name(NamedTuple):
    field: str
    least: int


# Kafka's name → our field, least value. Defaults are the fields' own.
_BROKER_SETTINGS: dict[str, _Name] = {
    "group.streams.session.timeout.ms": _Name("streams_session_timeout_ms", 1),
    "group.streams.min.session.timeout.ms": _Name("streams_min_session_timeout_ms", 1),
    "group.streams.max.session.timeout.ms": _Name("streams_max_session_timeout_ms", 1),
    "group.streams.heartbeat.interval.ms": _Name("streams_heartbeat_interval_ms", 1),
    "group.streams.min.heartbeat.interval.ms": _Name("streams_min_heartbeat_interval_ms", 1),
    "group.streams.max.heartbeat.interval.ms": _Name("streams_max_heartbeat_interval_ms", 1),
    "group.streams.max.size": _Name("streams_max_size", 1),
    "group.streams.num.standby.replicas": _Name("streams_num_standby_replicas", 0),
    "group.streams.max.standby.replicas": _Name("streams_max_standby_replicas", 0),
    "group.streams.initial.rebalance.delay.ms": _Name("streams_initial_rebalance_delay_ms", 0),
    "group.streams.assignment.interval.ms": _Name("streams_assignment_interval_ms", 0),
    "group.streams.min.assignment.interval.ms": _Name("streams_min_assignment_interval_ms", 0),
    "group.streams.max.assignment.interval.ms": _Name("streams_max_assignment_interval_ms", 0),
    "offset.metadata.max.bytes": _Name("offset_metadata_max_bytes", 0),
    "offsets.topic.num.partitions": _Name("offsets_topic_num_partitions", 1),
    "offsets.retention.minutes": _Name("offsets_retention_minutes", 1),
    "offsets.retention.check.interval.ms": _Name("offsets_retention_check_interval_ms", 1),
}


class _GroupName(NamedTuple):
    field: str
    least: str | int
    most: str | int


# Kafka's group setting → field of StreamsGroupConfiguration, and its bounds (a broker field, or a number).
_GROUP_SETTINGS: dict[str, _GroupName] = {
    "streams.session.timeout.ms": _GroupName(
        "session_timeout_ms", "streams_min_session_timeout_ms", "streams_max_session_timeout_ms"
    ),
    "streams.heartbeat.interval.ms": _GroupName(
        "heartbeat_interval_ms", "streams_min_heartbeat_interval_ms", "streams_max_heartbeat_interval_ms"
    ),
    "streams.num.standby.replicas": _GroupName("num_standby_replicas", 0, "streams_max_standby_replicas"),
    "streams.initial.rebalance.delay.ms": _GroupName("initial_rebalance_delay_ms", 0, _INT_MAX),
    "streams.assignment.interval.ms": _GroupName(
        "assignment_interval_ms", "streams_min_assignment_interval_ms", "streams_max_assignment_interval_ms"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoordinatorConfiguration:
    """The broker's values. `groups`: group id → Kafka's group setting → value as text, as an operator set them."""

    streams_session_timeout_ms: int = 45_000
    streams_min_session_timeout_ms: int = 45_000
    streams_max_session_timeout_ms: int = 60_000
    streams_heartbeat_interval_ms: int = 5_000
    streams_min_heartbeat_interval_ms: int = 5_000
    streams_max_heartbeat_interval_ms: int = 15_000
    streams_max_size: int = _INT_MAX
    streams_num_standby_replicas: int = 0
    streams_max_standby_replicas: int = 2
    streams_initial_rebalance_delay_ms: int = 3_000
    streams_assignment_interval_ms: int = 1_000
    streams_min_assignment_interval_ms: int = 0
    streams_max_assignment_interval_ms: int = 15_000
    offset_metadata_max_bytes: int = 4_096
    offsets_topic_num_partitions: int = 50
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> GroupCoordinatorConfiguration:
        """From Kafka's broker settings by name; names that are not the coordinator's are passed over.

        Raises ValueError naming a setting whose value is no whole number or too small.
        """
        fields: dict[str, int] = {}
        for name, (attribute, least) in _BROKER_SETTINGS.items():
            if name not in settings:
                continue
            fields[attribute] = _whole_number(name, settings[name])
            if fields[attribute] < least:
                raise ValueError(f"{name} is {fields[attribute]}, but must be at least {least}")
        return replace(cls(), **fields)  # type: ignore[arg-type]  # the names are fields of type int

    def for_streams_group(self, group_id: str) -> StreamsGroupConfiguration:
        """The group's own settings where they are set, the broker's elsewhere."""
        resolved = StreamsGroupConfiguration(
            session_timeout_ms=self.streams_session_timeout_ms,
            heartbeat_interval_ms=self.streams_heartbeat_interval_ms,
            num_standby_replicas=self.streams_num_standby_replicas,
            initial_rebalance_delay_ms=self.streams_initial_rebalance_delay_ms,
            assignment_interval_ms=self.streams_assignment_interval_ms,
            max_size=self.streams_max_size,
        )
        changed: dict[str, int] = {}
        for name, text in sorted(self.groups.get(group_id, {}).items()):
            setting = _GROUP_SETTINGS.get(name)
            if setting is not None:
                least, most = self._bound(setting.least), self._bound(setting.most)
                changed[setting.field] = max(least, min(most, int(text)))
        return replace(resolved, **changed) if changed else resolved  # type: ignore[arg-type]  # fields of type int

    def validate_group_setting(self, name: str, value: str) -> None:
        """Raises InvalidGroupSetting for an unknown name, no number, or a value outside the broker's bounds."""
        setting = _GROUP_SETTINGS.get(name)
        if setting is None:
            raise InvalidGroupSetting(f"Unknown group config name: {name}")
        try:
            number = _whole_number(name, value)
        except ValueError as error:
            raise InvalidGroupSetting(str(error)) from None
        least, most = self._bound(setting.least), self._bound(setting.most)
        if not least <= number <= most:
            raise InvalidGroupSetting(f"{name} is {number}, but must be between {least} and {most}")

    def with_group_settings(self, group_id: str, settings: Mapping[str, str]) -> GroupCoordinatorConfiguration:
        """A copy in which the group has exactly these settings. Raises InvalidGroupSetting."""
        for name, value in sorted(settings.items()):
            self.validate_group_setting(name, value)
        return replace(self, groups={**self.groups, group_id: dict(settings)})

    def _bound(self, bound: str | int) -> int:
        return bound if isinstance(bound, int) else int(getattr(self, bound))


def _whole_number(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"{name} is {value!r}, but must be a whole number") from None
