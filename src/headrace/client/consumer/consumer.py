"""`Consumer`: subscribe or assign, poll Arrow batches or records, commit. Kafka's semantics under Kafka's names.

Methods behave as those of Kafka's Java consumer unless their documentation says otherwise. A consumer belongs to one
thread at a time; heartbeats have a thread of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace.assignors.assignor import Assignor
from headrace.checked_api import checked_api
from headrace.client.admin import Admin
from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.commits import CommitCallback, Offsets
from headrace.client.consumer.consumer_core import ConsumerCore, DrivenConsumer, Topics
from headrace.client.consumer.consumer_settings import ConsumerConfiguration
from headrace.client.consumer.consumer_types import ConsumerRecord, RebalanceListener, TopicPartition
from headrace.client.consumer.record_collector import take_records
from headrace.client.security import TokenProvider
from headrace.errors import ConfigError
from headrace.metrics.prometheus_text import Family, prometheus_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Consumer"]

Partitions = Iterable[tuple[str, int]]
# Kafka's `ConsumerUtils.DEFAULT_CLOSE_TIMEOUT_MS`.
CLOSE_TIMEOUT_S = 30.0


@checked_api()
class Consumer:
    """Kafka consumer that returns Arrow batches or plain records.

    A context manager that leaves the group at its end. Iterating yields Arrow batches without end.

    Example:
        `with Consumer("orders", group_id="billing") as consumer: …`
    """

    def __init__(
        self,
        topics: Topics | None = None,
        *,
        group_id: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        group_protocol: Literal["consumer", "classic"] | None = None,
        group_instance_id: str | None = None,
        auto_offset_reset: str | None = None,
        enable_auto_commit: bool | None = None,
        isolation_level: Literal["read_committed", "read_uncommitted"] | None = None,
        max_poll_records: int | None = None,
        max_poll_interval_ms: int | None = None,
        partition_assignment_strategy: Assignor | str | Sequence[Assignor | str] | None = None,
        listener: RebalanceListener | None = None,
        listener_timeout_ms: int | None = None,
        token_provider: TokenProvider | None = None,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
    ) -> None:
        """Create a consumer; it connects with the first call that needs a broker.

        Args:
            topics: Subscribed at once; requires `group_id`. See `subscribe`.
            group_id: The group; needed to subscribe and to commit.
            bootstrap_servers: `host:port,host:port`, or a sequence.
            group_protocol: `consumer` (KIP-848) or `classic`.
            group_instance_id: Makes this a static member: a restart within the session moves no partition.
            auto_offset_reset: `earliest`, `latest`, `none` or `by_duration:PT1H`; used without a committed offset.
            enable_auto_commit: Whether polls commit what earlier polls returned.
            isolation_level: Whether records of open and aborted transactions are returned.
            max_poll_records: The most records of one poll.
            max_poll_interval_ms: The longest time between two polls before the member leaves its group.
            partition_assignment_strategy: Assignors of a classic group, by preference.
            listener: Called for rebalances, on the thread that polls.
            listener_timeout_ms: The longest time of one listener call; `max.poll.interval.ms` if not given.
            token_provider: For `sasl.mechanism=OAUTHBEARER`, called whenever a connection logs in.
            config: Any other setting by Kafka's name, as a mapping or a properties file.

        Raises:
            ConfigError: `unknown-setting` or `bad-value`.
        """
        configuration = ConsumerConfiguration(
            config,
            group_id=group_id,
            bootstrap_servers=bootstrap_servers,
            group_protocol=group_protocol,
            group_instance_id=group_instance_id,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            isolation_level=isolation_level,
            max_poll_records=max_poll_records,
            max_poll_interval_ms=max_poll_interval_ms,
        )
        self._isolation_level = configuration["isolation.level"]
        self._core = ConsumerCore(
            configuration,
            listener=listener or RebalanceListener(),
            listener_timeout_ms=listener_timeout_ms,
            strategy=partition_assignment_strategy,
            security=configuration.security_with(token_provider),
        )
        if topics is not None:
            self.subscribe(topics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Subscribing and assigning.

    def subscribe(self, topics: Topics) -> None:
        """Subscribe to topics, replacing an earlier subscription; the next polls carry out the rebalance.

        Args:
            topics: A name, names, a Python pattern (resolved by the client, matching the whole name), or a
                `SubscriptionPattern` (RE2, resolved by the coordinator).
        """
        self._core.subscribe(topics)

    def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions, without a group's assignment."""
        self._core.assign(partitions)

    def unsubscribe(self) -> None:
        """Leave the group, or drop the assigned partitions."""
        self._core.unsubscribe()

    def assignment(self) -> tuple[TopicPartition, ...]:
        """Return the assigned partitions, as of the last poll."""
        return self._core.positions.assigned

    # Reading.

    def poll(self, timeout: float = 1.0) -> pa.RecordBatch:
        """Return the next rows of all assigned partitions.

        Args:
            timeout: Seconds to wait for rows.

        Returns:
            At most `max.poll.records` rows, maybe none, with the columns key, value, headers, topic, partition, offset,
                timestamp, timestamp_type.

        Raises:
            MaxPollExceeded: The last poll was longer ago than `max.poll.interval.ms`, and the group removed the member.
            BrokerError: A broker refused a request.
            CannotConnect: No broker is reachable.
            Exception: Whatever the rebalance listener raised.
        """
        # Imported here: `poll_records` needs neither pyarrow nor numba.
        from headrace.client.consumer.arrow_collector import take_batch

        batch = self._core.poll(
            timeout, lambda most: take_batch(self._core.positions, most), lambda rows: rows.num_rows == 0
        )
        self._core.metrics.records_returned(batch.num_rows)
        return batch

    def poll_records(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the next records like `poll`, as plain Python values; needs no pyarrow.

        Args:
            timeout: Seconds to wait for records.
            max_records: The most records, within `max.poll.records`.
        """
        records = self._core.poll(
            timeout,
            # Within `max.poll.records`, which bounds the time between polls.
            lambda most: take_records(self._core.positions, most if max_records is None else min(most, max_records)),
            lambda rows: not rows,
        )
        self._core.metrics.records_returned(len(records))
        return records

    def records(self, timeout: float | None = None) -> Iterator[ConsumerRecord]:
        """Yield records one after the other, until none came for `timeout` seconds (None: without end).

        Records that were fetched from here but not yet looked at count as processed with the next poll. A loop that
        ends early should commit the offsets it means.
        """
        while True:
            found = self.poll_records(1.0 if timeout is None else timeout)
            if not found and timeout is not None:
                return
            yield from found

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            batch = self.poll()
            if batch.num_rows:
                yield batch

    def wakeup(self) -> None:
        """Make the poll that waits, or the next one, return at once with what there is. From any thread."""
        self._core.wakeup()

    # Positions.

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at this offset with the next poll.

        Raises:
            ConfigError: The partition is not assigned, or the offset is negative.
        """
        if offset < 0:
            raise ConfigError(
                "bad-value",
                f"Invalid offset {offset}: expected 0 or more.",
                "Use an offset of 0 or more, or seek_to_beginning.",
            )
        for each in self._assigned_or_all([partition]):
            self._core.positions[each].seek(offset)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Continue at the first record that is still there, of these partitions or all; looked up by the next poll."""
        for each in self._assigned_or_all(partitions):
            self._core.positions[each].begin_at("earliest")

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Continue behind the last record (with read_committed: the last decided one) of these partitions or all."""
        for each in self._assigned_or_all(partitions):
            self._core.positions[each].begin_at("latest")

    def seek_to_time(self, timestamp_ms: int, partitions: Partitions | None = None) -> None:
        """Continue at the first record at or after this time, or at the end, for these partitions or all."""
        for each in self._assigned_or_all(partitions):
            self._core.positions[each].begin_at(timestamp_ms)

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record that a poll returns."""
        (each,) = self._assigned_or_all([partition])
        self._core.need_positions([each])
        position = self._core.positions[each].position
        assert position is not None
        return position

    def pause(self, partitions: Partitions) -> None:
        """Return no records of these partitions until `resume`; the member stays in its group."""
        for each in self._assigned_or_all(partitions):
            self._core.positions[each].paused = True

    def resume(self, partitions: Partitions) -> None:
        """Return records of these partitions again, from where they were."""
        for each in self._assigned_or_all(partitions):
            self._core.positions[each].paused = False

    def paused(self) -> tuple[TopicPartition, ...]:
        """Return the paused partitions."""
        return tuple(sorted(each for each, state in self._core.positions.items() if state.paused))

    # Committing.

    def commit(
        self, offsets: Offsets | None = None, *, wait: bool = True, callback: CommitCallback | None = None
    ) -> None:
        """Commit offsets.

        Args:
            offsets: The next offset to read of each partition, plain or as `CommittedOffset`; None: the positions
                behind what polls returned.
            wait: False commits in the background and in order.
            callback: Called as `callback(offsets, error)` after a background commit; without one, errors are logged.

        Raises:
            Fenced: The partitions belong to other members by now.
            BrokerError: The coordinator refused the commit.
            CannotConnect: No broker is reachable.
        """
        self._core.need_group("commit")
        # Positions, not last records: markers and compacted offsets behind the last record count as read.
        given: Offsets = self._core.positions.consumed() if offsets is None else dict(offsets)  # type: ignore[assignment]
        if not given:
            return
        if wait:
            self._core.commits.commit(given)
        else:
            self._core.commits.commit_later(given, callback)

    def committed(self, partitions: Partitions | None = None) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offset with its metadata, or None, of these partitions or of the assigned ones."""
        self._core.need_group("committed")
        wanted = self.assignment() if partitions is None else tuple(TopicPartition(*each) for each in partitions)
        # KIP-447: a reader of committed records must not start before the offsets of a transaction that is being
        # decided.
        found = self._core.commits.committed(wanted, require_stable=self._isolation_level == "read_committed")
        return {each: found[each] if found[each].offset >= 0 else None for each in wanted}

    def lag(self, partitions: Partitions | None = None) -> dict[TopicPartition, int]:
        """Return the offsets between position and end, as the last Fetch or a ListOffsets request saw the end."""
        wanted = self._assigned_or_all(partitions)
        self._core.need_positions(wanted)
        states = {each: self._core.positions[each] for each in wanted}
        # Every Fetch response contains the end, so a request is needed only for partitions that were not fetched yet.
        unknown = [each for each, state in states.items() if state.end_offset is None]
        ends = {each: state.end_offset for each, state in states.items()}
        if unknown:
            ends |= self.end_offsets(unknown)
        return {each: max(0, (ends[each] or 0) - (states[each].position or 0)) for each in wanted}

    # Offsets and partitions of topics.

    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that is still there."""
        return self._list_offsets(dict.fromkeys(partitions, "earliest"))

    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the offset behind the last record, or, with read_committed, behind the last decided one."""
        return self._list_offsets(dict.fromkeys(partitions, "latest"))

    def offsets_for_times(self, times_ms: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each time in milliseconds; None if no record is that late."""
        found = self._list_offsets(times_ms)
        # -1: no record is that late (Kafka's `offsetsForTimes` has null).
        return {each: offset if offset >= 0 else None for each, offset in found.items()}

    def partitions_for(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return all partitions of a topic.

        Raises:
            BrokerError: `topic-missing`.
        """
        known = self._core.control.known_topics([topic]).topics[topic].partitions
        return tuple(TopicPartition(topic, number) for number in sorted(known))

    # The group.

    @property
    def group_id(self) -> str:
        """The group's name; empty without a group."""
        return self._core.group_id

    @property
    def member_id(self) -> str:
        """The member id; empty before the coordinator assigned one."""
        return self._core.identity.member_id

    @property
    def generation(self) -> int:
        """The generation of a classic group, the member epoch of a consumer group; -1 outside of one."""
        return self._core.identity.generation

    def metrics(self) -> dict[str, Any]:
        """Return metrics by Kafka's names (docs/reference/consumer-metrics.md)."""
        states = self._core.positions.snapshot()
        # From any thread: `snapshot` copies, the poll may change the assignment meanwhile.
        lags = list(self._known_lags().values())
        return self._core.metrics.values() | {
            "polls": self._core.polls,
            "assigned-partitions": len(states),
            "records-lag-max": max(lags, default=None),
        }

    def drive(self, around: Callable[[RebalanceListener], RebalanceListener]) -> DrivenConsumer:
        """Hand this consumer to a driver such as `ParallelConsumer`, which commits by itself: automatic commits end.

        Args:
            around: Receives the listener and returns the one to call instead.
        """
        return self._core.drive(around)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition that has a position, without a request."""
        return self._core.positions.consumed()

    def metric_families(self) -> list[Family]:
        """Return the metrics as families, with the lag of each partition, for `prometheus_text`."""
        return list(self._core.metrics.families(self._known_lags(), len(self._core.positions)))

    def prometheus(self) -> str:
        """Return the metrics as a page in Prometheus' text format."""
        return prometheus_text(self.metric_families())

    def _known_lags(self) -> dict[TopicPartition, int]:
        found = self._core.positions.snapshot()
        known = {each: (s.end_offset, s.position) for each, s in found.items()}
        return {each: max(0, end - at) for each, (end, at) in known.items() if end is not None and at is not None}

    def close(self, *, leave_group: bool | None = None, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if automatic commits are on, call the listener, and leave the group. Calling it again has no effect.

        Args:
            leave_group: None: a static member's partitions wait for its return; True: it leaves for good as well.
            timeout: Seconds that all of this may take.
        """
        began = time.monotonic()
        self._core.close(for_good=leave_group, timeout_s=max(0.1, timeout - (time.monotonic() - began)))

    def _assigned_or_all(self, partitions: Partitions | None) -> tuple[TopicPartition, ...]:
        if partitions is None:
            return self.assignment()
        named = tuple(TopicPartition(*each) for each in partitions)
        self._core.need_assigned(named)
        return named

    def _list_offsets(self, asked: Mapping[tuple[str, int], str | int]) -> dict[TopicPartition, int]:
        found = Admin(self._core.control).list_offsets(asked, isolation_level=self._isolation_level)
        return {TopicPartition(*each): at.offset for each, at in found.items()}
