"""Which values settings of the coordinator and of groups may have together: Kafka 4.3.1's rules and words.

The broker's own values are checked when it starts (`check_bounds`), a group's when they are changed
(`checked_group_settings`): names, types, the broker's bounds, and that a session outlives a heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.coordinator.settings import ASSIGNORS, COORDINATOR_SETTINGS, GROUP_SETTINGS
from headrace.errors import ConfigError
from headrace.near_names import nearest
from headrace.settings import Value, list_of, parse_value, render_value

__all__ = ["check_bounds", "checked_group_settings"]

_TIMINGS = ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
_SHARE_BOUNDED = ("delivery.count.limit", "record.lock.duration.ms", "partition.max.record.locks")
_PROTOCOLS = "group.coordinator.rebalance.protocols"


def check_bounds(given: Mapping[str, Value]) -> None:
    """Whether the broker's settings contradict each other; what is not given has its default.

    Raises ConfigError("bad-value") naming the setting.
    """

    def value(name: str) -> Any:
        return given.get(name, COORDINATOR_SETTINGS[name].default)

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
    """All of a group's own settings as they shall be kept, texts in one spelling; `broker`: the values in force there.

    Raises ConfigError("bad-value") in Kafka's words, with the near name of an unknown one as the fix.
    """

    def of_broker(name: str) -> Any:
        return broker.get(name, COORDINATOR_SETTINGS[name].default)

    for name in settings:
        if name not in GROUP_SETTINGS:
            near = nearest(name, GROUP_SETTINGS)
            fix = f"Did you mean `{near}`?" if near else "See docs/reference/settings.md for the settings of groups."
            raise ConfigError("bad-value", f"Unknown group config name: {name}", fix, setting=name)
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
