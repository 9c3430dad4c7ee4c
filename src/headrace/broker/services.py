"""The parts of one broker: opened in the order in which they need one another, and handed to the handlers.

`open_services` opens a data directory with everything that works on it: logs, access rules, quotas, groups,
transactions. If one part fails to open, nothing stays open. `Services` is what a handler receives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kio.schema.types import BrokerId

from headrace.broker.clock import Clock
from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.config.dynamic_settings import DynamicSettings
from headrace.broker.config.topic_configuration import effective_retention
from headrace.broker.coordinators.group_coordinator import GroupCoordinator, GroupMetadataLogs, add_group_metadata_topic
from headrace.broker.coordinators.hanging_transactions import HangingTransactions
from headrace.broker.coordinators.transaction_coordinator import (
    TransactionCoordinator,
    TransactionStateTopic,
    transaction_configuration,
)
from headrace.broker.coordinators.transaction_markers import TransactionMarkers
from headrace.broker.logs.delayed_fetch import DelayedFetches
from headrace.broker.logs.fetch_sessions import FetchSessions
from headrace.broker.logs.flusher import Flusher
from headrace.broker.logs.log_cleaner import LogCleaner
from headrace.broker.logs.partition_logs import PartitionLogs, default_log_config
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC, ClusterMetadata
from headrace.broker.metadata.features import Features
from headrace.broker.metadata.topic_administration import TopicAdministration
from headrace.broker.monitoring.broker_metrics import BrokerMetrics
from headrace.broker.requests.quotas import Quotas
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.security.authorizer import Authorizer
from headrace.broker.security.credentials import ScramCredentials
from headrace.coordinator.history import HISTORY_TOPIC
from headrace.protocol.kio_units import from_ms
from headrace.settings import list_of
from headrace.storage.log_directory import LogDirectory
from headrace.storage.partition_log import PartitionLog
from headrace.storage.producer_state import ProducerBudget

if TYPE_CHECKING:
    from headrace.broker.monitoring.client_metrics import ClientMetrics
    from headrace.broker.monitoring.group_recorder import GroupRecorder

__all__ = [
    "ALL_OPERATIONS_UNKNOWN",
    "CONSUMER_GROUPS_OFF",
    "NO_THROTTLE",
    "RECORDER_CLIENT_ID",
    "STREAMS_GROUPS_OFF",
    "Services",
    "open_directory",
    "open_services",
]


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
# Client id of `headrace recorder`. Kafka's broker lets `__admin_client` write to its internal topics by the same means
# (`KafkaApis.handleProduceRequest`).
RECORDER_CLIENT_ID = "headrace-recorder"


@dataclass(slots=True, kw_only=True)
class Services:
    """`coordinator` is there once the broker has started. `client_metrics` is made with the first request for them.

    `clock`: whatever becomes due by itself is asked of it, so that tests can move the time. `address_of`: the address
    that a client shall connect to, which is that of its own listener (`Listeners.address`).
    """

    configuration: BrokerConfiguration
    settings: DynamicSettings
    features: Features
    metadata: ClusterMetadata
    logs: PartitionLogs
    topics: TopicAdministration
    coordinator: GroupCoordinator
    transactions: TransactionCoordinator
    hanging: HangingTransactions
    markers: TransactionMarkers
    delayed_fetches: DelayedFetches
    fetch_sessions: FetchSessions
    flusher: Flusher
    clock: Clock
    authorizer: Authorizer
    quotas: Quotas
    address_of: Callable[[RequestContext], tuple[str, int]]
    scram_credentials: ScramCredentials
    recorder: GroupRecorder | None = None
    client_metrics: ClientMetrics | None = None

    @property
    def node_id(self) -> BrokerId:
        return BrokerId(self.configuration.integer("node.id"))

    def may_write_internal(self, context: RequestContext, topic: str) -> bool:
        """Return whether a client may write to this internal topic, and create it: only `headrace recorder` may.

        With access rules it has CLUSTER_ACTION on the cluster, the right of brokers; without, its client id protects
        against accidents alone. If the broker records by itself, no client may: two writers would number entries twice.
        """
        if topic != HISTORY_TOPIC or self.recorder is not None:
            return False
        if self.authorizer.enabled:
            return self.authorizer.on_cluster(context, Operation.CLUSTER_ACTION)
        return context.client_id == RECORDER_CLIENT_ID


async def open_directory(configuration: BrokerConfiguration, clock: Clock) -> LogDirectory:
    """Open the data directory in a thread: recovery may take a while, and health probes report it meanwhile."""

    def opened() -> LogDirectory:
        directory = LogDirectory(
            configuration.data_dir,
            defaults=default_log_config(configuration),
            clock_ms=clock.wall_clock_ms,
        )
        # Logs that were not closed cleanly are checked now; small ones when they are first used.
        directory.recover_large_logs()
        return directory

    return await asyncio.to_thread(opened)


def open_services(
    configuration: BrokerConfiguration,
    directory: LogDirectory,
    *,
    metrics: BrokerMetrics,
    clock: Clock,
    address_of: Callable[[RequestContext], tuple[str, int]],
    forget_responses: Callable[[], None],
    metadata_changed: Callable[[], None],
    settings_changed: Callable[[], None],
) -> Services:
    """Open the parts of a broker on a data directory.

    Args:
        configuration: settings of the broker.
        directory: the data directory, locked by this broker.
        metrics: counters that the parts update.
        clock: time of the broker.
        address_of: host and port at which the client of a request reaches this broker.
        forget_responses: called whenever access rules, quotas or features change.
        metadata_changed: called when topics change. May be called before this function returns.
        settings_changed: called when settings change. May be called before this function returns.
    """
    flusher, delayed_fetches = Flusher(metrics.server.record_flush), DelayedFetches()
    try:
        settings = DynamicSettings(directory, configuration, settings_changed)
        authorizer = Authorizer(configuration, directory, forget_responses)
        quotas = Quotas(configuration, directory, forget_responses)
        features = Features(
            directory,
            configuration.integer("node.id"),
            forget_responses,
            list_of(str(configuration.get("group.coordinator.rebalance.protocols"))),
        )
        metadata = ClusterMetadata(directory, lambda configs: effective_retention(configs, configuration))
        group_topic = metadata.topic(GROUP_METADATA_TOPIC) or add_group_metadata_topic(configuration, metadata)
        logs = PartitionLogs(
            directory,
            flusher=flusher,
            delayed_fetches=delayed_fetches,
            clock_ms=clock.wall_clock_ms,
            cleaner=LogCleaner(directory, dedupe_buffer_bytes=configuration.integer("log.cleaner.dedupe.buffer.size")),
        )
        topics = TopicAdministration(configuration, metadata, logs, changed=metadata_changed)
        recorder = _recorder(configuration, metadata, logs, topics, clock)
        coordinator = GroupCoordinator(
            configuration=lambda: settings.coordinator,
            partitions=group_topic.partitions,
            image=metadata.image,
            logs=GroupMetadataLogs(logs, group_topic),
            clock=clock,
            create_topics=topics.create_internal,
            metrics=metrics,
            max_groups=lambda: configuration.integer("headrace.max.groups"),
            observe=None if recorder is None else recorder.observe,
        )
        # Groups before transactions: completing a transaction writes markers for offsets that the groups hold.
        coordinator.load()
        markers = TransactionMarkers(logs, coordinator)
        transactions = TransactionCoordinator(
            configuration=transaction_configuration(configuration),
            topic=TransactionStateTopic(configuration, metadata, metadata_changed),
            logs=logs,
            metadata=metadata,
            markers=markers,
            transaction_version=lambda: features.level("transaction.version"),
            verifies=lambda: configuration.flag("transaction.partition.verification.enable"),
            clock=clock,
        )
        transactions.load()
        if recorder is not None:
            # Behind the transactions: markers that a restart completes decide about offsets.
            recorder.start(record for shard in coordinator.shards() for record in shard.hard_state())
        hanging = HangingTransactions(transactions=transactions, markers=markers, metadata=metadata, clock=clock)
        budget = ProducerBudget(configuration.integer("headrace.max.producers"))

        def opened(log: PartitionLog) -> None:
            log.bound_producers(budget)
            hanging.check_opened_log(log)

        # Logs open lazily, so both the later ones and those that recovery opened are looked at.
        directory.on_log_opened = opened
        for log in tuple(directory.open_logs().values()):
            opened(log)
    except BaseException:
        # What fails leaves nothing open: the next start must be able to take the lock.
        flusher.close()
        directory.abandon()
        raise
    return Services(
        configuration=configuration,
        settings=settings,
        features=features,
        metadata=metadata,
        logs=logs,
        topics=topics,
        coordinator=coordinator,
        transactions=transactions,
        hanging=hanging,
        markers=markers,
        delayed_fetches=delayed_fetches,
        fetch_sessions=FetchSessions(lambda: configuration.integer("max.incremental.fetch.session.cache.slots")),
        flusher=flusher,
        clock=clock,
        authorizer=authorizer,
        quotas=quotas,
        address_of=address_of,
        scram_credentials=ScramCredentials(directory),
        recorder=recorder,
    )


def _recorder(
    configuration: BrokerConfiguration,
    metadata: ClusterMetadata,
    logs: PartitionLogs,
    topics: TopicAdministration,
    clock: Clock,
) -> GroupRecorder | None:
    """Return the recorder of groups; None, without its imports, unless the settings ask for one."""
    records_per_group = configuration.integer("headrace.group.history.records")
    if records_per_group == 0:
        return None
    from headrace.broker.monitoring.group_recorder import GroupRecorder

    return GroupRecorder(records_per_group=records_per_group, metadata=metadata, logs=logs, topics=topics, clock=clock)
