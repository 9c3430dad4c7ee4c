"""Endpoints for interactive queries (KIP-535): which member serves which partitions.

Streams heartbeats carry them. A reply has one entry per member; members of one process share an endpoint, so entries
with the same endpoint are merged. A reply contains the map only if it changed: the member sends the epoch of the map it
has, and takes a new epoch only together with a map.
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
# Joins that announce the endpoint and are refused with UNKNOWN_SERVER_ERROR, before the error is raised as it is.
_MAX_REFUSED_REJOINS = 5


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Address at which a member answers queries, as the application configured it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Endpoint:
        """Parse `host:port`, as `application.server` contains it.

        Raises:
            ValueError: The text is not host:port.
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r} is not host:port")
        return Endpoint(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPartitions:
    """Partitions whose records an endpoint has materialised: topic → sorted partitions, by active and standby tasks."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)


EndpointMap = Mapping[Endpoint, EndpointPartitions]
"""Every endpoint of the group, also one that has no partitions yet. Immutable."""


class OwnEndpoint:
    """This member's own endpoint, and whether the coordinator knows it. Mutable.

    Kafka (to 4.4.0) answers a member that has an endpoint with UNKNOWN_SERVER_ERROR while source topics are missing or
    wrongly partitioned. After such an answer the member joins without its endpoint, learns from the statuses what is
    wrong, and announces the endpoint once the topics are in order.

    Kafka 4.2 and 4.3 raise the endpoint epoch of a group only for a join or a change of tasks of a member with a known
    endpoint (GroupMetadataManager.streamsGroupHeartbeat), and only a raised epoch makes them send the map to members.
    There the endpoint has to come with another join. Since Kafka 4.4 (heartbeat version 1) a heartbeat may carry it.
    """

    def __init__(self, endpoint: Endpoint | None) -> None:
        self._endpoint = endpoint
        self._is_held_back = False
        self._is_on_its_way = False
        self._is_told = False
        self._rejoins = 0

    def for_join(self) -> Endpoint | None:
        """Return the endpoint for a join."""
        return None if self._is_held_back else self._take()

    def for_heartbeat(self, *, is_ready: bool) -> Endpoint | None:
        """Return the endpoint for a later heartbeat; None unless it had to be left out of the join."""
        return self._take() if self._is_missing(is_ready=is_ready) else None

    def needs_rejoin(self, *, is_ready: bool) -> bool:
        """Return whether the endpoint was left out of the join and the coordinator could use it now."""
        if not is_ready:
            self._rejoins = 0
        return self._is_missing(is_ready=is_ready)

    def _is_missing(self, *, is_ready: bool) -> bool:
        return self._is_held_back and is_ready and not self._is_told

    def on_rejoin_with_endpoint(self) -> None:
        """Put the endpoint into the next join."""
        self._is_held_back = False
        self._rejoins += 1

    def on_success(self) -> None:
        """Note that the heartbeat in flight was accepted."""
        # Known to the coordinator from the answer on, not from the request: a request without an answer may not have
        # come.
        self._is_told = self._is_told or self._is_on_its_way
        self._is_on_its_way = False
        if self._is_told:
            self._is_held_back = False
            self._rejoins = 0

    def on_failure(self) -> None:
        """Note that it is unknown whether the heartbeat in flight arrived."""
        self._is_on_its_way = False

    def on_rejoin(self) -> None:
        """Note that a join will overwrite what the coordinator knows."""
        self._is_told = False

    def on_server_error(self) -> bool:
        """Handle a server error: return True if the endpoint may be the cause, and leave it out from now on."""
        # UNKNOWN_SERVER_ERROR has other causes too. Leaving the endpoint out is harmless then: it is sent again as soon
        # as a heartbeat succeeds and the topics are in order. A coordinator that refuses it again and again although
        # all topics are in order has a cause that waiting does not end, and the member has no tasks meanwhile: the
        # error is raised then.
        may_be_why = (self._is_on_its_way or self._is_told) and self._rejoins < _MAX_REFUSED_REJOINS
        self._is_on_its_way = False
        self._is_held_back = self._is_held_back or may_be_why
        return may_be_why

    def _take(self) -> Endpoint | None:
        self._is_on_its_way = self._endpoint is not None
        return self._endpoint


def endpoints_in(reply: m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse) -> EndpointMap | None:
    """Return the map of a reply; None if it did not change."""
    if reply.partitions_by_user_endpoint is None:
        return None
    found: dict[Endpoint, EndpointPartitions] = {}
    for entry in reply.partitions_by_user_endpoint:
        endpoint = Endpoint(entry.user_endpoint.host, int(entry.user_endpoint.port))
        # Kafka's map has an entry per member, not per endpoint; a process with several members appears several times.
        known = found.get(endpoint, EndpointPartitions())
        found[endpoint] = EndpointPartitions(
            active=union(known.active, _partitions(entry.active_partitions)),
            standby=union(known.standby, _partitions(entry.standby_partitions)),
        )
    # Sorted, so that two replies with the same content are equal whatever order the coordinator's map had.
    return MappingProxyType({endpoint: found[endpoint] for endpoint in sorted(found)})


def owner_of(endpoints: EndpointMap, topic: str, partition: int) -> Endpoint | None:
    """Return the endpoint of the active task of a partition; None while no member has it."""
    for endpoint, partitions in endpoints.items():
        if partition in partitions.active.get(topic, ()):
            return endpoint
    return None


def _partitions(listed: Iterable[m.streams_group_heartbeat_response.TopicPartition]) -> Tasks:
    return tasks_of({str(entry.topic): [int(p) for p in entry.partitions] for entry in listed})
