"""Metrics of the server itself: logs, parked requests, connections, flushes, the event loop, the process.

Sizes are looked up on request. The number of series is bounded: of more than MOST_PARTITIONS partitions the
largest are listed one by one, and totals always cover all.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from headrace.metrics.prometheus_text import Family, counter, gauge, unlabeled
from headrace.metrics.sensors import Distribution, Meter

__all__ = ["PERCENTILES", "CloseReason", "LogSize", "Login", "ServerMetrics", "ServerSizes", "times_of"]

PERCENTILES = {
    "50thPercentile": 0.5,
    "75thPercentile": 0.75,
    "95thPercentile": 0.95,
    "98thPercentile": 0.98,
    "99thPercentile": 0.99,
    "999thPercentile": 0.999,
}

MOST_PARTITIONS = 1000
LOGS = "kafka.log:type=Log"
FLUSHES = "kafka.log:type=LogFlushStats"
PURGATORY = "kafka.server:type=DelayedOperationPurgatory"
SOCKETS = "kafka.server:type=socket-server-metrics"
SERVER = "kafka.server:type=KafkaServer"
# Ours, for what Kafka has no MBean; and the names that Prometheus' own clients give a process.
LOOP = "headrace:type=event-loop"
CLOSED = "headrace:type=connections"
DISK = "headrace:type=disk"
CloseReason = Literal[
    "client", "idle", "malformed-request", "request-failed", "broker-stopping", "fault-injected",
    "not-authenticated", "not-read",
]  # fmt: skip
Login = Literal[
    "successful-authentication", "failed-authentication", "successful-reauthentication", "failed-reauthentication"
]
_LOGINS: dict[Login, str] = {
    "successful-authentication": "TLS handshakes and SASL logins that went well",
    "failed-authentication": "TLS handshakes and SASL logins that were refused",
    "successful-reauthentication": "Logins again on the same connection that went well",
    "failed-reauthentication": "Logins again on the same connection that were refused",
}
_STARTING, _RUNNING, _STOPPING = 1, 3, 6  # Kafka's BrokerState


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSize:
    """One partition's log."""

    topic: str
    partition: int
    size_bytes: int
    segments: int
    log_start_offset: int
    log_end_offset: int


class ServerSizes(Protocol):
    """Sizes that are looked up when metrics are requested."""

    @property
    def is_loading(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    def connections_by_listener(self) -> dict[str, int]: ...
    def log_sizes(self) -> list[LogSize]: ...
    def parked_fetches(self) -> int: ...
    def data_directory(self) -> Path: ...
    def failed_logs(self) -> list[str]: ...


class ServerMetrics:
    """Mutable: fed from the broker's event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._created: dict[str, Meter] = {}
        self._closed: dict[str, Meter] = {}
        self._closed_because: Counter[tuple[str, str]] = Counter()
        self._logins: dict[Login, dict[str, Meter]] = {login: {} for login in _LOGINS}
        self._expired: Counter[str] = Counter()
        self._flushes = Distribution(clock)
        self._flush_failures = 0
        self._lag = Distribution(clock)
        self._started = time.time()

    # --- what happened ---

    def connection_opened(self, listener: str) -> None:
        self._meter(self._created, listener).add()

    def connection_closed(self, listener: str, reason: str) -> None:
        """`reason`: one of a few words of ours, never a client's."""
        self._meter(self._closed, listener).add()
        self._closed_because[listener, reason] += 1

    def record_login(self, listener: str, login: Login) -> None:
        """Count the end of a TLS handshake or of a SASL login; SASL_SSL counts once, as in Kafka."""
        self._meter(self._logins[login], listener).add()

    def record_expired_session(self, listener: str) -> None:
        """Count a connection that ended because its client did not log in again in time."""
        self._expired[listener] += 1

    def record_flush(self, seconds: float, failed: bool) -> None:
        """Count a round of fsync."""
        self._flushes.add(seconds * 1000)
        self._flush_failures += failed

    def record_loop_lag(self, seconds: float) -> None:
        """Count a delay of the event loop."""
        self._lag.add(seconds * 1000)

    # --- exposition ---

    def families(self, sizes: ServerSizes) -> Iterator[Family]:
        state = _STOPPING if sizes.is_stopping else _STARTING if sizes.is_loading else _RUNNING
        yield gauge(
            SERVER, "Value", "BrokerState: 1 starting, 3 running, 6 stopping.", [(state, {"name": "BrokerState"})]
        )
        yield from self._connections(sizes)
        yield from _logs(sizes.log_sizes())
        labels = {"name": "PurgatorySize", "delayedOperation": "Fetch"}
        waiting = {**labels, "name": "NumDelayedOperations"}
        parked = sizes.parked_fetches()
        yield gauge(PURGATORY, "Value", "Fetches that wait for records.", [(parked, labels), (parked, waiting)])
        flush = [(self._flushes, {"name": "LogFlushRateAndTimeMs"})]
        yield counter(FLUSHES, "Count", "Flushes of a log to the disk.", [(self._flushes.count, flush[0][1])])
        yield from times_of(FLUSHES, "One fsync, ms", flush)
        failures = "Flushes that the disk refused; acknowledgements that waited for them were not given."
        yield counter(DISK, "flush-failures-total", failures, unlabeled(self._flush_failures))
        yield gauge(
            DISK, "failed-partitions", "Logs out of service until a restart.", unlabeled(len(sizes.failed_logs()))
        )
        # A data directory that is gone must not take the whole page with it.
        with suppress(OSError):
            found = os.statvfs(sizes.data_directory())
            free = found.f_bavail * found.f_frsize
            yield gauge(DISK, "free-bytes", "Room left where the data directory is.", unlabeled(free))
        yield gauge(LOOP, "lag-ms-max", "How late the event loop was, ms: the most.", unlabeled(self._lag.max()))
        for name, share in PERCENTILES.items():
            if name in ("50thPercentile", "99thPercentile"):
                late = unlabeled(self._lag.percentile(share))
                yield gauge(LOOP, f"lag-ms-{name}", f"How late the event loop was, ms: the {name}.", late)
        yield from self._process()

    def _connections(self, sizes: ServerSizes) -> Iterator[Family]:
        now = sizes.connections_by_listener()
        # Listeners without a connection are there with 0, so that a rate has a beginning.
        names = sorted({*now, *self._created, *self._closed})
        yield gauge(SOCKETS, "connection-count", "Clients connected now.", [(now.get(n, 0), _socket(n)) for n in names])
        for word, meters in (("creation", self._created), ("close", self._closed)):
            found = [(self._meter(meters, name), _socket(name)) for name in names]
            what = "Connections accepted" if word == "creation" else "Connections that ended"
            rates = [(meter.rate(), labels) for meter, labels in found]
            totals = [(meter.total, labels) for meter, labels in found]
            yield gauge(SOCKETS, f"connection-{word}-rate", f"{what}, per second over the last minute.", rates)
            yield counter(SOCKETS, f"connection-{word}-total", f"{what}, since the start.", totals)
        yield from self._authentication(names)
        because = [
            (count, {"listener": listener, "reason": reason})
            for (listener, reason), count in sorted(self._closed_because.items())
        ]
        yield counter(CLOSED, "closed-total", "Connections that ended, by reason.", because)

    def _authentication(self, names: list[str]) -> Iterator[Family]:
        for login, meters in self._logins.items():
            found = [(self._meter(meters, name), _socket(name)) for name in names]
            rates = [(meter.rate(), labels) for meter, labels in found]
            totals = [(meter.total, labels) for meter, labels in found]
            what = _LOGINS[login]
            yield gauge(SOCKETS, f"{login}-rate", f"{what}, per second over the last minute.", rates)
            yield counter(SOCKETS, f"{login}-total", f"{what}, since the start.", totals)
        expired = [(self._expired[name], _socket(name)) for name in names]
        what = "Connections closed because their login had ended and was not renewed."
        yield gauge(SOCKETS, "expired-connections-killed-count", what, expired)

    def _process(self) -> Iterator[Family]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu = "Processor time used, user and system."
        yield counter("process:type=cpu", "seconds_total", cpu, unlabeled(used.ru_utime + used.ru_stime))
        yield gauge("process:type=start", "time_seconds", "When it started, since the epoch.", unlabeled(self._started))
        yield gauge("process:type=resident", "memory_bytes", "Memory in use (RSS).", unlabeled(_resident_bytes(used)))
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield gauge("process:type=open", "fds", "Open file descriptors.", unlabeled(_open_files()))
        yield gauge("process:type=max", "fds", "Most file descriptors that may be open.", unlabeled(limit))

    def _meter(self, meters: dict[str, Meter], listener: str) -> Meter:
        found = meters.get(listener)
        if found is None:
            found = meters[listener] = Meter(self._clock)
        return found


def _socket(listener: str) -> dict[str, str]:
    # Kafka counts per network thread. This broker has one event loop, which goes by the number of Kafka's first thread,
    # so that dashboards that sum over `networkProcessor` work as they are.
    return {"listener": listener, "networkProcessor": "0"}


def _logs(sizes: list[LogSize]) -> Iterator[Family]:
    # A scrape of 100,000 partitions would be 40 MB of text; the totals below cover those that are left out.
    largest = sorted(sizes, key=lambda size: -size.size_bytes)[:MOST_PARTITIONS]
    largest.sort(key=lambda size: (size.topic, size.partition))
    values = [
        (value, {"name": name, "topic": size.topic, "partition": str(size.partition)})
        for name, attribute in (
            ("Size", "size_bytes"),
            ("NumLogSegments", "segments"),
            ("LogStartOffset", "log_start_offset"),
            ("LogEndOffset", "log_end_offset"),
        )
        for size in largest
        for value in [getattr(size, attribute)]
    ]
    what = f"Of open logs: bytes, segments, first and next offset; the {MOST_PARTITIONS} largest partitions."
    yield gauge(LOGS, "Value", what, values)
    yield gauge(DISK, "log-bytes", "Bytes of all open logs.", unlabeled(sum(size.size_bytes for size in sizes)))
    yield gauge(DISK, "open-partitions", "Partitions whose log is open.", unlabeled(len(sizes)))


def _resident_bytes(used: resource.struct_rusage) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # the most it ever was; better than nothing


def _open_files() -> int:
    for directory in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return sum(1 for _ in Path(directory).iterdir()) - 1
    return 0


def times_of(mbean: str, what: str, times: list[tuple[Distribution, dict[str, str]]]) -> Iterator[Family]:
    """Return Mean, Max and percentiles of each."""
    yield gauge(mbean, "Mean", f"{what}: the mean.", [(each.mean(), labels) for each, labels in times])
    yield gauge(mbean, "Max", f"{what}: the longest.", [(each.max(), labels) for each, labels in times])
    for name, share in PERCENTILES.items():
        yield gauge(mbean, name, f"{what}: the {name}.", [(each.percentile(share), labels) for each, labels in times])
