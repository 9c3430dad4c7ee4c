"""Client settings that `group.protocol=streams` ignores (KIP-1071), and what replaces each: settings of the group.

Whoever reads settings calls `warn_if_ignored`: one warning per setting and process, not one per heartbeat or reader.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import Final

from headrace.errors import ConfigError

__all__ = ["IGNORED_UNDER_STREAMS", "check_streams_protocol", "warn_if_ignored"]

log = logging.getLogger("headrace.client")

IGNORED_UNDER_STREAMS: Final = MappingProxyType(
    {
        "session.timeout.ms": "streams.session.timeout.ms",
        "heartbeat.interval.ms": "streams.heartbeat.interval.ms",
        "num.standby.replicas": "streams.num.standby.replicas",
        "rack.aware.assignment.tags": "streams.rack.aware.assignment.tags",
        "task.assignor.class": "streams.assignor.name",
        "acceptable.recovery.lag": None,
        "max.warmup.replicas": None,
        "probing.rebalance.interval.ms": None,
        "rack.aware.assignment.strategy": None,
        "rack.aware.assignment.traffic_cost": None,
        "rack.aware.assignment.non_overlap_cost": None,
        "partition.assignment.strategy": None,
        "group.remote.assignor": None,
    }
)
"""Client setting → setting of the group; None: nothing replaces it, the coordinator decides alone."""

_SINCE_4_4: Final = frozenset({"streams.rack.aware.assignment.tags", "streams.assignor.name"})

_warned: set[str] = set()


def check_streams_protocol(protocol: str | None, *, member: str) -> None:
    """Accept `group.protocol=streams`, in any case as Kafka does, and no setting at all.

    Args:
        protocol: The given value of `group.protocol`; None if it is not set.
        member: What the setting was given to, for the message: "a StreamsMember".

    Raises:
        ConfigError: `bad-value` for every other protocol.
    """
    if protocol is None or protocol.strip().lower() == "streams":
        return
    known = protocol.strip().lower() in ("classic", "consumer")
    raise ConfigError(
        "bad-value",
        f"Invalid group.protocol '{protocol}': expected streams, the only protocol of {member}.",
        "Remove the setting, or use headrace.Consumer for consumer and classic groups."
        if known
        else "Remove the setting, or set it to streams.",
        key="group.protocol",
    )


def warn_if_ignored(name: str) -> bool:
    """Whether streams groups ignore this client setting; says so in the log the first time."""
    if name not in IGNORED_UNDER_STREAMS:
        return False
    if name not in _warned:
        _warned.add(name)
        log.warning("%s", _sentence(name, IGNORED_UNDER_STREAMS[name]))
    return True


def _sentence(name: str, replacement: str | None) -> str:
    if replacement is None:
        return f"{name} is ignored for streams groups: the group coordinator assigns tasks on its own"
    since = " (brokers from 4.4)" if replacement in _SINCE_4_4 else ""
    return (
        f"{name} is ignored for streams groups: set {replacement}{since} on the group (headrace configs, type groups)"
    )
