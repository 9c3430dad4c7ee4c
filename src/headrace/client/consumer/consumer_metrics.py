"""Consumer metrics with the names, windows and meanings of Kafka's Java consumer (docs/reference/consumer-metrics.md).

Polls, commits and the membership's thread report events; the metrics are read as families for Prometheus or as a plain
dictionary. Averages and maxima cover the last 30 to 60 s, as Kafka's do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.membership.group_member import GroupMemberState
from headrace.metrics.prometheus_text import Family, Values, counter, gauge
from headrace.metrics.sensors import Distribution, Meter

__all__ = ["COORDINATOR", "FETCHES", "POLLS", "ConsumerMetrics"]

COORDINATOR: Final = "kafka.consumer:type=consumer-coordinator-metrics"
FETCHES: Final = "kafka.consumer:type=consumer-fetch-manager-metrics"
POLLS: Final = "kafka.consumer:type=consumer-metrics"
SECONDS_PER_HOUR: Final = 3600
_S = GroupMemberState
_AT_REST: Final = frozenset({_S.UNSUBSCRIBED, _S.STABLE, _S.LEAVING, _S.FATAL})


class ConsumerMetrics:
    """Metrics of one consumer. Mutable; usable from any thread."""

    def __init__(self, client_id: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        client_id: Label of all metrics.
        clock: Returns monotonic seconds.
        """
        self._client_id = client_id
        self._clock = clock
        self._lock = threading.Lock()
        self._state = _S.UNSUBSCRIBED
        self._rebalance_began: float | None = None
        self._last_rebalance: float | None = None
        self._rebalances, self._rebalance_ms = Meter(clock), Distribution(clock)
        self._rebalance_total_ms = 0.0
        self._failed_rebalances = Meter(clock)
        self._heartbeats, self._heartbeat_ms = Meter(clock), Distribution(clock)
        self._last_heartbeat: float | None = None
        self._commits, self._commit_ms = Meter(clock), Distribution(clock)
        self._callbacks = {kind: Distribution(clock) for kind in ("revoked", "assigned", "lost")}
        self._last_poll: float | None = None
        self._between_polls_s = 0.0
        self._between_ms, self._idle = Distribution(clock), Distribution(clock)
        self._records = Meter(clock)

    # Events.

    def member_is(self, state: GroupMemberState) -> None:
        """Report the state of the membership.

        A rebalance begins when the member leaves a resting state and ends when it is stable again, including the
        application's part; one that ends otherwise failed.
        """
        with self._lock:
            before, self._state = self._state, state
            # Reported after each step of the runner, which most often changes nothing.
            if state is before:
                return
            now = self._clock()
            under_way = self._rebalance_began is not None
            if state is _S.STABLE:
                if self._rebalance_began is not None:
                    took_ms = (now - self._rebalance_began) * 1000
                    self._rebalance_ms.add(took_ms)
                    self._rebalance_total_ms += took_ms
                    self._rebalances.add()
                    self._last_rebalance = now
                self._rebalance_began = None
            # A loss begins the next rebalance at once, because the member joins again; a fatal error begins nothing.
            elif state in {_S.LOST, _S.FATAL}:
                if under_way:
                    self._failed_rebalances.add()
                self._rebalance_began = now if state is _S.LOST else None
            elif state in _AT_REST:
                self._rebalance_began = None
            elif not under_way:
                self._rebalance_began = now

    def heartbeat_answered(self, took_ms: float) -> None:
        """Report the latency of a heartbeat."""
        with self._lock:
            self._heartbeats.add()
            self._heartbeat_ms.add(took_ms)
            self._last_heartbeat = self._clock()

    def record_commit(self, took_ms: float) -> None:
        """Report the latency of a commit."""
        with self._lock:
            self._commits.add()
            self._commit_ms.add(took_ms)

    def record_callback(self, name: str, took_ms: float) -> None:
        """Report the time of a listener call; `name` is on_revoked, on_assigned or on_lost."""
        with self._lock:
            self._callbacks[name.removeprefix("on_")].add(took_ms)

    def poll_begins(self) -> None:
        """Report the begin of a poll."""
        with self._lock:
            now = self._clock()
            # The first poll has none before it.
            self._between_polls_s = 0.0 if self._last_poll is None else now - self._last_poll
            self._last_poll = now
            self._between_ms.add(self._between_polls_s * 1000)

    def records_returned(self, count: int) -> None:
        """Report the records of a poll."""
        with self._lock:
            self._records.add(count)

    def poll_ended(self) -> None:
        """Report the end of a poll."""
        with self._lock:
            took_s = 0.0 if self._last_poll is None else self._clock() - self._last_poll
            # As Kafka's poll-idle-ratio-avg (KIP-517): the share of time in `poll`, measured from one poll's start to
            # the next.
            whole_s = took_s + self._between_polls_s
            self._idle.add(took_s / whole_s if whole_s else 1.0)

    # Reading.

    def families(self, lags: Mapping[TopicPartition, int], assigned: int) -> Iterator[Family]:
        """Yield all families; `lags` holds partitions whose end is known."""
        with self._lock:
            yield from self._coordinator(assigned)
            yield from self._polls()
            yield from self._fetches(lags)

    def values(self) -> dict[str, float]:
        """Return name → value, without labels and without lags."""
        families = self.families({}, 0)
        return {each.attribute: each.samples[0].value for each in families if each.samples}

    def _coordinator(self, assigned: int) -> Iterator[Family]:
        def family(attribute: str, text: str, value: float, *, is_counter: bool = False) -> Family:
            return (counter if is_counter else gauge)(COORDINATOR, attribute, text, self._by_client(value))

        rebalance = "A rebalance, from leaving rest until the application took it over, ms"
        yield family("rebalance-latency-avg", f"{rebalance}: the mean.", self._rebalance_ms.mean())
        yield family("rebalance-latency-max", f"{rebalance}: the longest.", self._rebalance_ms.max())
        yield family("rebalance-latency-total", f"{rebalance}: the sum.", self._rebalance_total_ms, is_counter=True)
        yield family("rebalance-total", "Rebalances that came to their end.", self._rebalances.total, is_counter=True)
        hourly = self._rebalances.rate() * SECONDS_PER_HOUR
        yield family("rebalance-rate-per-hour", "Rebalances per hour, at the rate of the last minute.", hourly)
        failed = self._failed_rebalances
        yield family("failed-rebalance-total", "Rebalances that ended otherwise.", failed.total, is_counter=True)
        hourly = failed.rate() * SECONDS_PER_HOUR
        yield family("failed-rebalance-rate-per-hour", "The same per hour.", hourly)
        since = self._since(self._last_rebalance)
        yield family("last-rebalance-seconds-ago", "Since the last rebalance ended; -1: there was none.", since)
        text = "From sending a heartbeat to its answer, ms: the longest."
        yield family("heartbeat-response-time-max", text, self._heartbeat_ms.max())
        yield family("heartbeat-rate", "Heartbeats per second.", self._heartbeats.rate())
        yield family("heartbeat-total", "Heartbeats that were answered.", self._heartbeats.total, is_counter=True)
        since = self._since(self._last_heartbeat)
        yield family("last-heartbeat-seconds-ago", "Since the last answered heartbeat; -1: there was none.", since)
        yield family("commit-latency-avg", "An offset commit, ms: the mean.", self._commit_ms.mean())
        yield family("commit-latency-max", "An offset commit, ms: the longest.", self._commit_ms.max())
        yield family("commit-rate", "Offset commits per second.", self._commits.rate())
        yield family("commit-total", "Offset commits.", self._commits.total, is_counter=True)
        yield family("assigned-partitions", "Partitions of this consumer.", assigned)
        for kind, times in self._callbacks.items():
            text = f"The rebalance listener's on_{kind}, ms"
            yield family(f"partition-{kind}-latency-avg", f"{text}: the mean.", times.mean())
            yield family(f"partition-{kind}-latency-max", f"{text}: the longest.", times.max())

    def _polls(self) -> Iterator[Family]:
        text = "The share of time spent in poll rather than between polls: near 0, the application is too slow."
        yield gauge(POLLS, "poll-idle-ratio-avg", text, self._by_client(self._idle.mean()))
        text = "From the beginning of a poll to that of the next, ms"
        yield gauge(POLLS, "time-between-poll-avg", f"{text}: the mean.", self._by_client(self._between_ms.mean()))
        yield gauge(POLLS, "time-between-poll-max", f"{text}: the longest.", self._by_client(self._between_ms.max()))
        since = self._by_client(self._since(self._last_poll))
        yield gauge(POLLS, "last-poll-seconds-ago", "Since the last poll began; -1: there was none.", since)

    def _fetches(self, lags: Mapping[TopicPartition, int]) -> Iterator[Family]:
        consumed = "Records that polls returned"
        yield counter(FETCHES, "records-consumed-total", f"{consumed}.", self._by_client(self._records.total))
        yield gauge(FETCHES, "records-consumed-rate", f"{consumed}, per second.", self._by_client(self._records.rate()))
        longest = [(float(max(lags.values())), {"client_id": self._client_id})] if lags else []
        yield gauge(FETCHES, "records-lag-max", "The greatest lag of a partition, as last seen.", longest)
        by_partition = [
            (float(lag), {"client_id": self._client_id, "topic": each.topic, "partition": str(each.partition)})
            for each, lag in sorted(lags.items())
        ]
        yield gauge(FETCHES, "records-lag", "Records behind the end of a partition, as last seen.", by_partition)

    def _by_client(self, value: float) -> Values:
        return [(value, {"client_id": self._client_id})]

    def _since(self, moment: float | None) -> float:
        return -1.0 if moment is None else self._clock() - moment
