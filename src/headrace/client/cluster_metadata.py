"""A client's view of the cluster: bootstrap addresses, brokers, topics with ids, and leaders. Snapshots are frozen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headrace.client.connection import BrokerAddress, ConnectionLost, NotKafka
from headrace.errors import CannotConnect, ConfigError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "NO_LEADER",
    "ClusterMetadata",
    "MetadataCache",
    "TopicMetadata",
    "parse_bootstrap_servers",
    "read_metadata",
    "unreachable",
]

DEFAULT_PORT: Final = 9092
_CLOSED: Final = "the broker closed the connection"


def parse_bootstrap_servers(servers: str | Sequence[str]) -> tuple[BrokerAddress, ...]:
    """Parse `"host:port,host:port"`, or a sequence of addresses; the default port is 9092.

    Raises:
        ConfigError: `bad-value`.
    """
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = tuple(_address(entry.strip()) for entry in listed if entry.strip())
    if not addresses:
        raise ConfigError("bad-value", "bootstrap.servers names no broker", "give host:port, e.g. localhost:9092")
    return addresses


def _address(entry: str) -> BrokerAddress:
    # More than one colon without brackets is an IPv6 address without a port; `[::1]:9092` has one.
    host, colon, port = entry.rpartition(":")
    if not colon or (entry.count(":") > 1 and not entry.startswith("[")):
        return BrokerAddress(entry.strip("[]"), DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65_536 or not host:
        raise ConfigError(
            "bad-value", f"bootstrap.servers has {entry!r}, which is not host:port", "e.g. localhost:9092"
        )
    return BrokerAddress(host.strip("[]"), int(port))


def unreachable(error: ConnectionLost, bootstrap: Sequence[BrokerAddress], tried_ms: float | None) -> CannotConnect:
    """Return the error for a cluster that does not answer.

    Args:
        error: The last failure of a connection.
        bootstrap: The bootstrap addresses.
        tried_ms: How long it was tried; None if trying again would not help.
    """
    known = ", ".join(str(address) for address in bootstrap)
    where = str(error.address) if error.address.port else known
    tried = "" if tried_ms is None else f", tried for {max(1, round(tried_ms / 1000))} s"
    fix = f"start a broker there, or set bootstrap.servers (now {known}) to one that runs"
    if error.address.port and error.address not in bootstrap:
        fix = f"the brokers at {known} name this address: check advertised.listeners, and that the broker runs"
    elif error.why.startswith(_CLOSED):
        # Listeners with another protocol than the client's close without an answer; so does a broker that stops.
        expected = "may not speak TLS" if "TLS" in error.why else "may expect TLS or a login"
        fix = f"check security.protocol: the listener at {where} {expected}"
    elif isinstance(error, NotKafka):
        fix = f"set bootstrap.servers (now {known}) to the address of a Kafka broker"
    return CannotConnect(
        "broker-unreachable",
        f"No Kafka broker reachable at {where} ({error.why}{tried})",
        fix,
        bootstrap_servers=known,
        why=error.why,
    )


NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """One topic; `partitions` maps each partition to the node id of its leader (-1: none at the moment)."""

    name: str
    topic_id: UUID | None
    partitions: Mapping[int, int]
    internal: bool = False
    replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    in_sync: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    leader_epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """Brokers and topics at one moment.

    Topics that do not exist are not in `topics`; `refused` has the error code of topics that the broker did not
    describe.
    """

    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicMetadata]
    controller: int | None = None
    cluster_id: str | None = None
    refused: Mapping[str, ErrorCode] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the leader's node id; None if unknown."""
        metadata = self.topics.get(topic)
        leader = NO_LEADER if metadata is None else metadata.partitions.get(partition, NO_LEADER)
        return None if leader == NO_LEADER else leader

    def topic_name(self, topic_id: UUID | None) -> str | None:
        """Return the name of a topic id; None if unknown."""
        return next((t.name for t in self.topics.values() if t.topic_id == topic_id and topic_id is not None), None)


class MetadataCache:
    """Brokers and topics as last read, with the time at which each topic was read. Mutable.

    Kafka's `Metadata` without its updates in the background: a blocking client reads when a caller needs fresh data.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerAddress] = {}
        self._controller: int | None = None
        self._cluster_id: str | None = None
        self._topics: dict[str, tuple[TopicMetadata, float]] = {}

    def find(self, names: Sequence[str], max_age_s: float) -> ClusterMetadata | None:
        """Return the cluster with the named topics; None unless all of them were read within `max_age_s`."""
        if not self.brokers:
            return None
        oldest = time.monotonic() - max_age_s
        known = {name: self._topics[name] for name in names if name in self._topics}
        if len(known) < len(names) or any(at < oldest for _, at in known.values()):
            return None
        return self.snapshot({name: topic for name, (topic, _) in known.items()}, {})

    def replace(self, read: ClusterMetadata, asked: Iterable[str] | None) -> None:
        """Store what was read; `asked` None: all topics were requested.

        Requested topics that are missing from the response were deleted, so their entries go as well.
        """
        self.brokers = dict(read.brokers)
        self._controller = read.controller
        self._cluster_id = read.cluster_id
        # First everything that was asked for goes, then what came is put in: the difference was deleted.
        for name in self._topics.copy() if asked is None else asked:
            self._topics.pop(name, None)
        now = time.monotonic()
        self._topics.update({name: (topic, now) for name, topic in read.topics.items()})

    def snapshot(self, topics: Mapping[str, TopicMetadata], refused: Mapping[str, ErrorCode]) -> ClusterMetadata:
        """Return these topics with the brokers of the last response."""
        return ClusterMetadata(
            brokers=dict(self.brokers),
            topics=topics,
            controller=self._controller,
            cluster_id=self._cluster_id,
            refused=refused,
        )


def read_metadata(response: m.metadata_response.MetadataResponse) -> ClusterMetadata:
    """Return a Metadata response as a snapshot."""
    topics: dict[str, TopicMetadata] = {}
    refused: dict[str, ErrorCode] = {}
    for topic in response.topics:
        # Metadata v12 answers a request by an unknown id without a name.
        if topic.name is None:
            continue
        if topic.error_code != ErrorCode.none:
            # UNKNOWN_TOPIC_OR_PARTITION and authorization errors look alike to most callers, who find no topic. Those
            # who must tell them apart read `refused`.
            refused[str(topic.name)] = topic.error_code
            continue
        ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
        topics[str(topic.name)] = TopicMetadata(
            name=str(topic.name),
            topic_id=topic.topic_id,
            partitions={int(p.partition_index): int(p.leader_id) for p in ordered},
            internal=topic.is_internal,
            replicas={int(p.partition_index): tuple(int(node) for node in p.replica_nodes) for p in ordered},
            in_sync={int(p.partition_index): tuple(int(node) for node in p.isr_nodes) for p in ordered},
            leader_epochs={int(p.partition_index): int(p.leader_epoch) for p in ordered},
        )
    return ClusterMetadata(
        brokers={int(b.node_id): BrokerAddress(b.host, int(b.port)) for b in response.brokers},
        topics=topics,
        controller=int(response.controller_id) if response.controller_id >= 0 else None,
        cluster_id=response.cluster_id,
        refused=refused,
    )
