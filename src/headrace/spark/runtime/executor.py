"""`Executor`: where the stages of a micro-batch run.

The machine decides which micro-batch runs, `CommandExecutor` plans and commits it, and an `Executor` runs its stages:

- `JobRunner`: in Python workers of Spark. A Spark job for each micro-batch, or resident slots that take one micro-batch
  after another; a micro-batch that resident slots do not take runs as a job.
- `cluster_runner.ClusterRunner`: in resident slots on the executors of a cluster.
- `in_process.InProcessExecutor`: in the calling process, without a broker, for `TopologyTest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.spark.runtime.batches.bad_record_search import BadRecord
    from headrace.spark.runtime.batches.plan import MicroBatchPlan, StageReport

__all__ = ["Executor"]


class Executor(Protocol):
    """Runs the stages of one subtopology. Nothing that it does counts before the driver has committed it."""

    def process(self, plan: MicroBatchPlan) -> list[StageReport]:
        """Run all chains of one micro-batch. Raises BatchFailed, UserCodeError (`foreachBatch`)."""

    def can_guard(self) -> bool:
        """Return whether `process_guarded` is possible."""

    def process_guarded(
        self, plan: MicroBatchPlan, *, bad_expected: bool, tick: Callable[[], None] = ...
    ) -> tuple[list[StageReport], list[BadRecord]]:
        """Run a micro-batch, and pass over records that Spark SQL cannot process. Raises BatchFailed."""

    def probe(self, plan: MicroBatchPlan) -> str | None:
        """Run the user's SQL without output. Return Spark's message if it fails, else None."""

    def find_bad_records(
        self, plan: MicroBatchPlan, *, most: int, thorough: bool, tick: Callable[[], None] = ...
    ) -> list[BadRecord]:
        """Return records of a plan that Spark SQL cannot process, in order of their tasks. Raises BatchFailed."""

    def trace_records(self, plan: MicroBatchPlan, code: str) -> list[BadRecord]:
        """Return records of a plan on which an aggregate or a sink fails. Writes nothing. Raises BatchFailed."""

    def restore(self, plan: MicroBatchPlan, *, gives_up: Callable[[], bool] = ...) -> list[StageReport]:
        """Bring the stores of the plan's tasks to their committed positions. Raises BatchFailed."""
