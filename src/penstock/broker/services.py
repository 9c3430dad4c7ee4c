"""What a handler may use: one broker's parts, put together by `server.py`."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.types import BrokerId

from penstock.broker.call import Call
from penstock.broker.cluster_metadata import ClusterMetadata
from penstock.broker.configuration import BrokerConfiguration
from penstock.broker.coordinator_runtime import CoordinatorRuntime
from penstock.broker.delayed_fetch import DelayedFetches
from penstock.broker.flusher import Flusher
from penstock.broker.partition_logs import PartitionLogs
from penstock.broker.topic_administration import TopicAdministration
from penstock.protocol.units import from_ms

__all__ = ["ALL_OPERATIONS_UNKNOWN", "NO_THROTTLE", "Services"]

NO_THROTTLE = from_ms(0)
# Kafka's "not asked for" in fields of authorized operations.
ALL_OPERATIONS_UNKNOWN = -(2**31)


@dataclass(slots=True, kw_only=True)
class Services:
    """`coordinator` is there once the broker has started; `port` is the one in fact bound."""

    configuration: BrokerConfiguration
    metadata: ClusterMetadata
    logs: PartitionLogs
    topics: TopicAdministration
    coordinator: CoordinatorRuntime
    delayed_fetches: DelayedFetches
    flusher: Flusher
    port: int

    @property
    def node_id(self) -> BrokerId:
        return BrokerId(self.configuration.integer("node.id"))

    def address(self, call: Call) -> tuple[str, int]:
        """Where this client shall connect to: the advertised address, or the very one it has reached us at."""
        advertised = self.configuration.advertised
        if advertised is not None:
            return advertised
        if self.configuration.host in ("0.0.0.0", "::"):
            return call.local_address[0], self.port
        return self.configuration.host, self.port
