"""Python stages of resident slots: they run micro-batch after micro-batch in one Spark task.

A Spark job for each micro-batch costs about 180 ms of CPU in the JVM, and 75 ms from plan to commit that no stage
uses (four tasks, one record each: `benchmarks/batch_cost.py`). A resident slot is started once. It receives plans over
its link (`slot_link`), runs the very steps that a micro-batch job would run, and answers with their reports. What a
plan, a store, a transaction and a commit mean does not change: workers prepare, the driver commits.

A chain without Spark SQL is one stage (`ResidentStage`). In any other, rows go from the stage that fetches
(`ResidentFetch`) through Spark to the stage that writes (`ResidentSink`), in one query that never ends. Nothing in it
ends a micro-batch, so the first stage marks its end by rows that pass through Spark as all others do:

1. *The marker row* has a value in `MARKER_COLUMN`: the plan, and the report of the first stage. All rows of the
   micro-batch lie before it, because a Spark task keeps their order. A stage that never sees the marker prepares
   nothing. It matters when something upstream died: the input of such a stage just ends, without an error.
2. *The marker is large.* Buffers of 64 KB lie between a Python worker and the JVM, in both directions. The JVM hands
   rows on when they fill `spark.sql.execution.arrow.maxBytesPerBatch`, which is 64 KB here. Padding pushes everything
   before it through. The column is the last one, so that nothing but the ending of the message follows its bytes.
3. *A dummy row follows.* The JVM looks at the size of a batch only after it has seen the next row
   (`BatchedPythonArrowInput.writeSizedBatch`).

There are two stages, not more. One thread of the JVM moves the rows of a task. After the dummy row it waits for rows of
the first stage, and would not look for rows that a stage in the middle has made of the last micro-batch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.runtime.batches.plan import MicroBatchPlan, StageReport
from headrace.spark.runtime.batches.stage_reports import StageReports, facts_of
from headrace.spark.runtime.batches.stages import PythonStage, attempt_of_task
from headrace.spark.runtime.slots.executor_site import ExecutorSite, OpenSite, describe_executor
from headrace.spark.runtime.slots.slot_link import LinkAddress, LinkClosed, SlotLink
from headrace.spark.runtime.stores.restore_agent import RestoreAgent, Serving
from headrace.spark.topology.nodes import MARKER_COLUMN

__all__ = ["FLUSH_BYTES", "ClusterEnd", "ResidentFetch", "ResidentSink", "ResidentStage", "SlotEnd"]

FLUSH_BYTES = 64 * 1024
_MARKER_BYTES = FLUSH_BYTES + 8 * 1024
_DUMMY = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEnd:
    """Facts that a slot on a cluster needs beside its stage. Pickled with the stage."""

    site: ExecutorSite
    launch: int  # which start of the slot: the driver takes no hello of an earlier one
    silence_s: float  # after which the slot takes its driver for lost, and ends
    restore: PythonStage | None  # brings stores to their positions; None without stores


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEnd:
    """How a stage of a resident slot reaches the driver. Pickled with the stage."""

    chain: int
    slot: int
    address: LinkAddress
    # Neither part of a plan nor of a job's description: Spark's UI shows those.
    token: str = field(repr=False)
    cluster: ClusterEnd | None = None  # None: the executor is on the driver's host, and shares its state directory

    @contextlib.contextmanager
    def open(self, end: str) -> Iterator[OpenEnd]:
        """Connect one end of the chain: "first" takes plans, "last" reports; "whole" does both.

        Raises:
            HeadraceError: `second-attempt` if Spark runs the task again. The driver starts a slot again when it has
                resolved what the lost one left open; Spark would not wait for that.
        """
        if attempt_of_task() > 0:
            raise HeadraceError("second-attempt", f"Spark ran the resident slot {self.slot} a second time")
        name = f"{self.chain}.{self.slot}.{end}"
        cluster = self.cluster
        if cluster is None:
            with SlotLink.connect(self.address, self.token, name) as link:
                yield OpenEnd(link=link)
            return
        name, site = f"{name}.{cluster.launch}", cluster.site.open()
        facts = {"site": site.site_id, "boot": site.boot_id, **describe_executor()}
        with contextlib.ExitStack() as stack:
            if cluster.restore is not None and end != "last":
                serving = Serving(
                    address=self.address,
                    token=self.token,
                    name=f"{self.chain}.{self.slot}.restore.{cluster.launch}",
                    silence_s=cluster.silence_s,
                    site=site,
                    slot=self.slot,
                    stage=cluster.restore,
                )
                stack.callback(RestoreAgent.start(serving).stop)
            link = stack.enter_context(SlotLink.connect(self.address, self.token, name, **facts))
            stack.enter_context(link.beating())
            link.send({"stores": site.tasks(cluster.site.subtopology_id)})
            yield OpenEnd(link=link, site=site, lease_s=cluster.silence_s, is_first=end == "first")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnd:
    """A stage's end of the link to the driver."""

    link: SlotLink
    site: OpenSite | None = None
    lease_s: float | None = None
    is_first: bool = False  # another stage follows in the micro-batch

    def plans(self) -> Iterator[str]:
        """Yield plans until the driver ends the slot, or cannot be heard any more."""
        for message in self.link.messages(self.lease_s):
            yield message["plan"]

    def read(self, plan: str) -> MicroBatchPlan:
        """Return a plan as it is to be read on this host.

        Raises:
            ConfigError: `slots-missing` if it is not a plan of this version of Headrace.
        """
        if self.site is None:
            return MicroBatchPlan.from_json(plan)
        try:
            return self.site.place(MicroBatchPlan.from_json(plan))
        except (KeyError, TypeError, ValueError) as error:
            refused = ConfigError(
                "slots-missing",
                f"the executor on {describe_executor()['host']} has another version of Headrace than the driver: "
                f"it cannot read a plan ({type(error).__name__}: {error})",
                "Install the same version of Headrace on every host, or make the archived environment anew.",
            )
            with contextlib.suppress(LinkClosed):
                self.link.send({"error": facts_of(refused)})
            raise refused from error

    @contextlib.contextmanager
    def errors_sent(self, plan: MicroBatchPlan) -> Iterator[None]:
        """Send the error that ends the block to a driver that cannot read the files of this host."""
        if self.site is None:
            yield
            return
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            with contextlib.suppress(LinkClosed):
                self.link.send({"error": facts_of(error)})
            StageReports(plan.state_dir, plan.subtopology_id, plan.batch).remove()
            raise
        # The last stage reads files of the first one: where its records continue in a topic that both write.
        if not self.is_first:
            StageReports(plan.state_dir, plan.subtopology_id, plan.batch).remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentStage:
    """A chain of a single stage, from source to sink."""

    stage: PythonStage
    end: SlotEnd

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _drain(batches)
        with self.end.open("whole") as end:
            # An error ends the slot: the driver reads it from the side path, and starts a slot with a new worker, since
            # neither open stores nor connections of this one can be trusted.
            for text in end.plans():
                plan = end.read(text)
                with end.errors_sent(plan):
                    report: StageReport = _drain(self.stage.run_batch(plan, self.end.slot))
                end.link.send({"reports": [_sent(report)]})
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentFetch:
    """The first stage of a chain with Spark SQL: rows of a source, and a marker behind each micro-batch."""

    stage: PythonStage
    end: SlotEnd
    schema: pa.Schema  # of its rows, `MARKER_COLUMN` last

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _drain(batches)
        with self.end.open("first") as end:
            # The JVM sends a worker nothing, not even its function, before 64 KB of its input have come. So the stage
            # behind this one starts with an empty marker.
            yield _marker_rows(self.schema, {})
            for text in end.plans():
                plan = end.read(text)
                with end.errors_sent(plan):
                    yield from self._micro_batch(plan, text)

    def _micro_batch(self, plan: MicroBatchPlan, text: str) -> Iterator[pa.RecordBatch]:
        run = self.stage.run_batch(plan, self.end.slot)
        while True:
            try:
                rows = next(run)
            except StopIteration as end:
                report: StageReport = end.value
                break
            yield _as_schema(rows, self.schema)
        yield _marker_rows(self.schema, {"plan": text, "report": _sent(report)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentSink:
    """The stage behind Spark SQL: waits for the marker of a micro-batch, then runs on the rows before the marker."""

    stage: PythonStage
    end: SlotEnd

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self.end.open("last") as end:
            for rows, marker in _micro_batches(batches):
                if not marker:
                    continue
                plan, fetched = end.read(marker["plan"]), StageReport.from_json(marker["report"])
                with end.errors_sent(plan):
                    report: StageReport = _drain(self.stage.run_batch(plan, self.end.slot, rows, [fetched]))
                end.link.send({"reports": [marker["report"], _sent(report)]})
        yield from ()


def _sent(report: StageReport) -> str:
    return replace(report, resident=True).to_json()


def _as_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as the stream has them, which has one schema for all micro-batches, with a null marker."""
    columns = [
        column if (column := rows.column(wanted.name)).type == wanted.type else column.cast(wanted.type)
        for wanted in schema
        if wanted.name != MARKER_COLUMN
    ]
    return pa.RecordBatch.from_arrays([*columns, pa.nulls(rows.num_rows, pa.binary())], schema=schema)


def _marker_rows(schema: pa.Schema, message: Mapping[str, object]) -> pa.RecordBatch:
    """Return the marker row and the dummy row; all other columns are null."""
    body = json.dumps(message).encode().ljust(_MARKER_BYTES)  # JSON ends in any white space
    nothing = [pa.nulls(2, wanted.type) for wanted in schema if wanted.name != MARKER_COLUMN]
    return pa.RecordBatch.from_arrays([*nothing, pa.array([body, _DUMMY], pa.binary())], schema=schema)


def _micro_batches(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[list[pa.RecordBatch], dict[str, Any]]]:
    """Yield the rows of each micro-batch, without `MARKER_COLUMN`, with the message of its marker."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        markers = batch.column(MARKER_COLUMN)
        rows = batch.drop_columns([MARKER_COLUMN])
        start = 0
        for at in np.flatnonzero(pc.is_valid(markers).to_numpy(zero_copy_only=False)).tolist():
            if at > start:
                waiting.append(rows.slice(start, at - start))
            start = at + 1
            body = markers[at].as_py()
            if body != _DUMMY:
                yield waiting, json.loads(body)
                waiting = []
        if start < rows.num_rows:
            waiting.append(rows.slice(start))


def _drain(run: Iterator[pa.RecordBatch]) -> Any:
    """Run a stage that yields no rows to its end, and return its report; or read Spark's input to its end."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            return end.value
