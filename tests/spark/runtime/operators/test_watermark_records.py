"""Watermark records of repartition topics: recognised by their keys, read back, and never going back."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.errors import StateError
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark, is_watermark, read_watermarks
from headrace.spark.runtime.rows.rows import SCHEMA_KEY, encode_key

FIRST = UpstreamWatermark(source="clicks", task=3, tasks=8, time_us=-5, sent_ms=1_000)


def test_no_key_of_a_group_is_taken_for_a_watermark() -> None:
    text = encode_key([pa.array(["", "headrace.watermark", None, FIRST.key[2:].decode()])])
    times = encode_key([pa.array([0, None], pa.timestamp("us", "UTC")), pa.array(["a", None])])
    keys = pa.concat_arrays([text, times, pa.array([SCHEMA_KEY, None, FIRST.key], pa.binary())])
    assert is_watermark(keys).to_pylist() == [False] * 8 + [True]


def test_the_newest_of_each_task_counts_and_time_never_goes_back() -> None:
    later = replace(FIRST, time_us=70, sent_ms=2_000)
    again = replace(FIRST, time_us=60, sent_ms=3_000)
    other = replace(FIRST, task=4)
    found = read_watermarks([one.value for one in (FIRST, other, later, again)])
    assert {one.task: (one.time_us, one.sent_ms, one.first_ms) for one in found} == {
        3: (70, 3_000, 1_000),
        4: (-5, 1_000, 1_000),
    }
    assert [UpstreamWatermark.from_report(one.as_report()).time_us for one in found] == [70, -5]


@pytest.mark.parametrize("value", [b"", b"[1]", b"{}", b'{"source": "clicks"}'])
def test_a_value_that_is_no_watermark_is_refused(value: bytes) -> None:
    with pytest.raises(StateError) as caught:
        read_watermarks([value])
    assert caught.value.code == "state-corrupt"


def test_a_record_without_a_value_only_starts_a_micro_batch() -> None:
    assert read_watermarks([None, FIRST.value, None]) == read_watermarks([FIRST.value])
