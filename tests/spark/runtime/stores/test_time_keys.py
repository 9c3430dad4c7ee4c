"""Keys in the order of event time: their bytes sort as their times do, and the end of a scan is exact."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.runtime.stores.time_keys import LONGEST_KEY, first_key_at, shortened_keys, timed_keys

TIMES = st.integers(-(1 << 63), (1 << 63) - 2)


@given(pairs=st.lists(st.tuples(TIMES, st.binary(max_size=12)), min_size=1, max_size=30), end=TIMES)
def test_bytes_are_in_the_order_of_time_then_key(pairs: list[tuple[int, bytes]], end: int) -> None:
    times = np.array([time for time, _ in pairs], np.int64)
    keys = timed_keys(times, pa.array([key for _, key in pairs], pa.binary())).to_pylist()
    assert [pair for _, pair in sorted(zip(keys, pairs, strict=True))] == sorted(pairs)
    assert [key < first_key_at(end) for key in keys] == [time < end for time, _ in pairs]


def test_keys_may_be_shared_by_several_times() -> None:
    keys = pa.array([b"a", b"bc"], pa.binary())
    found = timed_keys(np.array([3, 1, 2], np.int64), keys, np.array([1, 0, 1], np.int64)).to_pylist()
    assert [key[-2:] for key in found] == [b"bc", b"\x01a", b"bc"]
    assert sorted(found) == [found[1], found[2], found[0]]


def test_long_keys_become_digests_that_differ() -> None:
    long = [b"x" * LONGEST_KEY + tail for tail in (b"", b"1", b"2")]
    first, *digests = shortened_keys(pa.array(long, pa.binary())).to_pylist()
    assert first == long[0]
    assert len({*digests}) == 2
    assert all(len(digest) == 33 and digest[:1] == b"\xfe" for digest in digests)
