"""One task of an operator with one store, without Spark and broker: micro-batches that are undone, and restores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headrace.spark.runtime.operators.stateful_operator import StatefulOperator, StoreUpdate, TakesWatermarks
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark, is_watermark, read_watermarks
from headrace.spark.runtime.stores.store import (
    BatchKey,
    StoreIdentity,
    StorePosition,
    StoreReader,
    StoreWrites,
    TaskStore,
)


@dataclass(frozen=True)
class Event:
    """A record of one source partition, with its event time in microseconds."""

    task: int
    key: str | None
    time: int
    record_ms: int = -1


@dataclass
class Task:
    """One task with one store and its changelog, as the stateful step and the driver treat them."""

    operator: StatefulOperator
    directory: Path
    store: TaskStore = field(init=False)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    committed: BatchKey | None = None
    batch: int = 0
    restores: int = 0
    late: int = 0

    def __post_init__(self) -> None:
        self.store = self._opened()

    def _opened(self) -> TaskStore:
        [spec] = self.operator.stores
        identity = StoreIdentity(changelog_topic_id="t", schema_hash=spec.rows.hash, boot_id="b")
        return TaskStore(self.directory / f"store-{self.restores}", identity)

    def run(
        self, rows: pa.Table, upstream: Sequence[UpstreamWatermark] = (), *, commits: bool = True
    ) -> tuple[pa.Table | None, StoreWrites | None]:
        """Run a micro-batch; its rows and what it wrote, or nothing if it is undone."""
        self.batch += 1
        key = BatchKey(incarnation="run", batch_id=self.batch)
        running = self.operator.start()
        running.begin(key)
        if rows.num_rows:
            running.on_rows(0, rows)
        if isinstance(running, TakesWatermarks):
            running.on_watermarks(0, upstream, {})
        changes = running.end(0)
        position = StorePosition(batch=key, input_offsets={}, changelog_offset=0)
        if changes is None:
            nothing = StoreWrites(keys=pa.array([], pa.binary()), values=pa.array([], pa.binary()))
            self.store.update(self.committed, position, lambda _: nothing).prepare(None)
            self.committed = key if commits else self.committed
            return None, None
        written: list[StoreWrites] = []
        [change] = changes.stores
        assert isinstance(change, StoreUpdate)

        def update(reader: StoreReader) -> StoreWrites:
            change.update(reader)  # as if the store's map had been full: it is called again
            written.append(change.update(reader))
            return written[-1]

        self.store.update(self.committed, position, update).prepare(len(self.changelog))
        if not commits:
            return None, None
        self.committed = key
        self.changelog += zip(written[-1].keys.to_pylist(), written[-1].values.to_pylist(), strict=True)
        self.late += written[-1].late_rows
        return changes.results(), written[-1]

    def restore(self) -> None:
        """Go on with a new store that is made of the changelog alone."""
        if self.committed is None:
            return
        self.store.close()
        self.restores += 1
        self.store = self._opened()
        writer = BatchKey(incarnation="restore", batch_id=self.restores)
        self.store.begin_replay(writer, 0, len(self.changelog))
        keys, values = zip(*self.changelog, strict=True) if self.changelog else ((), ())
        self.store.load(writer, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), len(self.changelog))
        over = self.store.position()
        assert over is not None
        self.store.assign_position(self.committed, {}, over=over)


class RepartitionTopic(list["pa.Table | UpstreamWatermark"]):
    """The partition of a repartition topic that one task reads: rows one by one, and watermarks between them."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def send(
        self, rows: pa.Table, announced_us: int | None, *, source: str, task: int, tasks: int, sent_ms: int = 0
    ) -> None:
        """Append the rows of an upstream task, and then its watermark if it announced one."""
        self += [rows.slice(at, 1) for at in range(rows.num_rows)]
        if announced_us is not None:
            self.append(UpstreamWatermark(source=source, task=task, tasks=tasks, time_us=announced_us, sent_ms=sent_ms))

    def take(
        self, reader: Task, records: int, *, no_rows: pa.Table, commits: bool
    ) -> tuple[pa.Table | None, StoreWrites | None]:
        """Run a micro-batch of the reader over the next records; the position moves on if it commits."""
        piece = self[self.read : self.read + records]
        tables = [one for one in piece if isinstance(one, pa.Table)]
        marks = [one for one in piece if isinstance(one, UpstreamWatermark)]
        assert is_watermark(pa.array([mark.key for mark in marks], pa.binary())).to_pylist() == [True] * len(marks)
        rows = pa.concat_tables(tables) if tables else no_rows
        changes = reader.run(rows, read_watermarks([mark.value for mark in marks]), commits=commits)
        self.read += len(piece) if commits else 0
        return changes
