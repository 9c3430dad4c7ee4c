"""Assignors by the names of `partition.assignment.strategy`: Kafka's short names, or the Java classes' full ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from headrace.assignors.assignor import Assignor, RebalanceProtocol
from headrace.assignors.spread_assignors import RangeAssignor, RoundRobinAssignor
from headrace.assignors.sticky_assignors import CooperativeStickyAssignor, StickyAssignor
from headrace.errors import ConfigError
from headrace.near_names import nearest

__all__ = ["ASSIGNORS", "assignors_named", "common_protocol"]

ASSIGNORS: Final[Mapping[str, Callable[[], Assignor]]] = MappingProxyType(
    {kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)}
)
_JAVA: Final = MappingProxyType(
    {f"org.apache.kafka.clients.consumer.{kind.__name__}": name for name, kind in ASSIGNORS.items()}
)


def assignors_named(strategy: Assignor | str | Iterable[Assignor | str]) -> tuple[Assignor, ...]:
    """New assignors for the names, in order of preference; one's own as they are. Raises ConfigError `bad-value`."""
    listed: list[Assignor | str] = []
    for entry in [strategy] if isinstance(strategy, (Assignor, str)) else strategy:
        listed.extend([entry] if isinstance(entry, Assignor) else [part.strip() for part in entry.split(",")])
    found = tuple(_one(entry) for entry in listed if entry)
    names = [assignor.name for assignor in found]
    if not found or len(set(names)) < len(names):
        raise ConfigError(
            "bad-value",
            f"partition.assignment.strategy names {', '.join(names) or 'no assignor'}",
            "name at least one assignor, and none of them twice",
            key="partition.assignment.strategy",
        )
    return found


def _one(entry: Assignor | str) -> Assignor:
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
            f"partition.assignment.strategy has {entry!r}, which is no assignor here",
            f"did you mean {near}?" if near else f"give one of {', '.join(ASSIGNORS)}, or an Assignor of your own",
            key="partition.assignment.strategy",
        )
    return kind()


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Cooperative when all can; else eager, as in Kafka: a group changes over in two rolling restarts."""
    cooperative = all(RebalanceProtocol.COOPERATIVE in assignor.protocols for assignor in assignors)
    return RebalanceProtocol.COOPERATIVE if cooperative else RebalanceProtocol.EAGER
