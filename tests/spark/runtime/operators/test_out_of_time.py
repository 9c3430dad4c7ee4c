"""Rows out of time: which are left out, which records are written elsewhere, and why."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME, find_late
from headrace.spark.runtime.operators.out_of_time import find_ahead, without_out_of_time
from headrace.spark.topology.nodes import RECORD_COLUMN, DeadLetter, OutOfTime

DELAY, AHEAD = 10, 50
POLICIES = st.sampled_from(["drop", DeadLetter("late")])
AHEAD_POLICIES = st.sampled_from(["keep", "drop", DeadLetter("ahead")])
# (offset of the record, its timestamp, event time): a record may become several rows.
ROWS = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from([-1, 0, 40]), st.one_of(st.none(), st.integers(0, 120))), max_size=20
)


@given(ROWS, POLICIES, AHEAD_POLICIES)
def test_each_record_that_is_left_out_is_written_once_by_its_policy(found, late, ahead):
    found = sorted(found, key=lambda row: row[0])
    policies = OutOfTime(topic="clicks", late=late, ahead=ahead)
    times = np.array([NO_TIME if row[2] is None else row[2] for row in found], np.int64)
    stamps = np.array([row[1] for row in found], np.int64)
    kind = pa.struct([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
    records = [{"offset": row[0], "key": None, "value": b"%d" % row[0]} for row in found]
    rows = pa.table({RECORD_COLUMN: pa.array(records, kind)})
    is_late, _ = find_late(times, stamps, NO_TIME, DELAY, AHEAD)
    left_out, dead = without_out_of_time(policies, rows, times, is_late, find_ahead(times, stamps, AHEAD), "unique")

    # 1. The same by plain rules.
    newest, wanted, letters = None, [], set()
    for offset, stamp, time in found:
        too_late = time is None or (newest is not None and time < newest - DELAY)
        too_far = time is not None and stamp >= 0 and time > stamp + AHEAD
        if time is not None and not too_far:
            newest = time if newest is None else max(newest, time)
        wanted.append(too_late or (too_far and ahead != "keep"))
        if too_late and isinstance(late, DeadLetter):
            letters.add(("late", offset))
        elif too_far and not too_late and isinstance(ahead, DeadLetter):
            letters.add(("ahead", offset))
    assert left_out.tolist() == wanted
    written = [(one.topic, record["offset"]) for one in dead for record in one.records.to_pylist()]
    assert sorted(written) == sorted(letters)
    assert all(one.source_topic == "clicks" and len(one.reasons) == len(one.records) for one in dead)


def test_a_row_without_record_needs_no_policy():
    late = np.array([True, False])
    left_out, dead = without_out_of_time(OutOfTime(), pa.table({"a": [1, 2]}), np.zeros(2, np.int64), late, ~late, "w")
    assert left_out.tolist() == [True, False]
    assert dead == ()
