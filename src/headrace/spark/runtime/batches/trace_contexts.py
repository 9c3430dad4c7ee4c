"""Traces of input records in the stages of a micro-batch: which ones are followed, and the contexts of what comes next.

A sampled record has a `traceparent` header (`headrace.protocol.trace_context`). The driver makes one span for each
context of a task's input, and output records name that span as their parent. Span ids are not exchanged: both sides
derive them from the context and the micro-batch's attempt (`span_salt`).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import xxhash

from headrace.protocol.sampled_contexts import TraceSet, continued_contexts, sampled_rows
from headrace.spark.runtime.batches.plan import FollowedTrace, MicroBatchPlan, TaskReport

__all__ = ["MOST_TRACES", "TraceFollower", "span_salt"]

# Of one task in one micro-batch. Records of further traces pass on the context that they came with: no span of this
# application stands between, and no trace breaks. More spans would make the cost depend on the producers' sampling.
MOST_TRACES: Final = 32


def span_salt(plan: MicroBatchPlan) -> int:
    """Return the number that turns span ids of input contexts into those of this attempt's spans."""
    batch = plan.batch
    attempt = f"{plan.group_id}/{plan.subtopology_id}/{batch.incarnation}/{batch.batch_id}/{batch.attempt}"
    return xxhash.xxh3_64_intdigest(attempt.encode())


class TraceFollower:
    """Contexts of the records that one fetch step reads. Mutable: the traces that are followed, by task."""

    def __init__(self, plan: MicroBatchPlan) -> None:
        self._salt, self._most = span_salt(plan), plan.most_traces
        self._followed: dict[int, TraceSet] = {}  # by task

    def contexts(self, report: TaskReport, where: tuple[str, int], records: pa.Table) -> pa.Array:
        """Note the traces of these records in the task's report, and return the contexts of what comes of them.

        Args:
            report: Of the task.
            where: Topic and partition of the records.
            records: With the columns offset and trace_context.

        Returns:
            A binary column: null for a record that is not sampled.
        """
        column = records.column("trace_context")
        contexts = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        rows = sampled_rows(contexts)
        if not len(rows):
            return contexts
        followed = self._followed.setdefault(report.partition, TraceSet(self._most))
        is_followed, first, counts = followed.add(contexts, rows)
        offsets = records.column("offset")
        for row, count in zip(first.tolist(), counts.tolist(), strict=True):  # 32 at most
            context = contexts[row].as_py().decode("latin-1")
            report.add_trace(FollowedTrace(context, where[0], where[1], offsets[row].as_py(), count))
        report.unfollowed += len(rows) - int(counts.sum())
        return continued_contexts(contexts, rows[is_followed], self._salt)
