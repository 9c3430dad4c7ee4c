"""Replay of changelogs into stores: the position of each replay, and the loop that brings several to their ends.

Read committed: aborted batches and markers never arrive as records, so what counts is the fetch *position*. Pieces are
gathered to tens of megabytes before they are written, because LMDB's cost is that of the pages it touches, and sorted
puts of a large piece touch each page once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.fetcher import FetchedBatch, Fetcher
from headrace.client.network_client import NetworkClient
from headrace.errors import StateError
from headrace.spark.runtime.rows.rows import ROW_FORMAT, SCHEMA_KEY, foreign_rows
from headrace.spark.runtime.stores.store import BatchKey, StoreIdentity, StorePosition, TaskStore
from headrace.spark.runtime.topic_access import RangeReader

__all__ = [
    "FETCH_BYTES",
    "FETCH_PARTITION_BYTES",
    "Copy",
    "Replay",
    "changelog_reader",
    "committed_position",
    "replay_all",
]

PIECE_BYTES = 48 * 1024 * 1024  # of keys and values, gathered before they are written
FETCH_BYTES = 16 * 1024 * 1024
FETCH_PARTITION_BYTES = 8 * 1024 * 1024

TopicPartition = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class Replay:
    """Replay of one store's changelog. Mutable: counters, and records that are fetched but not written."""

    store: TaskStore
    changelog: TopicPartition
    writer: BatchKey
    position: int  # of what was written
    fingerprint: bytes = b""  # of the rows' schema; empty: rows of any
    records: int = 0
    bytes: int = 0
    _fetched: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_bytes: int = 0
    _next: int = -1

    @property
    def fetched_to(self) -> int:
        """The position of what was fetched."""
        return max(self._next, self.position)

    @property
    def is_waiting(self) -> bool:
        """Whether fetched records are still to be written."""
        return self._next > self.position

    @property
    def stored_position(self) -> StorePosition:
        """The store's position record while it belongs to this replay."""
        return StorePosition(batch=self.writer, input_offsets={}, changelog_offset=self.position, restoring=True)

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def take(self, batch: FetchedBatch) -> None:
        """Add a fetched batch. Raises StateError("state-schema-changed") for a row of another schema."""
        rows = self._without_schemas(batch.table)
        # Also without rows: markers and aborted batches move the position, and a copy that stopped before them would
        # never reach the end of the log.
        self._next = batch.next_offset
        if rows.num_rows:
            self._fetched.append(rows)
            self._waiting_bytes += rows.nbytes
            self.records += rows.num_rows
            self.bytes += rows.nbytes

    def _without_schemas(self, table: pa.RecordBatch) -> pa.RecordBatch:
        """Drop the records that hold the changelog's schema."""
        rows = table.select(["key", "value"])
        foreign = foreign_rows(table.column("value"), self.fingerprint) if self.fingerprint else ()
        if not len(foreign):
            return rows
        keys = table.column("key").take(pa.array(foreign))
        # Schema records are foreign by their bytes. Their keys distinguish them from rows of another program, only
        # where a row is foreign at all: the common case is one compiled pass.
        is_schema = pc.starts_with(keys, SCHEMA_KEY).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        if not is_schema.all():
            raise self._foreign(table, int(foreign[~is_schema][0]))
        kept = np.ones(table.num_rows, np.bool_)
        kept[foreign] = False
        return rows.filter(pa.array(kept))

    def _foreign(self, table: pa.RecordBatch, row: int) -> StateError:
        topic, partition = self.changelog
        offset = int(table.column("offset")[row].as_py())
        found = table.column("value")[row].as_py()[: 1 + len(self.fingerprint)]
        return StateError(
            "state-schema-changed",
            f"the record {topic}-{partition}@{offset} was written by another version of the program: its row begins "
            f"with {found.hex()}, rows of this program with {bytes([ROW_FORMAT]).hex()}{self.fingerprint.hex()}",
            "Start the version of the program that wrote it.",
            topic=topic,
            partition=partition,
            offset=offset,
            found=found[1:].hex(),
            wanted=self.fingerprint.hex(),
        )

    def write(self) -> None:
        """Write the fetched records to the store. Raises StateError: store-taken, state-corrupt, disk-full."""
        if self._next <= self.position:
            return
        empty = pa.array([], pa.binary())
        keys, values = empty, empty
        if self._fetched:
            table = pa.Table.from_batches(self._fetched)
            keys, values = (table.column(name).combine_chunks() for name in ("key", "value"))
        # Values and position are one LMDB commit. A replay that is killed here continues at the old or at the new
        # position, never between.
        self.store.load(self.writer, keys, values, self._next)
        self.position = self._next
        self.drop()

    def drop(self) -> None:
        """Discard the fetched records that are not written."""
        self._fetched.clear()
        self._waiting_bytes = 0
        self._next = -1


@dataclass(slots=True)
class Copy:
    """The open stores of one task while they are replayed. Mutable."""

    replays: list[Replay] = field(default_factory=list)
    identities: list[StoreIdentity] = field(default_factory=list)  # as the stores were opened
    records: int = 0
    bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """Sum of the changelog offsets of the task's stores, as heartbeats carry it."""
        return sum(replay.position for replay in self.replays)

    @property
    def end(self) -> int:
        return sum(self.ends.get(replay.changelog, replay.position) for replay in self.replays)

    @property
    def remaining(self) -> int:
        """Offsets still to be fetched."""
        return sum(max(0, self.ends.get(r.changelog, r.fetched_to) - r.fetched_to) for r in self.replays)

    @property
    def lacking(self) -> int:
        """Offsets still to be written."""
        return sum(max(0, self.ends.get(r.changelog, r.position) - r.position) for r in self.replays)


def changelog_reader(client: NetworkClient) -> RangeReader:
    """Return a reader of changelogs of a cluster."""
    return Fetcher(
        client,
        isolation_level="read_committed",
        max_bytes=FETCH_BYTES,
        max_partition_bytes=FETCH_PARTITION_BYTES,
    )


def replay_all(
    reader: RangeReader,
    replays: Sequence[Replay],
    ends: Mapping[TopicPartition, int],
    *,
    goes_on: Callable[[], bool] = lambda: True,
    on_progress: Callable[[], None] = lambda: None,
    progress_interval_s: float = 0.25,
) -> bool:
    """Bring every store to the end of its changelog.

    Args:
        reader: Reads the changelogs, committed records only. See `changelog_reader`.
        replays: The replays to run together.
        ends: End offset of each changelog partition.
        goes_on: Asked between pieces; False cancels. Records fetched but not written stay in the replays.
        on_progress: Called with progress.
        progress_interval_s: Interval of these calls, in seconds.

    Returns:
        False if `goes_on` cancelled the replay.
    """
    # 1. Changelogs to fetch from, and those whose fetched records an earlier, cancelled call left unwritten.
    behind = {replay.changelog: replay for replay in replays if replay.fetched_to < ends.get(replay.changelog, 0)}
    waiting = behind | {replay.changelog: replay for replay in replays if replay.is_waiting}
    if not waiting:
        return True
    # 2. One reader for all changelogs: one request per leader carries all their partitions.
    ranges = {where: (replay.fetched_to, ends[where]) for where, replay in behind.items()}
    last_progress = time.monotonic()
    try:
        for batch in reader.fetch_ranges(ranges, columns=("key", "value", "offset")) if ranges else ():
            replay = waiting[batch.topic, batch.partition]
            replay.take(batch)
            # 3. Complete: write at once, so that its task can be opened while the others are still being fetched.
            if batch.next_offset >= ends[replay.changelog]:
                replay.write()
            # 4. The bound on memory is for all replays together. The largest one is written, as it gains most from
            #    sorted puts.
            elif sum(other.waiting_bytes for other in waiting.values()) >= PIECE_BYTES:
                max(waiting.values(), key=lambda other: other.waiting_bytes).write()
            if time.monotonic() - last_progress >= progress_interval_s:
                last_progress = time.monotonic()
                on_progress()
            if not goes_on():
                return False
        # 5. What an earlier, cancelled call had fetched to the end.
        for replay in waiting.values():
            if replay.is_waiting and not goes_on():
                return False
            replay.write()
    # 6. Fetched and not written: dropped, and fetched again from the stored position. Kept records would be a gap if
    #    the error was about one of them.
    except BaseException:
        for replay in waiting.values():
            replay.drop()
        raise
    return True


def committed_position(store: TaskStore, committed: Mapping[str, int], *, trust_prepared: bool) -> bool:
    """Whether the store is at these input offsets, which decide about a batch with an unknown outcome.

    Not under exactly once (`trust_prepared` False): another owner may have reached the same offsets with other values,
    as nondeterministic functions may return others on a repetition. The committed values are those of the changelog,
    and the prepared ones are rolled back.
    """
    prepared = store.prepared()
    if trust_prepared and prepared is not None and dict(prepared.input_offsets) == dict(committed):
        # At least once the group's offsets are the only evidence of a commit whose response was lost.
        store.resolve_prepared(prepared.batch)
    else:
        store.resolve_prepared(None)
    base = store.position()
    return base is not None and not base.restoring and dict(base.input_offsets) == dict(committed)
