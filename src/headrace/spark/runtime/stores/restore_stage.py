"""Opening tasks: their stores are brought to the committed input position before the first micro-batch.

A store at exactly this position (after a restart, if no other instance has processed the task) is kept, and anything
prepared beyond it is rolled back. Any other store is an outdated cache: the changelog is replayed from the store's
position to the current end of the log. The end is asked for READ_UNCOMMITTED and compared with the fetch
*position*: markers and aborted batches never arrive as records.

Where a replica process runs beside the driver (`replicas.py`) it does the same, and this stage runs for what it left
undone: a changelog that ends in an open transaction, a process that died. Elsewhere all of it happens here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.errors import StateError
from headrace.spark.runtime.batches.fetch_stage import input_name
from headrace.spark.runtime.batches.plan import TaskPlan
from headrace.spark.runtime.batches.stages import StageContext
from headrace.spark.runtime.operators.stateful_operator import open_store
from headrace.spark.runtime.rows.row_schema import StoreSpec
from headrace.spark.runtime.stores.replay import (
    FETCH_BYTES,
    FETCH_PARTITION_BYTES,
    Replay,
    committed_position,
    replay_all,
)

__all__ = ["RestoreStep", "progress_path"]


def progress_path(state_dir: str | Path, subtopology_id: str, partition: int) -> Path:
    """Return the progress file of a restore: {"restored": records, "remaining": records}."""
    return Path(state_dir) / ".batches" / f"restore.{subtopology_id}.{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStep:
    """A source step that yields no table: it leaves stores in place and a report per task."""

    stores: tuple[tuple[StoreSpec, tuple[str, ...]], ...]  # with the topics of the source that its operator reads

    def tables(self, context: StageContext) -> Iterator[pa.Table]:
        for task in context.slot.tasks:
            for spec, topics in self.stores:
                _restore(context, task, spec, topics)
            with contextlib.suppress(OSError):
                progress_path(context.plan.state_dir, context.plan.subtopology_id, task.partition).unlink()
        return iter(())


def _restore(context: StageContext, task: TaskPlan, spec: StoreSpec, topics: tuple[str, ...]) -> None:
    store = open_store(context, spec, task.partition)
    report = context.report(task.partition)
    committed = {input_name(r.topic, r.partition, r.topic_id): r.start for r in task.ranges if r.topic in topics}
    where = (spec.changelog_topic, task.partition)
    # 1. The end is asked for after the committed offsets were read as stable. Everything that they cover is in the log
    #    before it.
    first, end = context.topics.log_range(where)
    # 2. Exactly at the committed offsets, and inside of the log: keep the store.
    try:
        stands = committed_position(store, committed, trust_prepared=not context.plan.exactly_once)
        at = store.position()
    except StateError as error:
        if error.code != "state-corrupt":
            raise
        store = open_store(context, spec, task.partition)  # condemned, hence set aside: a new one
        stands, at = False, None
    # 3. Otherwise replay up to the end, open transactions included: the replay waits for their outcome.
    if not stands or at is None or not first <= at.changelog_offset <= end:
        start = store.begin_replay(context.plan.batch, first, end)
        replay = Replay(
            store=store,
            changelog=where,
            writer=context.plan.batch,
            position=start,
            fingerprint=spec.rows.fingerprint,
        )
        reader = context.topics.reader(max_bytes=FETCH_BYTES, max_partition_bytes=FETCH_PARTITION_BYTES)
        path = progress_path(context.plan.state_dir, context.plan.subtopology_id, task.partition)

        def write_progress() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"restored": replay.records, "remaining": end - replay.fetched_to}))

        replay_all(reader, [replay], {where: end}, on_progress=write_progress)
        report.changelog_records += replay.records
        at = replay.stored_position
    if store.rebuilt is not None:
        report.notes.append(f"the store {store.path} was rebuilt: {store.rebuilt}")
        store.rebuilt = None
    # 4. Only now the store belongs to the task: its next micro-batch must begin at these offsets.
    store.assign_position(context.plan.batch, committed, over=at)
    report.state_keys += store.count()
    report.state_bytes += store.size_bytes()
