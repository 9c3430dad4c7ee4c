"""Statistics of a running server, looked up for metrics and health probes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.coordinators.group_runtime import GroupRuntime
from headrace.broker.monitoring.server_metrics import LogSize

if TYPE_CHECKING:
    from headrace.broker.server import Server

__all__ = ["ServerStats"]


class ServerStats:
    """BrokerSizes and HealthSource of one server; all noughts while it has no services."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def _coordinator(self) -> GroupRuntime | None:
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
