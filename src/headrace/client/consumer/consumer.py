"""`Consumer`: subscribe or assign, poll Arrow batches or records, commit. Kafka's semantics under Kafka's names.

What is documented at a method is what Kafka's Java consumer does, unless it says otherwise. One consumer belongs to one
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
CLOSE_TIMEOUT_S = 30.0


@checked_api()
class Consumer:
    """A context manager; leaving it leaves the group. Iterating gives Arrow batches for ever.

    `topics` are subscribed to at once, with `group_id`. Any other setting by Kafka's name in `config`, a mapping or a
    properties file. `token_provider`: for `sasl.mechanism=OAUTHBEARER`, called whenever a connection logs in.
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
        """Connects with the first call that needs a broker. Raises ConfigError."""
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

    # What is read.

    def subscribe(self, topics: Topics) -> None:
        """A name, names, a Python pattern (resolved here, over the whole name) or a `SubscriptionPattern` (resolved by
        the coordinator, RE2). Replaces an earlier subscription; the next polls carry the rebalance out."""
        self._core.subscribe(topics)

    def assign(self, partitions: Partitions) -> None:
        """Exactly these partitions, without a group's assignment."""
        self._core.assign(partitions)

    def unsubscribe(self) -> None:
        """Leaves the group, or drops what was assigned."""
        self._core.unsubscribe()

    def assignment(self) -> tuple[TopicPartition, ...]:
        """What this consumer has now, as the last poll left it."""
        return self._core.positions.assigned

    # Reading.

    def poll(self, timeout: float = 1.0) -> pa.RecordBatch:
        """The next rows of all assigned partitions, at most `max.poll.records`; after `timeout` seconds maybe none.

        Columns: key, value, headers, topic, partition, offset, timestamp, timestamp_type. Raises what a rebalance
        listener raised, MaxPollExceeded, BrokerError, CannotConnect.
        """
        from headrace.client.consumer.arrow_collector import take_batch

        batch = self._core.poll(
            timeout, lambda most: take_batch(self._core.positions, most), lambda rows: rows.num_rows == 0
        )
        self._core.metrics.records_returned(batch.num_rows)
        return batch

    def poll_records(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """As `poll`, as plain records; needs no pyarrow."""
        records = self._core.poll(
            timeout,
            lambda most: take_records(self._core.positions, most if max_records is None else min(most, max_records)),
            lambda rows: not rows,
        )
        self._core.metrics.records_returned(len(records))
        return records

    def records(self, timeout: float | None = None) -> Iterator[ConsumerRecord]:
        """One after the other; ends when none came for `timeout` seconds, without one never.

        What was taken from here and not yet looked at counts as processed only with the next poll: a loop that breaks
        off in the middle should commit the offsets it means.
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
        """From any thread: the poll that waits, or the next one, returns at once with what there is."""
        self._core.wakeup()

    # Where it reads.

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """The next poll goes on there. Raises ConfigError for a partition that is not assigned, a negative offset."""
        if offset < 0:
            raise ConfigError("bad-value", f"an offset of {offset} cannot be", "give 0 or more, or seek_to_beginning")
        for each in self._mine([partition]):
            self._core.positions[each].seek(offset)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Of these, or all: the first record that is still there; found with the next poll."""
        for each in self._mine(partitions):
            self._core.positions[each].begin_at("earliest")

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Of these, or all: behind the last record; with read_committed the last that is decided."""
        for each in self._mine(partitions):
            self._core.positions[each].begin_at("latest")

    def seek_to_time(self, timestamp_ms: int, partitions: Partitions | None = None) -> None:
        """Of these, or all: the first record at or after this time, the end where there is none."""
        for each in self._mine(partitions):
            self._core.positions[each].begin_at(timestamp_ms)

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that a poll hands out."""
        (each,) = self._mine([partition])
        self._core.need_positions([each])
        position = self._core.positions[each].position
        assert position is not None
        return position

    def pause(self, partitions: Partitions) -> None:
        """Polls give nothing of these; the member stays in its group."""
        for each in self._mine(partitions):
            self._core.positions[each].paused = True

    def resume(self, partitions: Partitions) -> None:
        """Polls give them again, from where they were."""
        for each in self._mine(partitions):
            self._core.positions[each].paused = False

    def paused(self) -> tuple[TopicPartition, ...]:
        return tuple(sorted(each for each, state in self._core.positions.items() if state.paused))

    # Committing.

    def commit(
        self, offsets: Offsets | None = None, *, wait: bool = True, callback: CommitCallback | None = None
    ) -> None:
        """The positions behind what polls returned, or `offsets` (the next to read, plain or `CommittedOffset`).

        `wait` False: in the background and in order; `callback(offsets, error)` hears what became of it, else the log.
        Raises Fenced when the partitions belong to others by now, BrokerError, CannotConnect.
        """
        self._core.need_group("commit")
        given: Offsets = self._core.positions.consumed() if offsets is None else dict(offsets)  # type: ignore[assignment]
        if not given:
            return
        if wait:
            self._core.commits.commit(given)
        else:
            self._core.commits.commit_later(given, callback)

    def committed(self, partitions: Partitions | None = None) -> dict[TopicPartition, CommittedOffset | None]:
        """Of these, or of what is assigned: the committed offset with its metadata, None where there is none."""
        self._core.need_group("committed")
        wanted = self.assignment() if partitions is None else tuple(TopicPartition(*each) for each in partitions)
        found = self._core.commits.committed(wanted, require_stable=self._isolation_level == "read_committed")
        return {each: found[each] if found[each].offset >= 0 else None for each in wanted}

    def lag(self, partitions: Partitions | None = None) -> dict[TopicPartition, int]:
        """How many offsets lie between the position and the end, as the last Fetch, or a question, saw it."""
        wanted = self._mine(partitions)
        self._core.need_positions(wanted)
        states = {each: self._core.positions[each] for each in wanted}
        unknown = [each for each, state in states.items() if state.end_offset is None]
        ends = {each: state.end_offset for each, state in states.items()}
        if unknown:
            ends |= self.end_offsets(unknown)
        return {each: max(0, (ends[each] or 0) - (states[each].position or 0)) for each in wanted}

    # Asking about topics.

    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset that is still there."""
        return self._list_offsets(dict.fromkeys(partitions, "earliest"))

    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Behind the last record; with read_committed behind the last that is decided."""
        return self._list_offsets(dict.fromkeys(partitions, "latest"))

    def offsets_for_times(self, times_ms: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after each time; None where there is no record so late."""
        found = self._list_offsets(times_ms)
        return {each: offset if offset >= 0 else None for each, offset in found.items()}

    def partitions_for(self, topic: str) -> tuple[TopicPartition, ...]:
        """All partitions of a topic. Raises BrokerError `topic-missing`."""
        known = self._core.control.known_topics([topic]).topics[topic].partitions
        return tuple(TopicPartition(topic, number) for number in sorted(known))

    # The group.

    @property
    def group_id(self) -> str:
        return self._core.group_id

    @property
    def member_id(self) -> str:
        """Empty before the coordinator gave one."""
        return self._core.identity.member_id

    @property
    def generation(self) -> int:
        """The generation of a classic group, the member epoch of a consumer group; -1 outside of one."""
        return self._core.identity.generation

    def metrics(self) -> dict[str, Any]:
        """By Kafka's names (docs/reference/consumer-metrics.md); the greatest lag of a partition as far as known."""
        states = self._core.positions.snapshot()
        lags = list(self._known_lags().values())
        return self._core.metrics.values() | {
            "polls": self._core.polls,
            "assigned-partitions": len(states),
            "records-lag-max": max(lags, default=None),
        }

    def drive(self, around: Callable[[RebalanceListener], RebalanceListener]) -> DrivenConsumer:
        """For who drives this consumer from now on (`ParallelConsumer`): it commits, so nothing is committed
        automatically, and `around` gets the listener and gives the one to be told instead."""
        return self._core.drive(around)

    def positions(self) -> dict[TopicPartition, int]:
        """Where polls stand: the next offset of each partition that has a position. Asks nobody."""
        return self._core.positions.consumed()

    def metric_families(self) -> list[Family]:
        """The same as families, with lags of single partitions: for `prometheus_text`, beside other families."""
        return list(self._core.metrics.families(self._known_lags(), len(self._core.positions)))

    def prometheus(self) -> str:
        """The same as a page for Prometheus."""
        return prometheus_text(self.metric_families())

    def _known_lags(self) -> dict[TopicPartition, int]:
        found = self._core.positions.snapshot()
        known = {each: (s.end_offset, s.position) for each, s in found.items()}
        return {each: max(0, end - at) for each, (end, at) in known.items() if end is not None and at is not None}

    def close(self, *, leave_group: bool | None = None, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commits if it does that by itself, tells the listener, leaves the group; calling it again does nothing.

        `leave_group` None: a static member's partitions wait for its return; True: it leaves for good, too.
        """
        began = time.monotonic()
        self._core.close(for_good=leave_group, timeout_s=max(0.1, timeout - (time.monotonic() - began)))

    def _mine(self, partitions: Partitions | None) -> tuple[TopicPartition, ...]:
        if partitions is None:
            return self.assignment()
        named = tuple(TopicPartition(*each) for each in partitions)
        self._core.need_assigned(named)
        return named

    def _list_offsets(self, asked: Mapping[tuple[str, int], str | int]) -> dict[TopicPartition, int]:
        found = Admin(self._core.control).list_offsets(asked, isolation_level=self._isolation_level)
        return {TopicPartition(*each): at.offset for each, at in found.items()}
