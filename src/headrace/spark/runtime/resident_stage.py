"""A resident slot: a stage that runs micro-batch after micro-batch in one Spark task, as long as the application runs.

A Spark job for each micro-batch costs about 180 ms of CPU in the JVM, and 75 ms from plan to commit that no stage
uses (four tasks, one record each: `benchmarks/batch_cost.py`). A resident slot is started once. It receives plans over
its link (`slot_link`), runs the very steps that a micro-batch job would run, and answers with their reports.

What a plan, a store, a transaction and a commit mean does not change: workers prepare, the driver commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.runtime.plan import MicroBatchPlan
from headrace.spark.runtime.slot_link import LinkAddress, SlotLink
from headrace.spark.runtime.stages import PythonStage, attempt_of_task

__all__ = ["ResidentStage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentStage:
    """The function passed to `mapInArrow`: pickled once per start of a slot, runs until its driver closes the link."""

    slot: int
    chains: tuple[PythonStage, ...]  # each fetches for itself
    address: LinkAddress
    # Neither is part of a plan or of a job's description: Spark's UI shows those.
    token: str = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _nothing in batches:  # the row of `spark.range` that makes this slot a Spark partition
            pass
        # The driver starts a slot again after it has resolved what the lost one left open; Spark would not wait.
        if attempt_of_task() > 0:
            raise HeadraceError("second-attempt", f"Spark ran the resident slot {self.slot} a second time")
        with SlotLink.connect(self.address, self.token, self.slot) as link:
            while (message := link.receive()) is not None:
                plan = MicroBatchPlan.from_json(message["plan"])
                # An error ends the slot: the driver reads it from the side path, and starts a slot with a new worker,
                # since neither open stores nor connections of this one can be trusted.
                link.send({"reports": [stage.run_batch(plan, self.slot).to_json() for stage in self.chains]})
        yield from ()
