"""Settings of the coordinator and of single groups, frozen, with Kafka's names, defaults and bounds.

The tables are in `settings`. KIP-1071: a group's own value counts only when it was set. A stored group value outside
the broker's bounds is clamped; setting one outside is refused by `group_configuration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headrace.coordinator.group_configuration import check_bounds
from headrace.coordinator.settings import COORDINATOR_SETTINGS, GROUP_SETTINGS
from headrace.settings import list_of, parse_value

__all__ = [
    "ClassicGroupConfiguration",
    "ConsumerGroupConfiguration",
    "GroupCoordinatorConfiguration",
    "StreamsGroupConfiguration",
]

_INT_MAX = 2**31 - 1
_TAGS = "group.streams.rack.aware.assignment.tags"
_ASSIGNORS = "group.consumer.assignors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupConfiguration:
    """The broker's settings for classic groups: `group.<name with dots>`.

    `max_record_bytes`: a group's record may not be larger: what Kafka's `__consumer_offsets` takes by default.
    """

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_size: int
    max_record_bytes: int = 1_048_588


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupConfiguration:
    """What holds for one consumer group. `assignors`: the server-side ones, the default first."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    max_size: int
    assignors: tuple[str, ...]
    migration_policy: str
    regex_refresh_interval_ms: int


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
    consumer_session_timeout_ms: int = 45_000
    consumer_min_session_timeout_ms: int = 45_000
    consumer_max_session_timeout_ms: int = 60_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_min_heartbeat_interval_ms: int = 5_000
    consumer_max_heartbeat_interval_ms: int = 15_000
    consumer_assignment_interval_ms: int = 1_000
    consumer_min_assignment_interval_ms: int = 0
    consumer_max_assignment_interval_ms: int = 15_000
    consumer_max_size: int = _INT_MAX
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
    consumer_regex_refresh_interval_ms: int = 600_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = _INT_MAX
    headrace_max_group_members: int = 5_000
    offset_metadata_max_bytes: int = 4_096
    offsets_topic_num_partitions: int = 50
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    streams_rack_aware_assignment_tags: tuple[str, ...] = ()
    streams_task_offset_interval_ms: int = 60_000
    streams_min_task_offset_interval_ms: int = 15_000
    streams_acceptable_recovery_lag: int = 10_000
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    # What was resolved before, by group: heartbeats ask again and again. Not a part of the value.
    _resolved: dict[str, StreamsGroupConfiguration] = field(default_factory=dict, init=False, repr=False, compare=False)
    _of_consumers: dict[str, ConsumerGroupConfiguration] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, object], groups: Mapping[str, Mapping[str, str]] | None = None
    ) -> GroupCoordinatorConfiguration:
        """From Kafka's broker settings by name; names that are not the coordinator's are passed over.

        Raises ConfigError("bad-value"), a ValueError, in Kafka's words, also where settings contradict each other.
        """
        values = {name: parse_value(COORDINATOR_SETTINGS[name], given) for name, given in settings.items()
                  if name in COORDINATOR_SETTINGS and given is not None}  # fmt: skip
        check_bounds(values)
        known = {member.name for member in fields(cls)}
        own: dict[str, Any] = {field_of(name): value for name, value in values.items() if field_of(name) in known}
        for name in (_TAGS, _ASSIGNORS):
            if name in values:
                own[field_of(name)] = tuple(list_of(str(values[name])))
        return replace(cls(), **own, groups=dict(groups or {}))

    @property
    def classic_groups(self) -> ClassicGroupConfiguration:
        """What holds for all classic groups: they have no settings of their own."""
        return ClassicGroupConfiguration(
            min_session_timeout_ms=self.min_session_timeout_ms,
            max_session_timeout_ms=self.max_session_timeout_ms,
            initial_rebalance_delay_ms=self.initial_rebalance_delay_ms,
            max_size=min(self.max_size, self.headrace_max_group_members),
        )

    def for_streams_group(self, group_id: str) -> StreamsGroupConfiguration:
        """The group's own settings where they are set, the broker's elsewhere."""
        if group_id not in self.groups:
            group_id = ""  # groups without settings are alike
        found = self._resolved.get(group_id)
        if found is None:
            values = self._resolve("streams", StreamsGroupConfiguration, group_id)
            found = self._resolved[group_id] = StreamsGroupConfiguration(**values)
        return found

    def for_consumer_group(self, group_id: str) -> ConsumerGroupConfiguration:
        """The group's own settings where they are set, the broker's elsewhere."""
        if group_id not in self.groups:
            group_id = ""
        found = self._of_consumers.get(group_id)
        if found is None:
            values = self._resolve("consumer", ConsumerGroupConfiguration, group_id)
            found = self._of_consumers[group_id] = ConsumerGroupConfiguration(**values)
        return found

    def _resolve(self, kind: str, configuration: type[Any], group_id: str) -> dict[str, Any]:
        """The fields of `configuration`. A stored value out of the broker's bounds counts as the bound."""
        own = self.groups.get(group_id, {})
        values: dict[str, Any] = {}
        for member in fields(configuration):
            values[member.name] = getattr(self, f"{kind}_{member.name}")
            row = GROUP_SETTINGS.get(f"{kind}.{member.name.replace('_', '.')}")
            if row is None or row.setting.name not in own:
                continue
            value: Any = parse_value(row.setting, own[row.setting.name])
            if row.lowest is not None:
                value = max(self._bound(row.lowest), value)
            if row.highest is not None:
                value = min(self._bound(row.highest), value)
            values[member.name] = tuple(list_of(value)) if row.setting.kind == "list" else value
        values["max_size"] = min(values["max_size"], self.headrace_max_group_members)
        return values

    def with_group_settings(self, group_id: str, settings: Mapping[str, str]) -> GroupCoordinatorConfiguration:
        """A copy in which the group has exactly these settings, unchecked: `group_configuration` checks."""
        return replace(self, groups={**self.groups, group_id: dict(settings)})

    def _bound(self, name: str) -> int:
        return int(getattr(self, field_of(name)))


def field_of(name: str) -> str:
    """`group.streams.max.size` → `streams_max_size`."""
    return name.removeprefix("group.").replace(".", "_")
