"""Opening tasks: their stores are brought to the committed input position before the first micro-batch.

A store that stands exactly there (this process stopped, or crashed and came back, and nobody else moved on) is kept as
it is; what it had prepared beyond is undone. Any other is a cache that fell behind: the changelog is replayed from
where it stands to the end that the log has now. The end is asked for READ_UNCOMMITTED and compared with the fetch
*position*: markers and aborted batches never arrive as records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.spark.runtime.fetch_stage import name_of
from penstock.spark.runtime.operator_stage import open_store
from penstock.spark.runtime.plan import TaskPlan
from penstock.spark.runtime.stages import StageContext
from penstock.spark.runtime.store import StorePosition, TaskStore
from penstock.spark.runtime.worker_process import client_for
from penstock.spark.topology.nodes import Aggregate

__all__ = ["RestoreStep", "progress_path"]

_SAY_AFTER = 0.25


def progress_path(state_dir: str | Path, subtopology_id: str, partition: int) -> Path:
    """Where a restoring task says how far it is: {"restored": records, "remaining": records}."""
    return Path(state_dir) / ".batches" / f"restore.{subtopology_id}.{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStep:
    """A source step that yields no table: it leaves stores in place and a report per task."""

    aggregates: tuple[tuple[Aggregate, tuple[str, ...]], ...]  # with the topics of the source each one reads

    def tables(self, context: StageContext) -> Iterator[pa.Table]:
        for task in context.slot.tasks:
            for aggregate, topics in self.aggregates:
                _restore(context, task, aggregate, topics)
            progress_path(context.plan.state_dir, context.plan.subtopology_id, task.partition).unlink(missing_ok=True)
        return iter(())


def _restore(context: StageContext, task: TaskPlan, aggregate: Aggregate, topics: tuple[str, ...]) -> None:
    from penstock.client.admin import Admin

    store = open_store(context, aggregate, task.partition)
    committed = {name_of(r.topic, r.partition): r.start for r in task.ranges if r.topic in topics}
    where = (aggregate.changelog_topic, task.partition)
    admin = Admin(client_for(context.plan.bootstrap_servers))
    first = admin.list_offsets({where: "earliest"})[where].offset
    end = admin.list_offsets({where: "latest"})[where].offset
    base = _decided(store, committed)
    if base is None or base.restoring or dict(base.input_offsets) != committed:
        start = base.changelog_offset if base is not None else first
        if not first <= start <= end:
            store.clear()
            start = first
        _replay(context, task, store, where, (start, end))
    store.place(StorePosition(batch=context.plan.batch, input_offsets=committed, changelog_offset=end))
    report = context.report(task.partition)
    report.state_keys += store.count()
    report.state_bytes += store.size_bytes()


def _decided(store: TaskStore, committed: dict[str, int]) -> StorePosition | None:
    """The offsets decide about a batch whose outcome nobody here remembers."""
    prepared = store.prepared()
    if prepared is not None and dict(prepared.input_offsets) == committed:
        return store.settle(prepared.batch)
    return store.settle(None)


def _replay(
    context: StageContext, task: TaskPlan, store: TaskStore, where: tuple[str, int], span: tuple[int, int]
) -> None:
    from penstock.client.fetcher import Fetcher

    if span[0] >= span[1]:
        return
    fetcher = Fetcher(
        client_for(context.plan.bootstrap_servers),
        isolation_level="read_committed",
        max_bytes=16 * 1024 * 1024,
        max_partition_bytes=8 * 1024 * 1024,
    )
    report = context.report(task.partition)
    path = progress_path(context.plan.state_dir, context.plan.subtopology_id, task.partition)
    path.parent.mkdir(parents=True, exist_ok=True)
    said = 0.0
    for fetched in fetcher.fetch_ranges({where: span}):
        position = StorePosition(
            batch=context.plan.batch, input_offsets={}, changelog_offset=fetched.next_offset, restoring=True
        )
        store.load(list(_items(fetched.table)), position)
        report.changelog_records += fetched.table.num_rows
        if time.monotonic() - said > _SAY_AFTER:
            said = time.monotonic()
            path.write_text(
                json.dumps({"restored": report.changelog_records, "remaining": span[1] - fetched.next_offset})
            )


def _items(records: pa.Table) -> Iterable[tuple[bytes, bytes | None]]:
    return zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
