"""The broker's metrics: Kafka's MBeans and attributes, as far as the thing they measure exists here. docs/metrics.md.

Counters are fed by what the coordinator's runner hands out (records, events) and by the connections; sizes are looked
up when somebody asks. The pure rooms know nothing of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from penstock.broker.metric_sensors import Distribution, Meter
from penstock.broker.prometheus_text import Family, Sample
from penstock.broker.shard_runner import Outcome
from penstock.coordinator.records.schemas import OffsetCommitKey
from penstock.protocol.api_keys import ApiKey
from penstock.protocol.error_codes import ErrorCode, kafka_name

__all__ = ["BrokerMetrics", "BrokerSizes"]

_Values: TypeAlias = Sequence[tuple[float, Mapping[str, str]]]

COORDINATOR = "kafka.server:type=group-coordinator-metrics"
REQUESTS = "kafka.network:type=RequestMetrics"
SOCKETS = "kafka.server:type=socket-server-metrics"

GROUP_STATES = ("Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead")
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_REQUEST_PERCENTILES = {
    "50thPercentile": 0.5,
    "75thPercentile": 0.75,
    "95thPercentile": 0.95,
    "98thPercentile": 0.98,
    "99thPercentile": 0.99,
    "999thPercentile": 0.999,
}
MOST_UNCOUNTED = 256
_REMOVALS = frozenset({"MemberLeft", "MemberFenced"})


class BrokerSizes(Protocol):
    """What is looked up when metrics are asked for."""

    def group_counts(self) -> Mapping[tuple[str, str], int]:
        """(type, state) → groups."""

    def partition_counts(self) -> Mapping[str, int]:
        """loading, active, failed → partitions of `__consumer_offsets`."""

    def events_waiting(self) -> int: ...
    def connection_count(self) -> int: ...


class BrokerMetrics:
    """Mutable: fed from the broker's event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters = {
            name: Meter(clock)
            for name in ("offset-commit", "offset-deletion", "offset-expiration", "streams-group-rebalance")
        }
        self._event_times = Distribution(clock)
        self._load_times = Distribution(clock)
        self._requests: dict[tuple[int, int], int] = {}
        self._request_times: dict[int, Distribution] = {}
        self._errors: dict[tuple[int, ErrorCode], int] = {}
        self._repeated_api = (0, 0)
        self._repeated = 0
        self._repeated_seconds = 0.0

    # --- what happened ---

    def took_effect(self, outcome: Outcome) -> None:
        """A result of the coordinator. A leave or a fence bumps the epoch too, and is no rebalance to Kafka."""
        names = [event.name for event in outcome.events]
        if _REMOVALS.isdisjoint(names):
            self._meters["streams-group-rebalance"].add(names.count("GroupEpochBumped"))
        offsets = [record for record in outcome.records if isinstance(record.key, OffsetCommitKey)]
        gone = sum(record.value is None for record in offsets)
        self._meters["offset-commit"].add(len(offsets) - gone)
        self._meters["offset-expiration" if "OffsetsExpired" in names else "offset-deletion"].add(gone)

    def event_processed(self, seconds: float) -> None:
        self._event_times.add(seconds * 1000)

    def partition_loaded(self, seconds: float) -> None:
        self._load_times.add(seconds * 1000)

    def request_answered(self, api_key: int, api_version: int, response: object, seconds: float) -> None:
        self._count(api_key, api_version, seconds, 1, getattr(response, "error_code", ErrorCode.none))

    def answers_repeated(self, api_key: int, api_version: int, count: int, seconds: float) -> None:
        """Heartbeats answered from the memo, in `seconds` together. Counted some hundreds at a time: counting each
        would cost as much as answering it."""
        api = api_key, api_version
        if api != self._repeated_api or self._repeated >= MOST_UNCOUNTED:
            self._count_repeated()
            self._repeated_api = api
        self._repeated += count
        self._repeated_seconds += seconds

    def _count_repeated(self) -> None:
        if self._repeated:
            seconds = self._repeated_seconds / self._repeated
            self._count(*self._repeated_api, seconds, self._repeated, ErrorCode.none)
            self._repeated, self._repeated_seconds = 0, 0.0

    def _count(self, api_key: int, api_version: int, seconds: float, times: int, code: ErrorCode) -> None:
        self._requests[api_key, api_version] = self._requests.get((api_key, api_version), 0) + times
        self._errors[api_key, code] = self._errors.get((api_key, code), 0) + times
        found = self._request_times.get(api_key)
        if found is None:
            found = self._request_times[api_key] = Distribution(self._clock)
        found.add(seconds * 1000, times)

    # --- what is told ---

    def families(self, sizes: BrokerSizes) -> Iterator[Family]:
        self._count_repeated()
        yield from self._groups(sizes)
        yield from self._coordinator(sizes)
        yield from self._requests_by_api()
        yield _gauge(
            SOCKETS,
            "connection-count",
            "Clients connected now.",
            [(sizes.connection_count(), {"listener": "PLAINTEXT", "networkProcessor": "0"})],
        )

    def _groups(self, sizes: BrokerSizes) -> Iterator[Family]:
        counts = sizes.group_counts()
        protocols = [
            (sum(count for (kind, _), count in counts.items() if kind == protocol), {"protocol": protocol})
            for protocol in ("classic", "streams")
        ]
        yield _gauge(COORDINATOR, "group-count", "Groups, by protocol.", protocols)
        states = [(counts.get(("streams", state), 0), {"state": state}) for state in GROUP_STATES]
        yield _gauge(COORDINATOR, "streams-group-count", "Streams groups, by state.", states)
        for name, meter in self._meters.items():
            what = _METER_HELP[name]
            yield _gauge(COORDINATOR, f"{name}-rate", f"{what}, per second over the last minute.", _one(meter.rate()))
            yield _counter(COORDINATOR, f"{name}-count", f"{what}, since the start.", _one(meter.total))

    def _coordinator(self, sizes: BrokerSizes) -> Iterator[Family]:
        partitions = sizes.partition_counts()
        yield _gauge(
            COORDINATOR,
            "num-partitions",
            "Partitions of __consumer_offsets whose groups are here, by state.",
            [(partitions.get(state, 0), {"state": state}) for state in ("loading", "active", "failed")],
        )
        load = "Reading a partition of __consumer_offsets at start, ms"
        yield _gauge(COORDINATOR, "partition-load-time-max", f"{load}: the longest.", _one(self._load_times.max()))
        yield _gauge(COORDINATOR, "partition-load-time-avg", f"{load}: the mean.", _one(self._load_times.mean()))
        waiting = _one(sizes.events_waiting())
        yield _gauge(COORDINATOR, "event-queue-size", "Work of the coordinator that waits for its turn.", waiting)
        work = "Running one request in the coordinator, append included, ms"
        longest = _one(self._event_times.max())
        yield _gauge(COORDINATOR, "event-processing-time-ms-max", f"{work}: the longest.", longest)
        for name, share in _PERCENTILES.items():
            found = _one(self._event_times.percentile(share))
            yield _gauge(COORDINATOR, f"event-processing-time-ms-{name}", f"{work}: percentile {name}.", found)

    def _requests_by_api(self) -> Iterator[Family]:
        yield _counter(
            REQUESTS,
            "Count",
            "RequestsPerSec: requests answered. ErrorsPerSec: answers by error, NONE too. TotalTimeMs: times taken.",
            [
                *_requests_per_version(self._requests),
                *(
                    (count, {"name": "ErrorsPerSec", "request": _name(key), "error": kafka_name(code)})
                    for (key, code), count in sorted(
                        self._errors.items(), key=lambda each: (each[0][0], each[0][1].value)
                    )
                ),
                *((found.count, _time_labels(key)) for key, found in sorted(self._request_times.items())),
            ],
        )
        times = sorted(self._request_times.items())
        what = "TotalTimeMs: from the request's last byte to its answer, ms"
        yield _gauge(REQUESTS, "Mean", f"{what}: the mean.", [(each.mean(), _time_labels(key)) for key, each in times])
        yield _gauge(REQUESTS, "Max", f"{what}: the longest.", [(each.max(), _time_labels(key)) for key, each in times])
        for name, share in _REQUEST_PERCENTILES.items():
            found = [(each.percentile(share), _time_labels(key)) for key, each in times]
            yield _gauge(REQUESTS, name, f"{what}: the {name}.", found)


_METER_HELP = {
    "offset-commit": "Offsets committed",
    "offset-deletion": "Committed offsets deleted, by request or with their topic or group",
    "offset-expiration": "Committed offsets that expired",
    "streams-group-rebalance": "Rebalances of streams groups: rises of a group epoch but for members that leave",
}


def _requests_per_version(requests: Mapping[tuple[int, int], int]) -> Iterator[tuple[float, dict[str, str]]]:
    for (key, version), count in sorted(requests.items()):
        yield count, {"name": "RequestsPerSec", "request": _name(key), "version": str(version)}


def _time_labels(api_key: int) -> dict[str, str]:
    return {"name": "TotalTimeMs", "request": _name(api_key)}


def _name(api_key: int) -> str:
    return ApiKey(api_key).kafka_name


def _one(value: float) -> _Values:
    return [(value, {})]


def _gauge(mbean: str, attribute: str, text: str, values: _Values) -> Family:
    return _family("gauge", mbean, attribute, text, values)


def _counter(mbean: str, attribute: str, text: str, values: _Values) -> Family:
    return _family("counter", mbean, attribute, text, values)


def _family(kind: Literal["counter", "gauge"], mbean: str, attribute: str, text: str, values: _Values) -> Family:
    samples = tuple(Sample(value=float(value), labels=labels) for value, labels in values)
    return Family(mbean=mbean, attribute=attribute, kind=kind, help=text, samples=samples)
