"""The broker's metrics: Kafka's MBeans and attributes, as far as the thing they measure exists here.

docs/reference/metrics.md lists them.

Counters are fed by what the coordinator's runner hands out (records, events) and by the connections; sizes are looked
up when metrics are requested. The pure packages do not depend on this.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from headrace.broker.coordinators.coordinator_runtime import Outcome
from headrace.broker.monitoring.request_metrics import RequestMetrics
from headrace.broker.monitoring.server_metrics import ServerMetrics, ServerSizes
from headrace.metrics.prometheus_text import Family, counter, gauge, unlabeled
from headrace.metrics.sensors import Distribution, Meter

__all__ = ["BrokerMetrics", "BrokerSizes"]

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
