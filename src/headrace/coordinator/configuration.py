"""Configuration of the group coordinator and of single groups: immutable, with Kafka's names, defaults and bounds.

The tables of settings are in `settings`. `check_bounds` validates the broker's own values at start,
`checked_group_settings` those of one group when an operator changes them, by Kafka 4.3.1's rules and with its messages.
A group's own value applies only if it was set (KIP-1071). A stored group value outside the broker's present bounds is
clamped, because the bounds may have changed since it was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headrace.coordinator.settings import ASSIGNORS, COORDINATOR_SETTINGS, GROUP_SETTINGS
from headrace.errors import ConfigError
from headrace.settings import Value, list_of, parse_value, render_value
from headrace.suggestions import nearest

__all__ = [
    "ClassicGroupConfiguration",
    "ConsumerGroupConfiguration",
    "GroupCoordinatorConfiguration",
    "StreamsGroupConfiguration",
    "TransactionConfiguration",
    "allows_downgrade",
    "allows_upgrade",
    "check_bounds",
    "checked_group_settings",
    "is_disabled",
]

_TIMINGS = ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
_SHARE_BOUNDED = ("delivery.count.limit", "record.lock.duration.ms", "partition.max.record.locks")
_PROTOCOLS = "group.coordinator.rebalance.protocols"


def check_bounds(given: Mapping[str, Value]) -> None:
    """Whether the broker's settings contradict each other; what is not given has its default.

    Raises ConfigError("bad-value") naming the setting.
    """

    def value(name: str) -> Any:
        return given.get(name, COORDINATOR_SETTINGS[name].default)

    # Kafka's rule and words. Offsets of simple consumers live in classic groups, whatever else is off.
    if "classic" not in list_of(str(value(_PROTOCOLS))):
        raise _contradiction(_PROTOCOLS, "Disabling the 'classic' protocol is not supported.")
    if "share" in list_of(str(value(_PROTOCOLS))):
        raise _contradiction(
            _PROTOCOLS, "Share groups are not served by this broker: remove 'share' from the list, or use Apache Kafka."
        )
    for kind in ("consumer", "share", "streams"):
        for name in (*_TIMINGS, *(_SHARE_BOUNDED if kind == "share" else ())):
            own, low, high = (f"group.{kind}.{prefix}{name}" for prefix in ("", "min.", "max."))
            _at_least(high, value(high), low, value(low))
            _at_least(own, value(own), low, value(low))
            _at_most(own, value(own), high, value(high))
        # A session no longer than one interval would end with every heartbeat that is late.
        heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
        if value(heartbeat) >= value(session):
            raise _contradiction(heartbeat, f"{heartbeat} must be less than {session}")
    for own, high in (
        ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
        ("group.streams.num.warmup.replicas", "group.streams.max.warmup.replicas"),
    ):
        _at_most(own, value(own), high, value(high))
    interval, lowest = "group.streams.task.offset.interval.ms", "group.streams.min.task.offset.interval.ms"
    _at_least(interval, value(interval), lowest, value(lowest))


def checked_group_settings(settings: Mapping[str, str], broker: Mapping[str, Value]) -> dict[str, str]:
    """Check a group's own settings and return them in canonical form. `broker`: effective settings of the broker.

    Raises ConfigError("bad-value") in Kafka's words, with the near name of an unknown one as the fix.
    """

    def of_broker(name: str) -> Any:
        return broker.get(name, COORDINATOR_SETTINGS[name].default)

    for name in settings:
        if name not in GROUP_SETTINGS:
            near = nearest(name, GROUP_SETTINGS)
            fix = f"Did you mean `{near}`?" if near else "See docs/reference/settings.md for the settings of groups."
            raise ConfigError("bad-value", f"Unknown group config name: {name}", fix, setting=name)
    # 1. Each value on its own, 2. against the broker's bounds, 3. against each other, with the broker's value where the
    #    group has none.
    parsed = {name: parse_value(GROUP_SETTINGS[name].setting, settings[name]) for name in sorted(settings)}
    for name, value in parsed.items():
        row = GROUP_SETTINGS[name]
        if row.lowest is not None:
            _at_least(name, value, _shown(row.lowest, broker), of_broker(row.lowest))
        if row.highest is not None:
            _at_most(name, value, _shown(row.highest, broker), of_broker(row.highest))
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if parsed.get(session, of_broker(f"group.{session}")) <= parsed.get(heartbeat, of_broker(f"group.{heartbeat}")):
            raise _contradiction(session, f"{session} must be greater than {heartbeat}")
    _check_assignor(parsed.get("streams.assignor.name"))
    _check_tags(str(parsed.get("streams.rack.aware.assignment.tags", "")))
    return {name: render_value(value) or "" for name, value in parsed.items()}


def _shown(bound: str, broker: Mapping[str, Value]) -> str:
    """Kafka names a public bound, and only says the number of an internal one."""
    setting = COORDINATOR_SETTINGS[bound]
    return str(broker.get(bound, setting.default)) if setting.internal else bound


def _check_assignor(name: Value | None) -> None:
    if name is not None and name not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        raise _contradiction(
            "streams.assignor.name",
            f"streams.assignor.name '{name}' is not a registered task assignor. Registered assignors are: [{known}].",
        )


def _check_tags(tags: str) -> None:
    parts = list_of(tags)
    if len(set(parts)) < len(parts):
        name = "streams.rack.aware.assignment.tags"
        raise _contradiction(name, f"{name} must not contain duplicate tag keys.")


def _at_least(name: str, value: Any, bound_name: str, bound: Any) -> None:
    if value < bound:
        raise _contradiction(name, f"{name} must be greater than or equal to {bound_name}", bound)


def _at_most(name: str, value: Any, bound_name: str, bound: Any) -> None:
    if value > bound:
        raise _contradiction(name, f"{name} must be less than or equal to {bound_name}", bound)


def _contradiction(name: str, message: str, bound: Any = None) -> ConfigError:
    fix = f"Change `{name}`" + (f" (the bound is {bound})." if bound is not None else ".")
    return ConfigError("bad-value", message, fix, setting=name)


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
    """Configuration of one consumer group. `assignors`: the server-side ones, the default first."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    max_size: int
    assignors: tuple[str, ...]
    migration_policy: str
    regex_refresh_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupConfiguration:
    """Configuration of one streams group."""

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
        """Settings that an assignor sees, as stored in the group's metadata record. A change bumps the group epoch."""
        # Always the standbys, tags only if there are some: the stored list is compared as a whole, and Kafka's broker
        # writes exactly this one.
        configs: tuple[tuple[str, str], ...] = (("num.standby.replicas", str(self.num_standby_replicas)),)
        # Assignor, intervals and recovery lag are not part of it: changing them moves no task.
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
        """Read Kafka's broker settings by name; other names are ignored.

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
        """Configuration of all classic groups, which have no settings of their own."""
        return ClassicGroupConfiguration(
            min_session_timeout_ms=self.min_session_timeout_ms,
            max_session_timeout_ms=self.max_session_timeout_ms,
            initial_rebalance_delay_ms=self.initial_rebalance_delay_ms,
            max_size=min(self.max_size, self.headrace_max_group_members),
        )

    def for_streams_group(self, group_id: str) -> StreamsGroupConfiguration:
        """Return the settings of a group: its own, and the broker's as defaults."""
        # One cached object for all groups without settings of their own: heartbeats ask for it each time.
        if group_id not in self.groups:
            group_id = ""  # groups without settings are alike
        found = self._resolved.get(group_id)
        if found is None:
            values = self._resolve("streams", StreamsGroupConfiguration, group_id)
            found = self._resolved[group_id] = StreamsGroupConfiguration(**values)
        return found

    def for_consumer_group(self, group_id: str) -> ConsumerGroupConfiguration:
        """Return the settings of a group: its own, and the broker's as defaults."""
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
            # Clamped, not refused: the bounds may have changed since the value was stored, and a group must go on
            # (KIP-1071 for streams groups; Kafka logs a warning).
            value: Any = parse_value(row.setting, own[row.setting.name])
            if row.lowest is not None:
                value = max(self._bound(row.lowest), value)
            if row.highest is not None:
                value = min(self._bound(row.highest), value)
            values[member.name] = tuple(list_of(value)) if row.setting.kind == "list" else value
        values["max_size"] = min(values["max_size"], self.headrace_max_group_members)
        return values

    def with_group_settings(self, group_id: str, settings: Mapping[str, str]) -> GroupCoordinatorConfiguration:
        """Return a copy in which the group has exactly these settings. `group_configuration` checks them."""
        # `replace` leaves the caches out (`init=False`), so the copy resolves everything anew.
        return replace(self, groups={**self.groups, group_id: dict(settings)})

    def _bound(self, name: str) -> int:
        return int(getattr(self, field_of(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfiguration:
    """Settings of the transaction coordinator: `transaction.max.timeout.ms`, `transactional.id.expiration.ms`,
    `transaction.remove.expired.transaction.cleanup.interval.ms`; `headrace.max.transactional.ids`."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    expiry_interval_ms: int = 3_600_000
    most_ids: int = 100_000


def field_of(name: str) -> str:
    """Return the field of a setting: `streams_max_size` for `group.streams.max.size`."""
    return name.removeprefix("group.").replace(".", "_")


_UPGRADE = frozenset({"upgrade", "bidirectional"})
_DOWNGRADE = frozenset({"downgrade", "bidirectional"})


def allows_upgrade(policy: str) -> bool:
    """Whether the policy lets a classic group with members become a consumer group."""
    return policy.lower() in _UPGRADE


def allows_downgrade(policy: str) -> bool:
    """Whether the policy lets a consumer group with members become a classic group."""
    return policy.lower() in _DOWNGRADE


def is_disabled(policy: str) -> bool:
    """Whether even members of one group must not speak different protocols."""
    return not (allows_upgrade(policy) or allows_downgrade(policy))
