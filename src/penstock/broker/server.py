"""One broker: its parts put together, started and stopped. `run_broker` is the process behind `penstock broker`.

Start: bind the port, lock the directory, recover the logs, replay the metadata and the coordinator, then answer.
Stop: no new connection, parked requests are answered, everything goes to the disk, a marker says so. `kill` does none
of that: it is what kill -9 leaves behind, for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock.broker.api_table import SERVED, ApiTable, Handler
from penstock.broker.changed_settings import ChangedSettings
from penstock.broker.clock import Clock, SteadyClock
from penstock.broker.cluster_metadata import GROUP_METADATA_TOPIC, ClusterMetadata, TopicDescription
from penstock.broker.configuration import BrokerConfiguration
from penstock.broker.connection import ClientConnection
from penstock.broker.coordinator_runtime import CoordinatorRuntime
from penstock.broker.delayed_fetch import DelayedFetches
from penstock.broker.faults import Faults, topics_in
from penstock.broker.features import Features
from penstock.broker.fetch_sessions import FetchSessions
from penstock.broker.flusher import Flusher
from penstock.broker.group_logs import GroupMetadataLogs
from penstock.broker.listener import bind, is_loopback
from penstock.broker.log_cleaner import LogCleaner
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.metrics_server import MetricsServer
from penstock.broker.partition_logs import PartitionLogs, default_log_config
from penstock.broker.prometheus_text import Family, prometheus_text
from penstock.broker.request_log import RequestLog
from penstock.broker.server_metrics import LogSize
from penstock.broker.services import Services
from penstock.broker.steady_answers import DoorRules
from penstock.broker.topic_administration import TopicAdministration
from penstock.broker.transaction_logs import TransactionStateTopic, transaction_configuration
from penstock.broker.transaction_markers import TransactionMarkers
from penstock.broker.transaction_runtime import TransactionRuntime
from penstock.errors import PenstockError
from penstock.protocol.api_keys import ApiKey
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.request_codec import RequestHeader, encode_response
from penstock.storage.log_directory import LogDirectory

__all__ = ["Server", "event_loop", "run_broker"]

logger = logging.getLogger("penstock.broker")

LISTENER = "PLAINTEXT"
GOODBYE_SECONDS = 2.0
CHECKPOINT_INTERVAL_MS = 5_000
IDLE_CHECK_INTERVAL_MS = 30_000
MOST_FILES = 100_000


class Server:
    """Mutable: one broker's life. Belongs to the event loop it was started on."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        *,
        metrics_host: str = "127.0.0.1",
        metrics_port: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.configuration = configuration
        self.metrics = BrokerMetrics()
        self.request_log = RequestLog(
            self.metrics.requests, lambda: configuration.integer("penstock.request.log.slow.ms")
        )
        self.metrics_port = metrics_port
        self.metrics_host = metrics_host
        self._metrics_server = MetricsServer(self.metrics_text)
        self.services: Services | None = None
        self.port = configuration.port
        self.door_rules = DoorRules()
        self.faults: Faults | None = None
        self._apis: ApiTable | None = None
        self._listener: asyncio.Server | None = None
        self._connections: dict[ClientConnection, None] = {}
        self._tokens = itertools.count(1)
        self.clock: Clock = clock or SteadyClock()
        self._chores: list[asyncio.Task[None]] = []
        self._stopping = False
        self._everybody_left: asyncio.Event | None = None

    async def start(self) -> None:
        """Returns when requests are answered. Raises ConfigError and StateError; nothing is left open then."""
        bound = bind(self.configuration.host, self.configuration.port)
        self.port = bound.getsockname()[1]
        try:
            self.services = self._open_services()
            self._apis = ApiTable(self.services)
            loop = asyncio.get_running_loop()
            if self.metrics_port is not None:
                self.metrics_port = await self._metrics_server.start(self.metrics_host, self.metrics_port)
            self._listener = await loop.create_server(lambda: ClientConnection(self), sock=bound)
        except BaseException:
            bound.close()
            self._metrics_server.close()
            self._abandon_services()
            raise
        self._start_chores(self.services)

    async def stop(self) -> None:
        """Graceful: waits at most a moment for the connections, and as long as it takes for the disk."""
        services = self.services
        if services is None:
            return
        self._stopping = True
        self._stop_listening()
        services.delayed_fetches.wake_all()
        if self.faults is not None:
            self.faults.release()
        await self._say_goodbye()
        services.coordinator.stop()
        services.transactions.stop()
        services.flusher.close()
        self.services = None
        services.logs.close()

    def kill(self) -> None:
        """As kill -9: sockets are reset, nothing is flushed, no marker is written."""
        self._stopping = True
        self._stop_listening()
        for connection in tuple(self._connections):
            connection.abort()
        self._abandon_services()

    def handler(self, api_key: int) -> Handler | None:
        return self._apis.handler(api_key) if self._apis is not None else None

    def accept(self, connection: ClientConnection) -> bool:
        """Whether this connection may stay."""
        if self._stopping or len(self._connections) >= self.configuration.integer("max.connections"):
            return False
        self._connections[connection] = None
        self.metrics.server.connection_opened(LISTENER)
        return True

    def forget(self, connection: ClientConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.metrics.server.connection_closed(LISTENER, connection.close_reason)
        if not self._connections and self._everybody_left is not None:
            self._everybody_left.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def metric_families(self) -> tuple[Family, ...]:
        """All metrics, now."""
        return tuple(self.metrics.families(_Sizes(self)))

    def metrics_text(self) -> str:
        return prometheus_text(self.metric_families())

    def next_token(self) -> int:
        return next(self._tokens)

    def loop_time(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        """The clock that sessions are kept on."""
        return self.clock.now_ms()

    def api_name(self, api_key: int) -> str:
        return ApiKey(api_key).kafka_name

    def topics_in(self, request: object) -> frozenset[str]:
        """The names of the topics that a request is about, those of its fetch session too."""
        services = self.services
        if services is None:
            return frozenset()

        def name_of(topic_id: UUID | None) -> str | None:
            topic = services.metadata.topic_by_id(topic_id)
            return topic.name if topic is not None else None

        in_session = services.fetch_sessions.topics(getattr(request, "session_id", 0))
        return topics_in(request, name_of) | {name or name_of(topic_id) or "" for name, topic_id in in_session}

    def answer_unsupported_version(self, header: RequestHeader) -> bytes | None:
        """ApiVersions alone is answered (KIP-511), so that a newer client can come down to us; None closes."""
        if header.api_key != ApiKey.API_VERSIONS:
            return None
        from penstock.broker.handlers import api_versions

        return encode_response(header, api_versions.answer(SERVED, 0, code=ErrorCode.unsupported_version))

    def _open_services(self) -> Services:
        configuration = self.configuration
        flusher, delayed_fetches = Flusher(self.metrics.server.flushed), DelayedFetches()
        directory = LogDirectory(
            configuration.data_dir, defaults=default_log_config(configuration), clock_ms=self.clock.wall_clock_ms
        )
        try:
            settings = ChangedSettings(directory, configuration, self._settings_changed)
            features = Features(directory, configuration.integer("node.id"), self.door_rules.changed)
            metadata = ClusterMetadata(directory)
            group_topic = metadata.topic(GROUP_METADATA_TOPIC) or self._add_group_metadata_topic(metadata)
            logs = PartitionLogs(
                directory,
                flusher=flusher,
                delayed_fetches=delayed_fetches,
                clock_ms=self.clock.wall_clock_ms,
                cleaner=LogCleaner(directory, key_memory_bytes=configuration.integer("log.cleaner.dedupe.buffer.size")),
            )
            topics = TopicAdministration(configuration, metadata, logs, changed=self._metadata_changed)
            coordinator = CoordinatorRuntime(
                configuration=settings.coordinator,
                partitions=group_topic.partitions,
                image=metadata.image,
                logs=GroupMetadataLogs(logs, group_topic),
                now_ms=self.clock.now_ms,
                create_topics=topics.create_internal,
                metrics=self.metrics,
                clock=self.clock,
            )
            coordinator.load()
            markers = TransactionMarkers(logs, coordinator)
            transactions = TransactionRuntime(
                configuration=transaction_configuration(configuration),
                topic=TransactionStateTopic(configuration, metadata, self._metadata_changed),
                logs=logs,
                metadata=metadata,
                markers=markers,
                transaction_version=lambda: features.level("transaction.version"),
                clock=self.clock,
            )
            transactions.load()
        except BaseException:
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
            markers=markers,
            delayed_fetches=delayed_fetches,
            fetch_sessions=FetchSessions(lambda: configuration.integer("max.incremental.fetch.session.cache.slots")),
            flusher=flusher,
            clock=self.clock,
            port=self.port,
        )

    def _add_group_metadata_topic(self, metadata: ClusterMetadata) -> TopicDescription:
        """Its partition count holds for the life of the directory: groups are found by it."""
        configuration = self.configuration
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(configuration.integer("offsets.topic.segment.bytes")),
        }
        partitions = configuration.integer("offsets.topic.num.partitions")
        return metadata.add_topic(GROUP_METADATA_TOPIC, partitions, configs, lazy=True)

    def _metadata_changed(self) -> None:
        if self.services is not None:
            self.services.coordinator.image_changed(self.services.metadata.image)

    def _settings_changed(self) -> None:
        if self.services is not None:
            self.services.coordinator.configuration_changed(self.services.settings.coordinator)

    def _stop_listening(self) -> None:
        self._metrics_server.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for chore in self._chores:
            chore.cancel()

    async def _say_goodbye(self) -> None:
        if not self._connections:
            return
        self._everybody_left = asyncio.Event()
        for connection in tuple(self._connections):
            connection.close_when_answered()
        try:
            await asyncio.wait_for(self._everybody_left.wait(), GOODBYE_SECONDS)
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()

    def _abandon_services(self) -> None:
        services, self.services = self.services, None
        if services is not None:
            services.coordinator.stop()
            services.transactions.stop()
            services.delayed_fetches.wake_all()
            services.flusher.close()
            services.logs.abandon()

    def _start_chores(self, services: Services) -> None:
        configuration = self.configuration
        retention_ms = configuration.integer("log.retention.check.interval.ms")
        self._chore(self.clock.every(retention_ms, _told(services.logs.enforce_retention)))
        if configuration.flag("log.cleaner.enable"):
            cleaning_ms = configuration.integer("log.cleaner.backoff.ms")
            self._chore(self.clock.every(cleaning_ms, _told(services.logs.compact)))
        steady = SteadyClock()
        self._chore(steady.every(CHECKPOINT_INTERVAL_MS, _told(services.logs.flush_closed_segments)))
        self._chore(steady.every(IDLE_CHECK_INTERVAL_MS, _told(self._close_idle_connections)))
        if configuration.flush_policy == "interval":
            self._chore(services.flusher.run_every(configuration.flush_interval_ms()))

    def _chore(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._chores.append(asyncio.get_running_loop().create_task(coroutine))

    def _close_idle_connections(self) -> None:
        oldest = self.loop_time() - self.configuration.integer("connections.max.idle.ms") / 1000
        for connection in tuple(self._connections):
            if connection.idle and connection.last_active < oldest:
                connection.close_reason = "idle"
                connection.close()


class _Sizes:
    """What metrics look up when somebody asks for them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._coordinator = server.services.coordinator if server.services is not None else None

    def group_counts(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for shard in self._coordinator.shards() if self._coordinator is not None else ():
            for group in shard.list_groups():
                kind = group.group_type.lower(), group.group_state
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    def partition_counts(self) -> dict[str, int]:
        return self._coordinator.partition_counts() if self._coordinator is not None else {}

    def events_waiting(self) -> int:
        return self._coordinator.events_waiting() if self._coordinator is not None else 0

    @property
    def is_loading(self) -> bool:
        return self._server.services is None and not self.is_stopping

    @property
    def is_stopping(self) -> bool:
        return self._server.is_stopping

    def connections_by_listener(self) -> dict[str, int]:
        return {LISTENER: self._server.connection_count}

    def log_sizes(self) -> list[LogSize]:
        services = self._server.services
        return services.logs.log_sizes() if services is not None else []

    def parked_fetches(self) -> int:
        services = self._server.services
        return services.delayed_fetches.parked_count if services is not None else 0

    def data_directory(self) -> Path:
        return self._server.configuration.data_dir

    def failed_logs(self) -> list[str]:
        services = self._server.services
        return services.logs.failed_logs() if services is not None else []


def _told(chore: Callable[[], Awaitable[None] | None]) -> Callable[[], Awaitable[None]]:
    """The chore whose failures are told and end nothing: it comes again."""

    async def done() -> None:
        try:
            under_way = chore()
            if under_way is not None:
                await under_way
        except (OSError, PenstockError) as error:
            logger.error("A chore of the broker failed and is tried again later: %s", error)

    return done


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_broker(
    configuration: BrokerConfiguration,
    ready_callback: Callable[[Server], None] | None = None,
    *,
    metrics_host: str = "127.0.0.1",
    metrics_port: int | None = None,
) -> None:
    """Runs until SIGTERM or SIGINT, then stops gracefully. Raises ConfigError and StateError when it cannot start."""
    server = Server(configuration, metrics_host=metrics_host, metrics_port=metrics_port)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_run(server, ready_callback))


async def _run(server: Server, ready_callback: Callable[[Server], None] | None) -> None:
    _allow_many_files()
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop.set)
    await server.start()
    print(banner(server), file=sys.stderr, flush=True)
    if ready_callback is not None:
        ready_callback(server)
    try:
        await asked_to_stop.wait()
    finally:
        await server.stop()


def _allow_many_files() -> None:
    """Every open segment and connection is a file; the soft limit (256 on macOS) is meant for other programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def banner(server: Server) -> str:
    """What an operator should know before trusting us with data."""
    configuration = server.configuration
    promise = {
        "never": "acknowledged records survive kill -9, not a power loss",
        "interval": "acknowledged records survive kill -9, and a power loss but for the last "
        f"{configuration.flush_interval_ms()} ms",
        "always": "acknowledged records survive kill -9 and a power loss",
    }[configuration.flush_policy]
    lines = [
        f"Penstock broker on {configuration.host}:{server.port}, data in {configuration.data_dir.resolve()}",
        f"one process, one machine, not replicated; fsync policy {configuration.flush_policy}: {promise}",
    ]
    if server.metrics_port is not None:
        lines.append(f"metrics on http://{server.metrics_host}:{server.metrics_port}/metrics")
    if not is_loopback(configuration.host):
        lines.append(
            f"warning: {configuration.host} is reachable from outside. There is no TLS and no authentication here, and "
            "this is one process on one machine: nothing is replicated."
        )
    return "\n".join(lines)
