"""One broker: its parts put together, started and stopped. `process.run_broker` is the process around it.

Start: bind the port, lock the directory, recover the logs, replay the metadata and the coordinator, then answer.
Stop: no new connection, parked requests are answered, everything goes to the disk, a marker records it. `kill` does
none of that: it is what kill -9 leaves behind, for tests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from headrace.broker.clock import Clock, SteadyClock
from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.coordinators.group_coordinator import GroupCoordinator
from headrace.broker.faults import Faults, topics_in
from headrace.broker.monitoring.broker_metrics import BrokerMetrics, RequestLog
from headrace.broker.monitoring.metrics_server import JSON, TEXT, Health, LoopLag, MetricsServer
from headrace.broker.monitoring.server_metrics import LogSize
from headrace.broker.network.connection import ClientConnection
from headrace.broker.network.fair_queue import FairQueue
from headrace.broker.network.fast_paths import CacheGeneration
from headrace.broker.network.listener import ConnectionLimits, Listeners
from headrace.broker.requests.api_table import ApiTable
from headrace.broker.security.credentials import AddedUser
from headrace.broker.services import Services, open_directory, open_services
from headrace.errors import HeadraceError
from headrace.metrics.prometheus_text import Family, prometheus_text
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.request_codec import RequestHeader, encode_response

__all__ = ["Server", "ServerStats"]

logger = logging.getLogger("headrace.broker")

LAG_BEAT_SECONDS = 0.5
CHECKPOINT_INTERVAL_MS = 5_000
IDLE_CHECK_INTERVAL_MS = 30_000


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
            self.metrics.requests, lambda: configuration.integer("headrace.request.log.slow.ms")
        )
        self.metrics_port = metrics_port
        self.metrics_host = metrics_host
        self._health = Health(ServerStats(self))
        self._metrics_server = MetricsServer(
            {
                "/metrics": lambda: (True, self.metrics_text(), TEXT),
                "/health/live": lambda: (*self._health.live(), JSON),
                "/health/ready": lambda: (*self._health.ready(), JSON),
            }
        )
        self.loop_lag = LoopLag(LAG_BEAT_SECONDS)
        self.services: Services | None = None
        self.scram_users: Sequence[AddedUser] = ()  # stored before the first client is let in
        self.port = configuration.port
        self.cache_generation = CacheGeneration(configuration.integer("headrace.response.cache.max.bytes"))
        self.limits = ConnectionLimits(configuration)
        self.fair_queue = FairQueue()
        self.faults: Faults | None = None
        self.apis: ApiTable | None = None
        self.listeners = Listeners(configuration.listeners())
        self._connections: dict[ClientConnection, None] = {}
        self.clock: Clock = clock or SteadyClock()
        # Bound once: both are called for every request.
        self.next_token: Callable[[], int] = itertools.count(1).__next__
        self.now_ms: Callable[[], int] = self.clock.now_ms
        self._background_tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._everybody_left: asyncio.Event | None = None

    async def start(self) -> None:
        """Return when requests are answered. Raises ConfigError and StateError; nothing is left open then."""
        # 1. The port first: a second broker on the same port fails before it touches the data directory of the first.
        self.port = self.listeners.bind()
        try:
            # 2. Health probes are answered while the logs are read, which may take long after a crash.
            if self.metrics_port is not None:
                self.metrics_port = await self._metrics_server.start(self.metrics_host, self.metrics_port)
            # 3. Lock, recovery, replay.
            self.services = await self._open_services()
            if self.scram_users:
                self.services.scram_credentials.replace(self.scram_users)
            self.apis = ApiTable(self.services)
            # 4. Clients, when everything they could ask for is there.
            await self.listeners.open(
                partial(ClientConnection, self),
                timeout_ms=self.configuration.integer("headrace.authentication.timeout.ms"),
            )
        except BaseException:
            self.listeners.close()
            self._metrics_server.close()
            self._abandon_services()
            raise
        self._start_background_tasks(self.services)

    async def stop(self) -> None:
        """Stop gracefully: wait a moment at most for the connections, and without limit for the disk."""
        services = self.services
        if services is None:
            return
        self._stopping = True
        # 1. No new connections; parked requests are answered with what there is.
        self._stop_listening()
        services.delayed_fetches.wake_all()
        if self.faults is not None:
            self.faults.release()
        # 2. Requests in progress get their responses, for at most headrace.shutdown.drain.ms.
        await self._log_stop()
        # 3. Nothing wakes any more that could write.
        services.coordinator.stop()
        services.transactions.stop()
        services.hanging.stop()
        if services.recorder is not None:
            services.recorder.stop()
        # 4. The disk, as long as it takes; then the marker of a clean stop, which spares the next start its checks.
        services.flusher.close()
        self.services = None
        services.logs.close()
        self.fair_queue.close()

    def kill(self) -> None:
        """Stop as kill -9 would: sockets are reset, nothing is flushed, no marker is written."""
        self._stopping = True
        self._stop_listening()
        # No drain, no flush and no marker: the next start finds what kill -9 would leave.
        for connection in tuple(self._connections):
            connection.abort()
        self._abandon_services()

    def accept(self, connection: ClientConnection, address: str) -> bool:
        """Whether this connection from there may stay."""
        # The address's own rate only where such a quota is set: the look-up would come on top of each connection.
        quotas = self.services.quotas if self.services is not None else None
        rate = quotas.connection_rate(address) if quotas is not None and quotas.meters_connections else None
        if self._stopping or not self.limits.admit(address, self.clock.now_ms(), rate):
            return False
        self._connections[connection] = None
        self.metrics.server.connection_opened(connection.listener_name)
        return True

    def forget(self, connection: ClientConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.limits.release(connection.peer[0])
            self.metrics.server.connection_closed(connection.listener_name, connection.close_reason)
        if not self._connections and self._everybody_left is not None:
            self._everybody_left.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connections_by_listener(self) -> dict[str, int]:
        """Return the number of connected clients by listener, for all listeners."""
        counts = dict.fromkeys(self.listeners.listeners, 0)
        for connection in self._connections:
            counts[connection.listener_name] = counts.get(connection.listener_name, 0) + 1
        return counts

    def metric_families(self) -> tuple[Family, ...]:
        """Yield all metrics."""
        return tuple(self.metrics.families(ServerStats(self)))

    def metrics_text(self) -> str:
        return prometheus_text(self.metric_families())

    def loop_time(self) -> float:
        return time.monotonic()

    def api_name(self, api_key: int) -> str:
        return ApiKey(api_key).kafka_name

    def topics_in(self, request: object) -> frozenset[str]:
        """Return the names of the topics of a request, those of its fetch session included."""
        services = self.services
        if services is None:
            return frozenset()

        def name_of(topic_id: UUID | None) -> str | None:
            topic = services.metadata.topic_by_id(topic_id)
            return topic.name if topic is not None else None

        # A fetch of a session names no topics itself.
        in_session = services.fetch_sessions.topics(getattr(request, "session_id", 0))
        return topics_in(request, name_of) | {name or name_of(topic_id) or "" for name, topic_id in in_session}

    def answer_unsupported_version(self, header: RequestHeader) -> bytes | None:
        """Answer ApiVersions only (KIP-511), so that a newer client can step down; None closes the connection."""
        if header.api_key != ApiKey.API_VERSIONS:
            return None
        from headrace.broker.handlers.connection_setup import answer_versions

        return encode_response(header, answer_versions(0, code=ErrorCode.unsupported_version))

    def refuse_request(self, header: RequestHeader, code: ErrorCode) -> bytes | None:
        """Return a response with one error code and no items; None if this version has no such code."""
        from headrace.broker.requests.error_responses import request_refusal

        answer = request_refusal(ApiKey(header.api_key), header.api_version, code)
        # Some layouts cannot be written without items; then the connection is closed instead.
        try:
            return encode_response(header, answer) if answer is not None else None
        except ValueError:
            return None  # an older version that cannot be without items: OffsetFetch up to 7 answers one group

    async def _open_services(self) -> Services:
        return open_services(
            self.configuration,
            await open_directory(self.configuration, self.clock),
            metrics=self.metrics,
            clock=self.clock,
            address_of=self.listeners.address,
            forget_responses=self.cache_generation.advance,
            metadata_changed=self._metadata_changed,
            settings_changed=self._settings_changed,
        )

    def _metadata_changed(self) -> None:
        # Called during the start, too, when the coordinator does not exist yet.
        if self.services is not None:
            self.services.coordinator.image_changed(self.services.metadata.image)

    def _settings_changed(self) -> None:
        if self.services is not None:
            self.services.coordinator.configuration_changed()
            self.services.metadata.refresh_image()
            self._metadata_changed()

    def _stop_listening(self) -> None:
        self._metrics_server.close()
        self.listeners.close()
        for task in self._background_tasks:
            task.cancel()

    async def _log_stop(self) -> None:
        if not self._connections:
            return
        self._everybody_left = asyncio.Event()
        # Idle connections close at once, the others behind their response.
        for connection in tuple(self._connections):
            connection.close_when_answered()
        try:
            patience_ms = self.configuration.integer("headrace.shutdown.drain.ms")
            await asyncio.wait_for(self._everybody_left.wait(), patience_ms / 1000)
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()

    def _abandon_services(self) -> None:
        services, self.services = self.services, None
        if services is not None:
            services.coordinator.stop()
            services.transactions.stop()
            services.hanging.stop()
            services.delayed_fetches.wake_all()
            services.flusher.close()
            services.logs.abandon()
            self.fair_queue.close()

    def _start_background_tasks(self, services: Services) -> None:
        configuration = self.configuration
        retention_ms = configuration.integer("log.retention.check.interval.ms")
        # On the broker's clock, so that tests can move retention and compaction; what protects the process itself stays
        # on real time.
        self._start_background_task(self.clock.every(retention_ms, _log_failures(services.logs.enforce_retention)))
        if configuration.flag("log.cleaner.enable"):
            cleaning_ms = configuration.integer("log.cleaner.backoff.ms")
            self._start_background_task(self.clock.every(cleaning_ms, _log_failures(services.logs.compact)))
        if services.recorder is not None:
            from headrace.broker.monitoring.group_recorder import INTERVAL_MS

            self._start_background_task(self.clock.every(INTERVAL_MS, _log_failures(services.recorder.record)))
        self._start_background_task(self._measure_lag())
        steady = SteadyClock()
        self._start_background_task(
            steady.every(CHECKPOINT_INTERVAL_MS, _log_failures(services.logs.flush_closed_segments))
        )
        self._start_background_task(steady.every(IDLE_CHECK_INTERVAL_MS, _log_failures(self._close_idle_connections)))
        if configuration.flush_policy == "interval":
            self._start_background_task(services.flusher.run_every(configuration.flush_interval_ms()))

    async def _measure_lag(self) -> None:
        while True:
            self.metrics.server.record_loop_lag(self.loop_lag.beat(self.loop_time()))
            await asyncio.sleep(LAG_BEAT_SECONDS)

    def _start_background_task(self, coroutine: Coroutine[None, None, None]) -> None:
        self._background_tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def _close_idle_connections(self) -> None:
        oldest = self.loop_time() - self.configuration.integer("connections.max.idle.ms") / 1000
        for connection in tuple(self._connections):
            if connection.idle and connection.last_active < oldest:
                connection.close_reason = "idle"
                connection.close()


def _log_failures(task: Callable[[], Awaitable[None] | None]) -> Callable[[], Awaitable[None]]:
    """Wrap a background task: log its failures instead of ending it."""

    async def done() -> None:
        try:
            under_way = task()
            if under_way is not None:
                await under_way
        # A full disk passes. Anything else is a defect, and ends the task with its traceback.
        except (OSError, HeadraceError) as error:
            logger.error("A background task of the broker failed (%s); it runs again at its next interval.", error)

    return done


class ServerStats:
    """BrokerSizes and HealthSource of one server; all zeros while it has no services."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def _coordinator(self) -> GroupCoordinator | None:
        return self._server.services.coordinator if self._server.services is not None else None

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
        return self._server.connections_by_listener()

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

    def full_disk(self) -> str | None:
        services = self._server.services
        return services.logs.no_room if services is not None else None

    def failed_shards(self) -> int:
        return self.partition_counts().get("failed", 0)

    def loop_lag_seconds(self) -> float:
        return self._server.loop_lag.seconds(self._server.loop_time())
