"""Rows whose event time is out of bounds: which are left out, and which of their records are written to a topic.

A row is late by the rule of the operator that judges it. It is ahead if its event time exceeds the timestamp of its own
record by more than a setting, which depends on no other row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.stores.byte_spans import Positions
from headrace.spark.topology.nodes import RECORD_COLUMN, DeadLetter, OutOfTime

__all__ = ["DeadRecords", "find_ahead", "without_out_of_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecords:
    """Input records of a task that an operator leaves out, for its step to write to another topic."""

    topic: str
    source_topic: str
    records: pa.Array  # structs as in `RECORD_COLUMN`, each offset once
    reasons: tuple[str, ...]


def find_ahead(times: Positions, record_times: Positions, most_ahead: int) -> NDArray[np.bool_]:
    """Return the mask of rows that do not move a watermark, as `event_time_kernels.find_late` leaves them out.

    Args:
        times: Event time of each row, `NO_TIME` where it has none. All times are in microseconds.
        record_times: Timestamp of each row's record, negative where it has none.
        most_ahead: By how much an event time may exceed the timestamp.
    """
    return (record_times >= 0) & (times > record_times + most_ahead)


def without_out_of_time(
    policies: OutOfTime,
    rows: pa.Table,
    times: Positions,
    late: NDArray[np.bool_],
    ahead: NDArray[np.bool_],
    operator: str,
) -> tuple[NDArray[np.bool_], tuple[DeadRecords, ...]]:
    """Return the mask of rows to leave out, and the records to write elsewhere.

    Args:
        policies: Those of the source.
        rows: Of one task, with `RECORD_COLUMN` where a policy needs it.
        times: Event time of each row.
        late: Mask of late rows.
        ahead: Mask of rows as of `find_ahead`.
        operator: Name of the operator's store. It is part of the reasons, so that those of two operators differ.
    """
    left_out = late if policies.ahead == "keep" else late | ahead
    found = []
    # A row that is both is late: a record from the past with the timestamp of an older one.
    for policy, mask, text in (
        (policies.late, late, f"too late for {operator}"),
        (policies.ahead, ahead & ~late, f"too far ahead of its timestamp for {operator}"),
    ):
        if not isinstance(policy, DeadLetter) or not mask.any():
            continue
        chosen = np.flatnonzero(mask)
        records = rows.column(RECORD_COLUMN).combine_chunks().take(pa.array(chosen))
        # A record that became several rows (`explode`, hopping windows) is written once.
        _, first = np.unique(records.field("offset").to_numpy(), return_index=True)
        reasons = [f"without an event time for {operator}" if times[row] == NO_TIME else text for row in chosen[first]]
        found.append(
            DeadRecords(
                topic=policy.topic,
                source_topic=policies.topic,
                records=records.take(pa.array(first)),
                reasons=tuple(reasons),
            )
        )
    return left_out, tuple(found)
