"""Traces of input records in the stages of a micro-batch: which ones are followed, and the contexts of what comes next.

A sampled record has a `traceparent` header (`headrace.protocol.trace_context`). The driver makes one span for each
context of a task's input, and output records name that span as their parent. Span ids are not exchanged: both sides
derive them from the context and the micro-batch's attempt (`span_salt`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.protocol.sampled_contexts import PARENT_BYTES, continued_contexts, sampled_rows
from headrace.spark.runtime.batches.plan import FollowedTrace, MicroBatchPlan, TaskReport

if TYPE_CHECKING:
    from headrace.array_types import BoolArray, Int64Array

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
        self._followed: dict[int, list[bytes]] = {}  # by task: their contexts, without the `tracestate`

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
        is_followed = self._follow(report, where, records.column("offset"), contexts.drop_null(), rows)
        return continued_contexts(contexts, rows[is_followed], self._salt)

    def _follow(
        self,
        report: TaskReport,
        where: tuple[str, int],
        offsets: pa.ChunkedArray,
        contexts: pa.Array,
        rows: Int64Array,
    ) -> BoolArray:
        """Return which of the sampled rows have a trace that is followed."""
        # 1. Each trace once, in the order of its first record; the number of records does not matter from here on.
        traces = pc.binary_slice(contexts, 0, PARENT_BYTES).dictionary_encode()
        of_rows = traces.indices.to_numpy()
        distinct, first, counts = np.unique(of_rows, return_index=True, return_counts=True)
        followed = self._followed.setdefault(report.partition, [])
        known = np.zeros(len(distinct), np.bool_)
        if followed:
            known = pc.is_in(traces.dictionary, pa.array(followed, pa.binary())).to_numpy(zero_copy_only=False).copy()
        # 2. Those that are followed from now on.
        fresh = np.flatnonzero(~known)[: self._most - len(followed)]
        followed += traces.dictionary.take(pa.array(fresh)).to_pylist()
        known[fresh] = True
        # 3. Their text for the report; not of the others, of which there may be many.
        for one in np.flatnonzero(known).tolist():
            at = int(first[one])
            context, offset = contexts[at].as_py().decode("latin-1"), offsets[int(rows[at])].as_py()
            report.add_trace(FollowedTrace(context, where[0], where[1], offset, int(counts[one])))
        report.unfollowed += int(counts[~known].sum())
        return known[of_rows]
