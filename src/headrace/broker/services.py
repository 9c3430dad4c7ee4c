"""The parts of one broker that a handler may use, put together by `bootstrap.py`."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.types import BrokerId

from headrace.broker.clock import Clock
from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.config.dynamic_settings import DynamicSettings
from headrace.broker.coordinators.group_runtime import GroupRuntime
from headrace.broker.coordinators.hanging_transactions import HangingTransactions
from headrace.broker.coordinators.transaction_markers import TransactionMarkers
from headrace.broker.coordinators.transaction_runtime import TransactionRuntime
from headrace.broker.logs.delayed_fetch import DelayedFetches
from headrace.broker.logs.fetch_sessions import FetchSessions
from headrace.broker.logs.flusher import Flusher
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import ClusterMetadata
from headrace.broker.metadata.features import Features
from headrace.broker.metadata.topic_administration import TopicAdministration
from headrace.broker.network.listener import Listeners
from headrace.broker.requests.quotas import Quotas
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.authorizer import Authorizer
from headrace.broker.security.scram_credentials import ScramCredentials
from headrace.protocol.kio_units import from_ms
from headrace.settings import list_of

__all__ = ["ALL_OPERATIONS_UNKNOWN", "CONSUMER_GROUPS_OFF", "NO_THROTTLE", "STREAMS_GROUPS_OFF", "Services"]

NO_THROTTLE = from_ms(0)
# Kafka sends the code alone.
STREAMS_GROUPS_OFF = (
    "Streams groups are switched off here: the feature streams.version is at 0, or "
    "group.coordinator.rebalance.protocols lacks streams."
)
CONSUMER_GROUPS_OFF = (
    "Consumer groups are switched off here: the feature group.version is at 0, or "
    "group.coordinator.rebalance.protocols lacks consumer."
)
# Kafka's "not asked for" in fields of authorized operations.
ALL_OPERATIONS_UNKNOWN = -(2**31)


@dataclass(slots=True, kw_only=True)
class Services:
    """`coordinator` is there once the broker has started.

    `clock`: whatever becomes due by itself is asked of it, so that tests can move the time.
    """

    configuration: BrokerConfiguration
    settings: DynamicSettings
    features: Features
    metadata: ClusterMetadata
    logs: PartitionLogs
    topics: TopicAdministration
    coordinator: GroupRuntime
    transactions: TransactionRuntime
    hanging: HangingTransactions
    markers: TransactionMarkers
    delayed_fetches: DelayedFetches
    fetch_sessions: FetchSessions
    flusher: Flusher
    clock: Clock
    authorizer: Authorizer
    quotas: Quotas
    listeners: Listeners
    scram_credentials: ScramCredentials

    @property
    def node_id(self) -> BrokerId:
        return BrokerId(self.configuration.integer("node.id"))

    @property
    def serves_streams_groups(self) -> bool:
        """Both switches are on: the finalised feature, and the protocol among those of the coordinator."""
        protocols = list_of(str(self.configuration.get("group.coordinator.rebalance.protocols")))
        return "streams" in protocols and self.features.level("streams.version") > 0

    @property
    def serves_consumer_groups(self) -> bool:
        """As `serves_streams_groups`."""
        protocols = list_of(str(self.configuration.get("group.coordinator.rebalance.protocols")))
        return "consumer" in protocols and self.features.level("group.version") > 0

    def address(self, call: RequestContext) -> tuple[str, int]:
        """Return the address this client shall connect to: its own listener's address, see `Listeners.address`."""
        return self.listeners.address(call)
