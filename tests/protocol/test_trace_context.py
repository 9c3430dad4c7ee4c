"""Trace contexts in columns of headers, compared with OpenTelemetry's own propagator record by record."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.protocol.arrow_batches import HEADERS_TYPE, decode_to_arrow, encode_from_arrow
from headrace.protocol.trace_context import headers_with_contexts, headers_with_one_context, sampled_records

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def column(*rows):
    return pa.array([row and [{"key": k, "value": v} for k, v in row] for row in rows], HEADERS_TYPE)


def found_in(headers):
    found = sampled_records(headers)
    return {} if found is None else dict(zip(found.rows.tolist(), found.contexts().to_pylist(), strict=True))


def test_sampled_rows_are_found_among_others():
    headers = column(
        None,
        [],
        [("a", b"x"), ("traceparent", PARENT)],
        [("traceparent", PARENT[:-1] + b"0")],
        [("tracestate", b"k=v"), ("traceparent", OTHER)],
        [("traceparent", None)],
        [("tracestate", b"z=v")],
    )
    assert found_in(headers) == {2: PARENT, 4: OTHER + b"k=v"}
    assert found_in(headers[3:]) == {1: OTHER + b"k=v"}
    assert found_in(pa.chunked_array([headers[:3], headers[3:]])) == {2: PARENT, 4: OTHER + b"k=v"}
    assert sampled_records(column(None, [], [("a", b"x")])) is None
    assert sampled_records(headers[:0]) is None


def test_the_last_header_of_a_name_counts():
    assert found_in(column([("traceparent", b"no"), ("traceparent", PARENT), ("tracestate", b"a=1")])) == {
        0: PARENT + b"a=1"
    }
    assert found_in(column([("traceparent", PARENT), ("traceparent", b"no")])) == {}


def test_later_versions_are_read_as_version_00_and_unknown_flags_are_dropped():
    later = b"cc" + PARENT[2:-2] + b"ff"
    assert found_in(column([("traceparent", later)])) == {0: PARENT[:-2] + b"03"}
    assert found_in(column([("traceparent", later + b"-what.comes")])) == {0: PARENT[:-2] + b"03"}
    assert found_in(column([("traceparent", later + b".what")])) == {}
    assert found_in(column([("traceparent", PARENT + b"-more")])) == {}
    assert found_in(column([("traceparent", b"ff" + PARENT[2:])])) == {}


def test_long_trace_states_are_dropped():
    assert found_in(column([("traceparent", PARENT), ("tracestate", b"k=" + b"v" * 510)])) == {
        0: PARENT + b"k=" + b"v" * 510
    }
    assert found_in(column([("traceparent", PARENT), ("tracestate", b"k=" + b"v" * 511)])) == {0: PARENT}


def test_headers_are_appended_to_those_of_the_rows():
    contexts = pa.array([None, PARENT, OTHER + b"a=1"], pa.binary())
    own = column([("a", b"1"), ("b", None)], [("c", b"2")], None)
    assert headers_with_contexts(contexts, own) == column(
        [("a", b"1"), ("b", None)],
        [("c", b"2"), ("traceparent", PARENT)],
        [("traceparent", OTHER), ("tracestate", b"a=1")],
    )
    assert headers_with_contexts(contexts) == column(
        [], [("traceparent", PARENT)], [("traceparent", OTHER), ("tracestate", b"a=1")]
    )
    assert headers_with_contexts(contexts[:1], own[:1]) is not None
    assert headers_with_contexts(contexts[:1]) is None


def test_one_context_spares_the_rows_with_a_trace_of_their_own():
    own = column([("traceparent", OTHER)], [("a", b"1")], None)
    assert headers_with_one_context(PARENT, 3, own) == column(
        [("traceparent", OTHER)], [("a", b"1"), ("traceparent", PARENT)], [("traceparent", PARENT)]
    )
    assert headers_with_one_context(PARENT + b"k=v", 2) == column(
        *[[("traceparent", PARENT), ("tracestate", b"k=v")]] * 2
    )


def test_headers_pass_through_record_batches():
    headers = headers_with_contexts(pa.array([None, PARENT], pa.binary()))
    [batch] = encode_from_arrow(None, pa.array([b"a", b"b"]), timestamps_ms=0, headers=headers)
    assert found_in(decode_to_arrow(batch).table.column("headers")) == {1: PARENT}


_digits = st.sampled_from(b"0123456789abcdefABg-")
_near = st.builds(
    lambda text, at, byte: text[:at] + bytes([byte]) + text[at + 1 :],
    st.sampled_from([PARENT, OTHER, PARENT + b"-x", b"01" + PARENT[2:] + b"-x", PARENT[:3] + b"0" * 32 + PARENT[35:]]),
    st.integers(0, 58),
    _digits,
)
_header = st.one_of(
    st.tuples(st.just("traceparent"), st.one_of(_near, st.sampled_from([PARENT, OTHER]), st.binary(max_size=60))),
    st.tuples(st.sampled_from(["a", "tracestate"]), st.sampled_from([b"k=v", b"x"])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), st.lists(_header, max_size=3)), max_size=8))
def test_rows_are_those_that_opentelemetry_finds(rows):
    expected = {}
    for number, row in enumerate(rows):
        carrier = {name: value.decode("latin-1") for name, value in row or () if name == "traceparent"}
        context = get_current_span(TraceContextTextMapPropagator().extract(carrier, Context())).get_span_context()
        if context.is_valid and context.trace_flags.sampled:
            expected[number] = (context.trace_id, context.span_id)
    found = {row: (int(text[3:35], 16), int(text[36:52], 16)) for row, text in found_in(column(*rows)).items()}
    assert found == expected
