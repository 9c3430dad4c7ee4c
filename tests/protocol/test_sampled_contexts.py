"""Trace contexts found in record batches, compared with a plain decoder that reads one record after another."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.arrow_batches import decode_to_arrow
from headrace.protocol.record_batches import CorruptBatch, PlainRecord, build_batch, decode_records, encode_batch
from headrace.protocol.sampled_contexts import TraceSet, continued_contexts, row_offsets, sampled_rows
from headrace.protocol.trace_context import headers_with_contexts, sampled_records

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VALID = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)


def contexts_of(batches, **decoding):
    return decode_to_arrow(batches, columns=("offset", "trace_context"), **decoding).table.to_pydict()


def plain_context(headers):
    """Return the context of one record, by the words of the W3C's page."""
    last = dict(headers)
    found = VALID.fullmatch(last.get("traceparent") or b"")
    if found is None or (found[1] == b"00" and found[5]) or not int(found[4], 16) & 1:
        return None
    state = last.get("tracestate") or b""
    flags = b"%02x" % (int(found[4], 16) & 3)
    return b"-".join([b"00", found[2], found[3], flags]) + (state if len(state) <= 512 else b"")


# A header as it lies in a record, for places where it is none.
wire = bytes([22]) + b"traceparent" + bytes([110]) + PARENT
near = st.builds(
    lambda text, at, byte: text[:at] + bytes([byte]) + text[at + 1 :],
    st.sampled_from([PARENT, OTHER, PARENT + b"-x", b"01" + PARENT[2:] + b"-x", PARENT[:3] + b"0" * 32 + PARENT[35:]]),
    st.integers(0, 58),
    st.sampled_from(b"0123456789abcdefABg-"),
)
parents = st.one_of(st.sampled_from([PARENT, OTHER, PARENT[:-1] + b"0", PARENT[:-2] + b"ff"]), near, st.none())
texts = st.one_of(
    st.sampled_from([wire, wire * 2, b"\x02" + wire, b"traceparent", PARENT, b"k=v", b"v" * 512, b"v" * 513]),
    st.binary(max_size=70),
)
header = st.one_of(
    st.tuples(st.just("traceparent"), parents),
    st.tuples(
        st.sampled_from(["tracestate", "traceparent", "xtraceparent", "traceparentx", "Traceparent", "", "tracestata"]),
        st.one_of(texts, st.none()),
    ),
    st.tuples(st.sampled_from([wire.decode("latin-1"), "traceparent" + PARENT.decode()]), texts),
)
record = st.builds(
    PlainRecord,
    key=st.one_of(st.none(), texts),
    value=st.one_of(st.none(), texts),
    headers=st.one_of(st.just(()), st.lists(header, max_size=4).map(tuple)),
)
batch = st.tuples(st.lists(record, min_size=1, max_size=12), st.sampled_from(["none", "lz4"]))


@settings(max_examples=150, deadline=None)
@given(st.lists(batch, min_size=1, max_size=3), st.integers(0, 12), st.integers(0, 40))
def test_contexts_are_those_of_a_plain_decoder(batches, first, last):
    data, base = b"", 0
    for records, codec in batches:
        data += encode_batch(records, compression=codec, base_offset=base)
        base += len(records)
    expected = {
        found.offset: plain_context(found.headers) for found in decode_records(data) if first <= found.offset < last
    }
    table = decode_to_arrow(
        data, start_offset=first, end_offset=max(first, last), columns=("offset", "headers", "trace_context")
    ).table
    contexts = table.column("trace_context")
    contexts.validate(full=True)
    assert dict(zip(table.column("offset").to_pylist(), contexts.to_pylist(), strict=True)) == expected
    # 1. The decoded headers have the same ones.
    decoded = sampled_records(table.column("headers"))
    rows = sampled_rows(contexts)
    assert rows.tolist() == ([] if decoded is None else decoded.rows.tolist())
    assert contexts.drop_null().to_pylist() == ([] if decoded is None else decoded.contexts().to_pylist())
    # 2. Headers for records that carry them on are read with the same contexts; behind a filter, too.
    kept = contexts.filter(pa.array([offset % 2 == 0 for offset in expected], pa.bool_()))
    for column in (contexts, kept):
        written = headers_with_contexts(column)
        read = (
            [] if written is None else [plain_context([pair.values() for pair in row]) for row in written.to_pylist()]
        )
        assert read == (column.to_pylist() if written is not None else [])
        assert written is not None or column.null_count == len(column)
    # 3. A span id changes in the chosen rows, and nothing else does.
    chosen = rows[::2]
    changed = continued_contexts(contexts, chosen, 0xDEADBEEF)
    changed.validate(full=True)
    for row, (before, after) in enumerate(zip(contexts.to_pylist(), changed.to_pylist(), strict=True)):
        if row in chosen:
            before = before[:36] + b"%016x" % (int(before[36:52], 16) ^ 0xDEADBEEF) + before[52:]
        assert before == after


def test_bytes_of_a_header_in_keys_and_values_are_no_header():
    inside = PlainRecord(key=wire, value=wire + wire, headers=(("a", wire), (wire.decode("latin-1"), PARENT)))
    real = PlainRecord(key=b"k", value=b"v", headers=(("traceparent", PARENT), ("tracestate", b"k=v")))
    data = encode_batch([inside, real, inside, PlainRecord(value=b"")])
    assert contexts_of(data)["trace_context"] == [None, PARENT + b"k=v", None, None]
    # Contexts stay with their offsets where a reader begins in the middle of a batch.
    assert contexts_of(data, start_offset=1, end_offset=3) == {
        "offset": [1, 2],
        "trace_context": [PARENT + b"k=v", None],
    }


def test_sliced_columns_continue_at_their_own_rows():
    contexts = pa.array([None, PARENT, None, OTHER + b"a=1", PARENT], pa.binary())[1:]
    changed = continued_contexts(contexts, np.array([2]), 1)
    assert changed.to_pylist() == [PARENT, None, OTHER[:51] + b"0" + OTHER[52:] + b"a=1", PARENT]
    assert contexts.to_pylist() == [PARENT, None, OTHER + b"a=1", PARENT]  # which other columns may share
    assert continued_contexts(contexts, np.empty(0, np.int64), 1) is contexts


def test_malformed_headers_are_refused_with_their_offset():
    section = bytearray(
        decode_section(encode_batch([PlainRecord(value=b"a"), PlainRecord(headers=(("a", b"xy"),), value=b"b")]))
    )
    at = section.index(b"\x02a\x04xy")
    section[at + 2] = 126  # a value that is longer than its record
    broken = build_batch(bytes(section), records_count=2, base_timestamp=0, max_timestamp=0, base_offset=7)
    with pytest.raises(CorruptBatch, match="headers of the record at offset 8 are malformed"):
        contexts_of(broken)


def decode_section(data):
    return data[61:]  # behind the header of a batch


def test_offsets_of_rows_with_sizes():
    assert row_offsets(np.array([1, 3]), np.array([5, 2]), 5).tolist() == [0, 0, 5, 5, 7, 7]
    assert row_offsets(np.array([0]), np.array([4]), 1).tolist() == [0, 4]
    assert row_offsets(np.empty(0, np.int64), np.empty(0, np.int64), 3).tolist() == [0, 0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.lists(st.lists(st.none() | st.integers(0, 6), max_size=10), min_size=1, max_size=3))
def test_a_set_holds_the_first_traces_up_to_its_limit(most, batches):
    traces = TraceSet(most)
    expected: list[bytes] = []
    for numbers in batches:
        # Contexts that differ in their first or in their last bytes, and states that do not count.
        texts = [n if n is None else b"00-%032x-%016x-01" % (1 + n // 3 << 120, 1 + n % 3) for n in numbers]
        column = pa.array([text and text + b"k=v" * (at % 2) for at, text in enumerate(texts)], pa.binary())
        rows = sampled_rows(column)
        is_in, first, counts = traces.add(column, rows)
        for text in texts:
            if text is not None and text not in expected and len(expected) < most:
                expected.append(text)
        assert [texts[row] for row in rows[is_in]] == [text for text in texts if text in expected]
        found = [text for text in expected if text in texts]
        assert [(texts[row], row) for row in first] == [(text, texts.index(text)) for text in found]
        assert counts.tolist() == [texts.count(text) for text in found]
