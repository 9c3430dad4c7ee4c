"""Who serves which partitions to interactive queries (KIP-535, told in streams heartbeats): a frozen map.

A reply has one entry per member; members of one process share an endpoint, so entries with the same one are joined.
The map comes only when it changed. The member sends the epoch of the map it has, and takes a new epoch only together
with a map: a reply to the very first join names epoch 0 without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.client.membership.assignment import Tasks, tasks_of, union
from headrace.protocol import messages as m

__all__ = [
    "NO_ENDPOINT_EPOCH",
    "Endpoint",
    "EndpointMap",
    "EndpointPartitions",
    "OwnEndpoint",
    "endpoints_in",
    "owner_of",
]

NO_ENDPOINT_EPOCH = -1


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where a member answers queries: what the application gave as its own address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Endpoint:
        """`host:port`, as `application.server` writes it. Raises ValueError."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r} is no host:port")
        return Endpoint(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPartitions:
    """Topic → sorted partitions whose records are materialised there, by active tasks and by standby tasks."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)


EndpointMap = Mapping[Endpoint, EndpointPartitions]
"""Every endpoint of the group, also one that has no partitions yet. Immutable."""


class OwnEndpoint:
    """Mutable: this member's own endpoint, and whether the coordinator was told.

    Kafka (to 4.4.0) answers a member that has an endpoint with UNKNOWN_SERVER_ERROR while source topics are missing or
    wrongly partitioned. So after such an answer the member joins without it, hears what is wrong, and tells its
    endpoint when nothing is wrong any more.
    """

    def __init__(self, endpoint: Endpoint | None) -> None:
        self._endpoint = endpoint
        self._is_held_back = False
        self._is_on_its_way = False
        self._is_told = False

    def for_join(self) -> Endpoint | None:
        """What the join says."""
        return None if self._is_held_back else self._take()

    def for_heartbeat(self, *, is_ready: bool) -> Endpoint | None:
        """What a later heartbeat says: something only when the join could not."""
        return self._take() if self._is_held_back and is_ready and not self._is_told else None

    def answered(self) -> None:
        """The heartbeat that is out was accepted."""
        self._is_told = self._is_told or self._is_on_its_way
        self._is_on_its_way = False

    def unanswered(self) -> None:
        """Nobody knows."""
        self._is_on_its_way = False

    def rejoins(self) -> None:
        """A join overwrites what the coordinator knows."""
        self._is_told = False

    def is_refused(self) -> bool:
        """A server error came: True when the endpoint may be why, and the member goes on without it."""
        may_be_why = self._is_on_its_way or self._is_told
        self._is_on_its_way = False
        self._is_held_back = self._is_held_back or may_be_why
        return may_be_why

    def _take(self) -> Endpoint | None:
        self._is_on_its_way = self._endpoint is not None
        return self._endpoint


def endpoints_in(reply: m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse) -> EndpointMap | None:
    """The map of a reply; None when it says that nothing changed."""
    if reply.partitions_by_user_endpoint is None:
        return None
    found: dict[Endpoint, EndpointPartitions] = {}
    for entry in reply.partitions_by_user_endpoint:
        endpoint = Endpoint(entry.user_endpoint.host, int(entry.user_endpoint.port))
        known = found.get(endpoint, EndpointPartitions())
        found[endpoint] = EndpointPartitions(
            active=union(known.active, _partitions(entry.active_partitions)),
            standby=union(known.standby, _partitions(entry.standby_partitions)),
        )
    return MappingProxyType({endpoint: found[endpoint] for endpoint in sorted(found)})


def owner_of(endpoints: EndpointMap, topic: str, partition: int) -> Endpoint | None:
    """Where the active task of a partition answers queries; None while nobody does."""
    for endpoint, partitions in endpoints.items():
        if partition in partitions.active.get(topic, ()):
            return endpoint
    return None


def _partitions(listed: Iterable[m.streams_group_heartbeat_response.TopicPartition]) -> Tasks:
    return tasks_of({str(entry.topic): [int(p) for p in entry.partitions] for entry in listed})
