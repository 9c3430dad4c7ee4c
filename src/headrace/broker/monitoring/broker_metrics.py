"""The broker's metrics: Kafka's MBeans and attributes, as far as the thing they measure exists here.

docs/reference/metrics.md lists them.

Counters are fed by what the coordinator's runner hands out (records, events) and by the connections; sizes are looked
up when metrics are requested. The pure packages do not depend on this.

`RequestMetrics` has the time of requests: RequestQueue (its connection had others before it), Local (the broker worked
on it), Remote (it was parked, or waited for the disk), Throttle (the throttle time in the response). Total is the first
three. Most requests neither queue nor are throttled, so those zeros are counted, not measured, and booked on request.

`RequestLog` has one line per request at level debug, and a warning for a slow one. It never holds a record's content or
a secret: API, version, client id, address, times, error code. Requests that wait by their client's own wish (a fetch
for records, a join for the other members) are slow only if the broker's own work was.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from headrace.broker.coordinators.coordinator_runtime import Outcome
from headrace.broker.monitoring.server_metrics import ServerMetrics, ServerSizes, times_of
from headrace.metrics.prometheus_text import Family, Values, counter, gauge, unlabeled
from headrace.metrics.sensors import Distribution, Meter
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.fast_path import ProduceFrame
from headrace.protocol.request_codec import RequestHeader

__all__ = ["BrokerMetrics", "BrokerSizes", "RequestLog", "RequestMetrics"]

REQUESTS = "kafka.network:type=RequestMetrics"
# Bounds how stale the metrics are: the oldest uncounted request is at most 256 requests old, and every exposition
# counts them first.
MOST_UNCOUNTED = 256
_LEAST_SECONDS = 0.00005  # a shorter stay in the queue is the parsing itself


class _Times:
    """The times of one API."""

    __slots__ = ("local", "queue", "remote", "throttle", "total", "zeros")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.total = Distribution(clock)
        self.queue = Distribution(clock)
        self.local = Distribution(clock)
        self.remote = Distribution(clock)
        self.throttle = Distribution(clock)
        self.zeros = [0, 0, 0]  # of queue, remote, throttle

    def distributions(self) -> Iterator[tuple[str, Distribution]]:
        # Zeros that were only counted are booked now, all at once.
        for index, found in enumerate((self.queue, self.remote, self.throttle)):
            if self.zeros[index]:
                found.add(0.0, self.zeros[index])
                self.zeros[index] = 0
        yield "TotalTimeMs", self.total
        yield "RequestQueueTimeMs", self.queue
        yield "LocalTimeMs", self.local
        yield "RemoteTimeMs", self.remote
        yield "ThrottleTimeMs", self.throttle


class RequestMetrics:
    """Counts and times of requests by API (Kafka: RequestMetrics). Mutable; used by the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[tuple[int, int], int] = {}
        self._times: dict[int, _Times] = {}
        self._errors: dict[tuple[int, ErrorCode], int] = {}  # without NONE, which all others had
        self._success_api = (0, 0)
        self._success_seconds: list[float] = []
        self._success_queue_seconds: list[float] = []
        self._repeated_api = (0, 0)
        self._repeated = 0
        self._repeated_seconds = 0.0

    def record_response(
        self,
        api_key: int,
        api_version: int,
        response: object,
        *,
        seconds: float,
        queue_seconds: float = 0.0,
        remote_seconds: float = 0.0,
    ) -> None:
        """Count a response and its times.

        Args:
            api_key: API of the request.
            api_version: version of the request.
            response: the response; its `error_code` and `throttle_time` are counted if it has them.
            seconds: from the begin of decoding to the response, `remote_seconds` included.
            queue_seconds: in the queue of the connection, before that.
            remote_seconds: parked, for example a Fetch that waits for records.
        """
        times = self._count(api_key, api_version, 1)
        # Only the error of the whole response: Kafka also counts those of partitions (AbstractResponse.errorCounts),
        # which would cost a walk through every response.
        code = getattr(response, "error_code", ErrorCode.none)
        if code is not ErrorCode.none:
            self._errors[api_key, code] = self._errors.get((api_key, code), 0) + 1
        times.total.add((seconds + queue_seconds) * 1000)
        times.local.add((seconds - remote_seconds) * 1000)
        zeros = times.zeros
        if queue_seconds > _LEAST_SECONDS:
            times.queue.add(queue_seconds * 1000)
        else:
            zeros[0] += 1
        if remote_seconds > 0:
            times.remote.add(remote_seconds * 1000)
        else:
            zeros[1] += 1
        throttle = getattr(response, "throttle_time", None)
        if throttle:
            times.throttle.add(throttle.total_seconds() * 1000)
        else:
            zeros[2] += 1

    def record_success(self, api_key: int, api_version: int, seconds: float, queue_seconds: float) -> None:
        """Count a response without an error or a wait, as `record_response`.

        Counted some hundreds at a time, each with its own times.
        """
        if (
            api_key != self._success_api[0]
            or api_version != self._success_api[1]
            or len(self._success_seconds) >= MOST_UNCOUNTED
        ):
            self._flush_successes()
            self._success_api = api_key, api_version
        self._success_seconds.append(seconds)
        self._success_queue_seconds.append(queue_seconds)

    def record_repeats(self, api_key: int, api_version: int, count: int, seconds: float) -> None:
        """Count heartbeats answered from the memo, in `seconds` together.

        Counted some hundreds at a time: counting each would cost as much as answering it.
        """
        api = api_key, api_version
        if api != self._repeated_api or self._repeated >= MOST_UNCOUNTED:
            self._flush_repeats()
            self._repeated_api = api
        self._repeated += count
        self._repeated_seconds += seconds

    def families(self) -> Iterator[Family]:
        self._flush_repeats()
        self._flush_successes()
        times = [
            (distribution, {"name": name, "request": _name(key)})
            for key, each in sorted(self._times.items())
            for name, distribution in each.distributions()
        ]
        yield counter(
            REQUESTS,
            "Count",
            "RequestsPerSec: requests answered. ErrorsPerSec: answers by error, NONE too. …TimeMs: times taken.",
            [
                *_requests_per_version(self._requests),
                *_errors_per_code(self._errors, self._requests),
                *((found.count, labels) for found, labels in times),
            ],
        )
        what = "TotalTimeMs: from the request's last byte to its answer, ms; and its parts"
        yield from times_of(REQUESTS, what, times)

    def _flush_successes(self) -> None:
        if self._success_seconds:
            count = len(self._success_seconds)
            times = self._count(*self._success_api, count)
            times.local.add_all([seconds * 1000 for seconds in self._success_seconds])
            both = zip(self._success_seconds, self._success_queue_seconds, strict=True)
            times.total.add_all([(seconds + queued) * 1000 for seconds, queued in both])
            # A queue time below the threshold is the parsing itself; those are counted as zeros below.
            queued = [seconds * 1000 for seconds in self._success_queue_seconds if seconds > _LEAST_SECONDS]
            times.queue.add_all(queued)
            for index, zeros in enumerate((count - len(queued), count, count)):
                times.zeros[index] += zeros
            self._success_seconds, self._success_queue_seconds = [], []

    def _flush_repeats(self) -> None:
        if self._repeated:
            times = self._count(*self._repeated_api, self._repeated)
            # Heartbeats of one write share their time evenly; measuring each would cost as much as answering it.
            each_ms = self._repeated_seconds / self._repeated * 1000
            times.total.add(each_ms, self._repeated)
            times.local.add(each_ms, self._repeated)
            for index in range(3):
                times.zeros[index] += self._repeated
            self._repeated, self._repeated_seconds = 0, 0.0

    def _count(self, api_key: int, api_version: int, count: int) -> _Times:
        api = api_key, api_version
        self._requests[api] = self._requests.get(api, 0) + count
        found = self._times.get(api_key)
        if found is None:
            found = self._times[api_key] = _Times(self._clock)
        return found


def _requests_per_version(requests: Mapping[tuple[int, int], int]) -> Values:
    return [
        (count, {"name": "RequestsPerSec", "request": _name(key), "version": str(version)})
        for (key, version), count in sorted(requests.items())
    ]


def _errors_per_code(errors: Mapping[tuple[int, ErrorCode], int], requests: Mapping[tuple[int, int], int]) -> Values:
    counts = Counter(errors)
    for (key, _), count in requests.items():
        counts[key, ErrorCode.none] += count
    for (key, _), count in errors.items():
        # NONE is computed as requests minus errors: counting it would be a second dictionary update for nearly every
        # request.
        counts[key, ErrorCode.none] -= count
    found = {each: count for each, count in counts.items() if count}
    ordered = sorted(found.items(), key=lambda each: (each[0][0], each[0][1].value))
    return [
        (count, {"name": "ErrorsPerSec", "request": _name(key), "error": kafka_name(code)})
        for (key, code), count in ordered
    ]


def _name(api_key: int) -> str:
    return ApiKey(api_key).kafka_name


request_logger = logging.getLogger("headrace.broker.requests")

# Those whose answer may be held back without anything being wrong.
_MAY_WAIT = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})


class RequestLog:
    """`slow_ms` is asked for each time: the setting may change; 0 switches the warnings off."""

    def __init__(self, metrics: RequestMetrics, slow_ms: Callable[[], int]) -> None:
        self._metrics = metrics
        self._slow_ms = slow_ms
        self._each = request_logger.isEnabledFor(logging.DEBUG)

    def log_response(
        self,
        header: RequestHeader,
        response: object,
        peer: tuple[str, int],
        *,
        seconds: float,
        queue_seconds: float,
        remote_seconds: float,
    ) -> None:
        """Log a slow request, and count the response. Times as in RequestMetrics.record_response."""
        self._metrics.record_response(
            header.api_key,
            header.api_version,
            response,
            seconds=seconds,
            queue_seconds=queue_seconds,
            remote_seconds=remote_seconds,
        )
        own_seconds = seconds - remote_seconds if header.api_key in _MAY_WAIT else seconds
        slow = own_seconds > _NEVER_SLOW_SECONDS and 0 < self._slow_ms() <= own_seconds * 1000
        if not slow and not self._each:
            return
        facts = {
            "api": ApiKey(header.api_key).kafka_name,
            "version": header.api_version,
            "client_id": header.client_id,
            "correlation_id": header.correlation_id,
            "peer": f"{peer[0]}:{peer[1]}",
            "error": kafka_name(getattr(response, "error_code", ErrorCode.none)),
            "total_ms": round((seconds + queue_seconds) * 1000, 3),
            "queue_ms": round(queue_seconds * 1000, 3),
            "local_ms": round((seconds - remote_seconds) * 1000, 3),
        }
        if slow:
            request_logger.warning("A request was slow.", extra={"facts": facts})
        else:
            request_logger.debug("Answered a request.", extra={"facts": facts})

    def answered_on_fast_path(
        self, request: ProduceFrame, peer: tuple[str, int], seconds: float, queue_seconds: float
    ) -> None:
        """Count a Produce request of the fast path, without an error or a wait, as `record_response`."""
        # A debug log has a line for this request too, and a slow one its warning; both are the general way.
        if self._each or seconds > _NEVER_SLOW_SECONDS:
            self.log_response(
                request.header, None, peer, seconds=seconds, queue_seconds=queue_seconds, remote_seconds=0.0
            )
        else:
            self._metrics.record_success(ApiKey.PRODUCE, request.api_version, seconds, queue_seconds)


# The threshold is never set lower in practice, and looking it up costs more than comparing with this.
_NEVER_SLOW_SECONDS = 0.001


COORDINATOR = "kafka.server:type=group-coordinator-metrics"

GROUPS = "headrace:type=groups"
GROUP_METADATA = "kafka.coordinator.group:type=GroupMetadataManager"
CLASSIC_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
GROUP_STATES = ("Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead")
CONSUMER_STATES = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
# Kafka counts a rebalance in the heartbeat that bumps the epoch; a leave or a fence bumps it in another place, without
# the sensor.
_REMOVALS = frozenset({"MemberLeft", "MemberFenced"})


def _documented_state(state: str) -> str:
    """`not_ready` for `NotReady`: Kafka's documentation and its MBeans spell the states differently."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", state).lower()


class BrokerSizes(ServerSizes, Protocol):
    """Sizes that are looked up when metrics are requested."""

    def group_counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of groups by (type, state)."""

    def partition_counts(self) -> Mapping[str, int]:
        """Return the number of partitions of `__consumer_offsets` by state: loading, active, failed."""

    def events_waiting(self) -> int: ...


class BrokerMetrics:
    """Mutable: fed from the broker's event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters = {name: Meter(clock) for name in _METER_HELP}
        self._event_times = Distribution(clock)
        self._load_times = Distribution(clock)
        self.requests = RequestMetrics(clock)
        self.server = ServerMetrics(clock)

    # --- what happened ---

    def on_outcome(self, outcome: Outcome) -> None:
        """Count a result of the coordinator. A leave or a fence bumps the epoch too, and is no rebalance to Kafka."""
        from headrace.coordinator.records.schemas import ConsumerGroupMetadataKey, OffsetCommitKey

        # Fed from records and events, so that the pure rules need no counters.
        names = [event.name for event in outcome.events]
        self._meters["group-completed-rebalance"].add(names.count("RebalanceCompleted"))
        if _REMOVALS.isdisjoint(names):
            is_consumers = any(isinstance(record.key, ConsumerGroupMetadataKey) for record in outcome.records)
            kind = "consumer" if is_consumers else "streams"
            self._meters[f"{kind}-group-rebalance"].add(names.count("GroupEpochBumped"))
        offsets = [record for record in outcome.records if isinstance(record.key, OffsetCommitKey)]
        # Tombstones: an offset that was deleted or has expired; the event tells which.
        gone = sum(record.value is None for record in offsets)
        self._meters["offset-commit"].add(len(offsets) - gone)
        self._meters["offset-expiration" if "OffsetsExpired" in names else "offset-deletion"].add(gone)

    def event_processed(self, seconds: float) -> None:
        self._event_times.add(seconds * 1000)

    def partition_loaded(self, seconds: float) -> None:
        self._load_times.add(seconds * 1000)

    # --- exposition ---

    def families(self, sizes: BrokerSizes) -> Iterator[Family]:
        yield from self._groups(sizes)
        yield from self._coordinator(sizes)
        yield from self.requests.families()
        yield from self.server.families(sizes)

    def _groups(self, sizes: BrokerSizes) -> Iterator[Family]:
        counts = sizes.group_counts()
        protocols = [
            (sum(count for (kind, _), count in counts.items() if kind == protocol), {"protocol": protocol})
            for protocol in ("classic", "consumer", "streams")
        ]
        yield gauge(COORDINATOR, "group-count", "Groups, by protocol.", protocols)
        # Every state, also with 0: a series that appears and vanishes breaks alerts.
        states = [(counts.get(("streams", state), 0), {"state": state}) for state in GROUP_STATES]
        yield gauge(COORDINATOR, "streams-group-count", "Streams groups, by state.", states)
        consumers = [(counts.get(("consumer", state), 0), {"state": state}) for state in CONSUMER_STATES]
        yield gauge(COORDINATOR, "consumer-group-count", "Consumer groups, by state.", consumers)
        documented = [
            (counts.get((protocol, state), 0), {"protocol": protocol, "state": _documented_state(state)})
            for protocol, states_of in (("consumer", CONSUMER_STATES), ("streams", GROUP_STATES))
            for state in states_of
        ]
        yield gauge(GROUPS, "count", "Groups, by protocol and state as Kafka's documentation spells it.", documented)
        classic = [(counts.get(("classic", state), 0), {"name": f"NumGroups{state}"}) for state in CLASSIC_STATES]
        yield gauge(GROUP_METADATA, "Value", "Classic groups, by state.", classic)
        for name, meter in self._meters.items():
            what = _METER_HELP[name]
            yield gauge(
                COORDINATOR, f"{name}-rate", f"{what}, per second over the last minute.", unlabeled(meter.rate())
            )
            yield counter(COORDINATOR, f"{name}-count", f"{what}, since the start.", unlabeled(meter.total))

    def _coordinator(self, sizes: BrokerSizes) -> Iterator[Family]:
        partitions = sizes.partition_counts()
        yield gauge(
            COORDINATOR,
            "num-partitions",
            "Partitions of __consumer_offsets whose groups are here, by state.",
            [(partitions.get(state, 0), {"state": state}) for state in ("loading", "active", "failed")],
        )
        load = "Reading a partition of __consumer_offsets at start, ms"
        yield gauge(COORDINATOR, "partition-load-time-max", f"{load}: the longest.", unlabeled(self._load_times.max()))
        yield gauge(COORDINATOR, "partition-load-time-avg", f"{load}: the mean.", unlabeled(self._load_times.mean()))
        waiting = unlabeled(sizes.events_waiting())
        yield gauge(COORDINATOR, "event-queue-size", "Work of the coordinator that waits for its turn.", waiting)
        work = "Running one request in the coordinator, append included, ms"
        longest = unlabeled(self._event_times.max())
        yield gauge(COORDINATOR, "event-processing-time-ms-max", f"{work}: the longest.", longest)
        for name, share in _PERCENTILES.items():
            found = unlabeled(self._event_times.percentile(share))
            yield gauge(COORDINATOR, f"event-processing-time-ms-{name}", f"{work}: percentile {name}.", found)


_METER_HELP = {
    "offset-commit": "Offsets committed",
    "offset-deletion": "Committed offsets deleted, by request or with their topic or group",
    "offset-expiration": "Committed offsets that expired",
    "group-completed-rebalance": "Rebalances of classic groups that came to an assignment",
    "consumer-group-rebalance": "Rebalances of consumer groups: rises of a group epoch but for members that leave",
    "streams-group-rebalance": "Rebalances of streams groups: rises of a group epoch but for members that leave",
}
