"""The agent of `headrace recorder`: follows `__consumer_offsets` and writes the history of groups that it shows.

The entries are those of a broker's own recorder, by the same rules (`coordinator/history`), as far as they can be seen
from outside: records have no reasons and no requests, and a classic rebalance shows when it is over. So joins have
their member as author, leaves have none, and the bounds of standstill are wider.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.coordinator.history.group_histories import GroupHistories
from headrace.coordinator.history.history_record import (
    HISTORY_TOPIC,
    HISTORY_TOPIC_SETTINGS,
    Author,
    HistoryRecord,
    next_sequence,
    record_key,
)
from headrace.coordinator.records.serde import decode
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.client.admin import Admin

__all__ = ["GroupHistoryAgent"]

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSET_COMMITS = (0, 1)
"""Types of keys of committed offsets."""
# Entries that wait while the cluster cannot be written to.
MOST_UNWRITTEN = 10_000


class _Read(NamedTuple):
    """A record of `__consumer_offsets` with its place: records of one batch have the same partition and time."""

    partition: int
    at_ms: int
    record: CoordinatorRecord


class GroupHistoryAgent:
    """The agent. Mutable; keeps its place in `__consumer_offsets` over lost connections.

    Args:
        records_per_group: Entries that compaction keeps for each group.
    """

    def __init__(self, *, records_per_group: int) -> None:
        self._records_per_group = records_per_group
        self._positions: dict[tuple[str, int], int] = {}
        self._histories: GroupHistories | None = None
        self._names: dict[UUID, str] = {}
        self._unwritten: deque[HistoryRecord] = deque()
        self._lost = 0

    def record(self, admin: Admin, now_ms: int) -> int:
        """Read what is new, write the entries that are due, and return how many.

        The first call takes over the groups that exist already, without entries for their past: the doctor reads it
        from `__consumer_offsets`.

        Raises:
            HeadraceError: The cluster is away, or refuses access. The next call continues.
        """
        is_first = self._histories is None
        histories = self._histories or self._open(admin)
        # Commits of the past are most of the log, and no entry needs them.
        self._follow(admin, histories, with_commits=not is_first)
        if is_first:
            histories.on_time(now_ms)
            histories.drop_entries()
            histories.add_own("started beside the cluster", now_ms)
            # From here on a failed call has nothing to repeat.
            self._histories = histories
        histories.on_time(now_ms)
        self._queue(histories, now_ms)
        return self._write(admin)

    def _open(self, admin: Admin) -> GroupHistories:
        admin.create_topics({HISTORY_TOPIC: 1}, configs={HISTORY_TOPIC: HISTORY_TOPIC_SETTINGS}, exist_ok=True)
        sequences: dict[str, int] = {}
        start = admin.list_offsets({(HISTORY_TOPIC, 0): "earliest"})[HISTORY_TOPIC, 0].offset
        for _, _, record in consume(admin.client, {(HISTORY_TOPIC, 0): start}, isolation_level="read_uncommitted"):
            sequences |= next_sequence(record.value or b"")
        self._positions = {}
        return GroupHistories(topic_name=self._names.get, sees_requests=False, sequences=sequences)

    def _follow(self, admin: Admin, histories: GroupHistories, *, with_commits: bool) -> None:
        positions = self._positions or self._starts(admin)
        ends = admin.list_offsets(dict.fromkeys(positions, "latest"))
        behind = {key: position for key, position in positions.items() if ends[key].offset > position}
        until = {key: ends[key].offset for key in behind}
        records = consume(admin.client, behind, until, isolation_level="read_uncommitted")
        reads = list(_decoded(records, with_commits=with_commits))
        self._learn_names(admin, (read.record for read in reads))
        # Partitions may come alternating; those of a group are in one of them.
        reads.sort(key=lambda read: read.partition)
        for (_, at_ms), batch in groupby(reads, key=lambda read: (read.partition, read.at_ms)):
            histories.observe([read.record for read in batch], (), Author(), at_ms)
        self._positions = {**positions, **until}

    def _starts(self, admin: Admin) -> dict[tuple[str, int], int]:
        topic = admin.describe_topics([OFFSETS_TOPIC]).get(OFFSETS_TOPIC)
        # Kafka makes it with the first group.
        if topic is None:
            return {}
        keys = [(OFFSETS_TOPIC, partition) for partition in topic.partitions]
        return {key: found.offset for key, found in admin.list_offsets(dict.fromkeys(keys, "earliest")).items()}

    def _learn_names(self, admin: Admin, records: Iterable[CoordinatorRecord]) -> None:
        ids = {
            each.topic_id
            for record in records
            for each in getattr(record.value, "assigned_partitions", ())
            if each.topic_id not in self._names
        }
        if ids:
            topics = admin.list_topics(include_internal=True).values()
            self._names.update({each.topic_id: each.name for each in topics if each.topic_id is not None})

    def _queue(self, histories: GroupHistories, now_ms: int) -> None:
        for entry in histories.take_entries():
            if len(self._unwritten) >= MOST_UNWRITTEN:
                self._lost += 1
                continue
            self._unwritten.append(entry)
        if self._lost and len(self._unwritten) < MOST_UNWRITTEN:
            histories.add_own(f"lost {self._lost} entries", now_ms)
            self._lost = 0

    def _write(self, admin: Admin) -> int:
        entries = list(self._unwritten)
        if entries:
            produce(admin.client, HISTORY_TOPIC, map(self._encode, entries), partition=0, compression="zstd")
            # Behind the acknowledgement: a failed call writes them again, into the same slots.
            self._unwritten.clear()
        return len(entries)

    def _encode(self, entry: HistoryRecord) -> PlainRecord:
        key = record_key(entry.group_id, entry.sequence, self._records_per_group)
        return PlainRecord(key=key, value=entry.to_json(), timestamp_ms=entry.at_ms)


def _decoded(records: Iterable[tuple[str, int, PlainRecord]], *, with_commits: bool) -> Iterator[_Read]:
    for _, partition, record in records:
        if record.key is None or (not with_commits and int.from_bytes(record.key[:2], "big") in _OFFSET_COMMITS):
            continue
        try:
            found = decode(record.key, record.value)
        except CorruptRecord:
            continue  # a version that is newer than this program
        if found is not None:
            yield _Read(partition, record.timestamp_ms, found)
