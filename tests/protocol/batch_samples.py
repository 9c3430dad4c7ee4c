"""Records for tests: hypothesis strategies, and ways to number a run of batches."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from headrace.protocol.arrow_batches import HEADERS_TYPE
from headrace.protocol.record_batches import PlainRecord, assign_offsets, iter_batch_headers

NOW_MS = 1_700_000_000_000

some_bytes = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 200))
some_headers = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=6), st.one_of(st.none(), st.binary(max_size=9))),
    max_size=3,
).map(tuple)
some_records = st.lists(
    st.builds(
        PlainRecord,
        key=some_bytes,
        value=some_bytes,
        timestamp_ms=st.integers(NOW_MS - 10**6, NOW_MS + 10**12),
        headers=some_headers,
    ),
    min_size=1,
    max_size=30,
)


def numbered(batches: list[bytes], base_offset: int = 0) -> bytes:
    """The batches one behind the other, as a log would number them."""
    log = bytearray()
    for batch in batches:
        changeable = bytearray(batch)
        assign_offsets(changeable, base_offset, 0)
        (header,) = iter_batch_headers(changeable)
        base_offset = header.next_offset
        log += changeable
    return bytes(log)


def table_of(records: list[PlainRecord]) -> pa.RecordBatch:
    """The records as decoding gives them."""
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": pa.array([record.timestamp_ms for record in records], pa.int64()),
        "headers": pa.array(
            [[{"key": key, "value": value} for key, value in record.headers] for record in records], HEADERS_TYPE
        ),
    }
    return pa.record_batch(columns)
