"""Client quotas: who may produce, fetch, ask and change how much, and how long a client has to wait that did more.

Entities are a user, a client id, both, or an address (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612); each part may be
the default of its kind. The nearest one counts, in Kafka's order (`_ENTITIES`); clients for which it was found by the
same names share one meter: that of the user, of the client id, or of both.

Rates are Kafka's (SampledStat): `quota.window.num` samples of `quota.window.size.seconds`, the last one not over yet;
who is over waits until the mean over the windows is the quota again. Time is an argument: nothing here reads a clock.

A response over the quota is sent at once with the time the client has to wait; that long nothing more of its connection
is read (KIP-219). Unlike Kafka's, the response to a fetch that was too much has its records: they are read already, and
the wait that follows makes up for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.requests.request_context import RequestContext
from headrace.protocol.api_keys import ApiKey
from headrace.storage.directory_metadata import QuotaTable
from headrace.storage.log_directory import LogDirectory

__all__ = [
    "CLIENT",
    "CONNECTIONS",
    "CONSUME",
    "IP",
    "MUTATIONS",
    "PRODUCE",
    "REQUESTS",
    "USER",
    "Quotas",
    "Rate",
    "TokenBucket",
    "throttle_ms",
]


PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"
REQUESTS, MUTATIONS, CONNECTIONS = "request_percentage", "controller_mutation_rate", "connection_creation_rate"
USER, CLIENT, IP = "user", "client-id", "ip"
MOST_METERS = 100_000
Entity = tuple[tuple[str, str | None], ...]


class Rate:
    """Mutable: amounts of the last windows. The newest sample is under way."""

    __slots__ = ("_samples", "_size_ms", "_windows")

    def __init__(self, windows: int, size_ms: int) -> None:
        self._windows = windows
        self._size_ms = size_ms
        self._samples: list[tuple[float, float]] = []  # (began, amount), the oldest first

    def record(self, amount: float, now_ms: float) -> None:
        self._forget(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._size_ms:
            self._samples.append((now_ms, 0.0))
            del self._samples[: -self._windows]
        began, so_far = self._samples[-1]
        self._samples[-1] = began, so_far + amount

    def elapsed_ms(self, now_ms: float) -> float:
        """Return the time that the samples cover. Future windows count as full, or a burst would look like a rate."""
        # SampledStat of Kafka: a broker that has run for a second must not divide a burst by one second, but by the
        # time that all windows would take.
        elapsed = now_ms - self._samples[0][0] if self._samples else 0.0
        missing = self._windows - 1 - int(elapsed // self._size_ms)
        return elapsed + max(0, missing) * self._size_ms

    def throttle_ms(self, quota: float, now_ms: float) -> int:
        """Return the ms to wait; 0 within the quota. `quota` is per second."""
        self._forget(now_ms)
        elapsed = max(self.elapsed_ms(now_ms), 1.0)
        # The wait is so long that the mean over the windows is the quota again: with rate r over T, T·(r − q)/q more
        # without any amount (ClientQuotaManager.throttleTime).
        rate = sum(amount for _, amount in self._samples) / elapsed * 1000
        return round((rate - quota) / quota * elapsed) if rate > quota else 0

    def _forget(self, now_ms: float) -> None:
        oldest = now_ms - self._windows * self._size_ms
        while self._samples and self._samples[0][0] <= oldest:
            del self._samples[0]


class TokenBucket:
    """Mutable: credits grow with time up to a burst; they may be overdrawn once, then one waits (KIP-599)."""

    __slots__ = ("_burst_seconds", "_credits", "_since_ms")

    def __init__(self, burst_seconds: float) -> None:
        self._burst_seconds = burst_seconds
        self._credits: float | None = None
        self._since_ms = 0.0

    def throttle_ms(self, quota: float, now_ms: float) -> int:
        """Return the ms until there is credit again."""
        self._refill(quota, now_ms)
        assert self._credits is not None
        return math.ceil(-self._credits / quota * 1000) if self._credits < 0 else 0

    def take(self, amount: float, quota: float, now_ms: float) -> None:
        self._refill(quota, now_ms)
        assert self._credits is not None
        self._credits -= amount

    def _refill(self, quota: float, now_ms: float) -> None:
        burst = quota * self._burst_seconds
        # A new bucket is full, so the first burst passes.
        grown = burst if self._credits is None else self._credits + (now_ms - self._since_ms) / 1000 * quota
        self._credits, self._since_ms = min(burst, grown), now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The quota that counts, and whose meter it is read from."""

    quota: float
    meter: tuple[str, str | None, str | None]


class Quotas:
    """Mutable: the quotas of one broker and what was metered. Costs nothing while none is set (`active`)."""

    def __init__(
        self, configuration: BrokerConfiguration, directory: LogDirectory, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when other quotas are in force."""
        self._directory = directory
        self._changed = changed
        self._windows = configuration.integer("quota.window.num")
        self._size_ms = configuration.integer("quota.window.size.seconds") * 1000
        self._rates: dict[tuple[str, str | None, str | None], Rate] = {}
        self._buckets: dict[tuple[str, str | None, str | None], TokenBucket] = {}
        self._found: dict[tuple[str, str, str], _Found | None] = {}
        self._look()

    @property
    def table(self) -> QuotaTable:
        return self._directory.quotas

    def replace(self, table: QuotaTable) -> None:
        """Store other quotas. Raises StorageError, OSError; nothing has changed then."""
        if table == self.table:
            return
        self._directory.replace_quotas(table)
        self._look()
        self._changed()

    def bytes_throttle_ms(self, kind: str, user: str, client_id: str, size: int, now_ms: float) -> int:
        """Throttle time of a produce request (PRODUCE) or a fetch response (CONSUME)."""
        found = self.find(kind, user, client_id)
        return 0 if found is None else self._metered(found, size, now_ms)

    def request_throttle_ms(self, user: str, client_id: str, seconds: float, now_ms: float) -> int:
        """Throttle time for the time the broker worked on a request: percent of one thread. Never more than one
        window."""
        found = self.find(REQUESTS, user, client_id)
        return 0 if found is None else min(self._metered(found, seconds * 100, now_ms), self._size_ms)

    def mutation_throttle_ms(self, user: str, client_id: str, count: int, now_ms: float) -> int:
        """Take `count` partitions to be made or removed from the quota and return 0, or return how long to wait."""
        found = self.find(MUTATIONS, user, client_id)
        if found is None:
            return 0
        bucket = self._bucket(found)
        waiting_ms = bucket.throttle_ms(found.quota, now_ms)
        # A token bucket, not a rate (KIP-599): a single large CreateTopics is let through once, and the next one waits.
        if not waiting_ms:
            bucket.take(count, found.quota, now_ms)
        return waiting_ms

    def connection_rate(self, address: str) -> float | None:
        """Return the connections per second that this address may open."""
        # The address itself, else the default of all addresses (KIP-612).
        for name in (address, None):
            quota = self.table.get(((IP, name),), {}).get(CONNECTIONS)
            if quota is not None:
                return quota
        return None

    def find(self, kind: str, user: str, client_id: str) -> _Found | None:
        key = kind, user, client_id
        if key not in self._found:
            # Clients choose their client ids: the memory of look-ups is bounded.
            if len(self._found) >= MOST_METERS:
                self._found.clear()
            self._found[key] = self._look_up(*key)
        return self._found[key]

    def _look_up(self, kind: str, user: str, client_id: str) -> _Found | None:
        # The first that is set counts, even if a less specific one is lower.
        for users, clients in _ENTITIES:
            entity: list[tuple[str, str | None]] = []
            if clients:
                entity.append((CLIENT, client_id if clients == "named" else None))
            if users:
                entity.append((USER, user if users == "named" else None))
            quota = self.table.get(tuple(entity), {}).get(kind)
            if quota is not None:
                return _Found(quota=quota, meter=(kind, user if users else None, client_id if clients else None))
        return None

    def _metered(self, found: _Found, amount: float, now_ms: float) -> int:
        rate = self._rates.get(found.meter)
        if rate is None:
            if len(self._rates) >= MOST_METERS:
                self._rates.clear()
            rate = self._rates[found.meter] = Rate(self._windows, self._size_ms)
        rate.record(amount, now_ms)
        return rate.throttle_ms(found.quota, now_ms)

    def _bucket(self, found: _Found) -> TokenBucket:
        bucket = self._buckets.get(found.meter)
        if bucket is None:
            if len(self._buckets) >= MOST_METERS:
                self._buckets.clear()
            bucket = self._buckets[found.meter] = TokenBucket(self._windows * self._size_ms / 1000)
        return bucket

    def _look(self) -> None:
        kinds = frozenset(kind for values in self.table.values() for kind in values)
        # Asked for by every request: three flags keep the cost of quotas at one attribute look-up while none is set.
        self.active = bool(kinds - {CONNECTIONS})
        self.meters_requests = REQUESTS in kinds
        self.meters_connections = CONNECTIONS in kinds
        self._found.clear()


# (user, client id), the nearest first: org.apache.kafka.server.quota's DefaultQuotaCallback.
_ENTITIES = (
    ("named", "named"),
    ("named", "default"),
    ("named", ""),
    ("default", "named"),
    ("default", "default"),
    ("default", ""),
    ("", "named"),
    ("", "default"),
)


def throttle_ms(
    quotas: Quotas,
    context: RequestContext,
    api_key: int,
    *,
    request_bytes: int,
    answer_bytes: int,
    seconds: float,
    now_ms: float,
) -> int:
    """Return how long a client is throttled after a response, in ms: the longer of the byte and the request-time quota.

    Args:
        quotas: quotas of users and clients.
        context: names the user and the client id.
        api_key: Produce and Fetch have byte quotas; all APIs have a quota of request time.
        request_bytes: size of the request.
        answer_bytes: size of the response.
        seconds: time that the request took.
        now_ms: time of a steady clock.
    """
    user, client_id = context.principal.name, context.client_id
    waiting_ms = 0
    if api_key == ApiKey.PRODUCE:
        waiting_ms = quotas.bytes_throttle_ms(PRODUCE, user, client_id, request_bytes, now_ms)
    elif api_key == ApiKey.FETCH:
        waiting_ms = quotas.bytes_throttle_ms(CONSUME, user, client_id, answer_bytes, now_ms)
    return max(waiting_ms, quotas.request_throttle_ms(user, client_id, seconds, now_ms))
