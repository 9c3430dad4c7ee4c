"""Assignors by the names of `partition.assignment.strategy`: Kafka's short names and the Java class names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from headrace.assignors.assignor import Assignor, RebalanceProtocol
from headrace.assignors.kafka_assignors import (
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from headrace.errors import ConfigError
from headrace.suggestions import nearest

__all__ = ["ASSIGNORS", "common_protocol", "parse_assignors"]

ASSIGNORS: Final[Mapping[str, Callable[[], Assignor]]] = MappingProxyType(
    {kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)}
)
# A configuration that was written for the Java client works unchanged.
_JAVA: Final = MappingProxyType(
    {f"org.apache.kafka.clients.consumer.{kind.__name__}": name for name, kind in ASSIGNORS.items()}
)


def parse_assignors(strategy: Assignor | str | Iterable[Assignor | str]) -> tuple[Assignor, ...]:
    """Return the assignors of a `partition.assignment.strategy`, in order of preference.

    Args:
        strategy: Names, a comma-separated string of names, or Assignor instances, which are returned as they are.

    Raises:
        ConfigError: bad-value: an unknown name, no assignor, or one that is named twice.
    """
    listed: list[Assignor | str] = []
    for entry in [strategy] if isinstance(strategy, (Assignor, str)) else strategy:
        listed.extend([entry] if isinstance(entry, Assignor) else [part.strip() for part in entry.split(",")])
    found = tuple(_parse_entry(entry) for entry in listed if entry)
    names = [assignor.name for assignor in found]
    # Twice is a mistake: the coordinator would see one protocol with two subscriptions.
    if not found or len(set(names)) < len(names):
        raise ConfigError(
            "bad-value",
            f"partition.assignment.strategy names {', '.join(names) or 'no assignor'}",
            "name at least one assignor, and none of them twice",
            key="partition.assignment.strategy",
        )
    return found


def _parse_entry(entry: Assignor | str) -> Assignor:
    if isinstance(entry, Assignor):
        if not entry.name:
            raise ConfigError(
                "bad-value", f"the assignor {type(entry).__name__} has no name", "give the class a `name`"
            )
        return entry
    kind = ASSIGNORS.get(_JAVA.get(entry, entry))
    if kind is None:
        near = nearest(entry, [*ASSIGNORS, *_JAVA])
        raise ConfigError(
            "bad-value",
            f"partition.assignment.strategy has {entry!r}, which is not a known assignor",
            f"did you mean {near}?" if near else f"give one of {', '.join(ASSIGNORS)}, or an Assignor of your own",
            key="partition.assignment.strategy",
        )
    return kind()


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Return COOPERATIVE if all assignors support it, else EAGER: as in Kafka, a change takes two rolling restarts."""
    # All, because the coordinator may choose any of them: a member must revoke everything before a rebalance that an
    # eager assignor may decide (KIP-429).
    cooperative = all(RebalanceProtocol.COOPERATIVE in assignor.protocols for assignor in assignors)
    return RebalanceProtocol.COOPERATIVE if cooperative else RebalanceProtocol.EAGER
