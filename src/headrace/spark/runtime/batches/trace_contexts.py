"""Traces of input records in the stages of a micro-batch: which ones are followed, and the contexts of what comes next.

A sampled record has a `traceparent` header (`headrace.protocol.trace_context`). The driver makes one span for each
context of a task's input, and output records name that span as their parent. Span ids are not exchanged: both sides
derive them from the context and the micro-batch's attempt (`span_salt`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from headrace.protocol.trace_context import SampledRecords, sampled_records
from headrace.spark.runtime.batches.plan import FollowedTrace, MicroBatchPlan, TaskReport

if TYPE_CHECKING:
    from headrace.array_types import BoolArray

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
        self._salt = span_salt(plan)
        self._followed: dict[int, Any] = {}  # by task: their contexts, as an array of 55 bytes each

    def contexts(self, report: TaskReport, where: tuple[str, int], records: pa.Table) -> pa.Array:
        """Note the traces of these records in the task's report, and return the contexts of what comes of them.

        Args:
            report: Of the task.
            where: Topic and partition of the records.
            records: With the columns offset and headers.

        Returns:
            A binary column: null for a record that is not sampled.
        """
        found = sampled_records(records.column("headers"))
        if found is None:
            return pa.nulls(records.num_rows, pa.binary())
        is_followed = self._follow(report, where, records, found)
        return found.continued(self._salt, is_followed).column(records.num_rows)

    def _follow(
        self, report: TaskReport, where: tuple[str, int], records: pa.Table, found: SampledRecords
    ) -> BoolArray:
        """Return which of the sampled rows have a trace that is followed."""
        kind = np.dtype((np.void, found.parents.shape[1]))
        parents = np.ascontiguousarray(found.parents).view(kind).ravel()
        # 1. Each trace once, in the order of its first record; the number of records does not matter from here on.
        distinct, first, of_rows = np.unique(parents, return_index=True, return_inverse=True)
        followed = self._followed.setdefault(report.partition, np.empty(0, kind))
        known = np.isin(distinct, followed)
        fresh = np.flatnonzero(~known)
        fresh = fresh[np.argsort(first[fresh])][: max(0, MOST_TRACES - len(followed))]
        # 2. Of those that are followed from now on, the text for the report.
        self._followed[report.partition] = np.concatenate([followed, distinct[fresh]])
        known[fresh] = True
        counts = np.bincount(of_rows, minlength=len(distinct))
        texts = found.contexts().take(pa.array(first))
        offsets = records.column("offset").take(pa.array(found.rows[first]))
        for one in np.flatnonzero(known).tolist():
            context = texts[one].as_py().decode("latin-1")
            trace = FollowedTrace(context, where[0], where[1], int(offsets[one].as_py()), int(counts[one]))
            report.add_trace(trace)
        report.unfollowed += int(counts[~known].sum())
        return known[of_rows]
