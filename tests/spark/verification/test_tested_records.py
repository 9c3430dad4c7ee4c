"""Rows of a test as records, and records as rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headrace.errors import TopologyError
from headrace.spark.topology.nodes import TopicSink, TopicSource, TypedKey
from headrace.spark.verification.tested_records import decode_sink_values, encode_source_rows, key_value, record_keys

SCHEMA = StructType().add("origin", "string").add("n", "integer").json()
SOURCE = TopicSource(name="flights", topics=("flights",), value_format="json", schema_json=SCHEMA)
KEYED = TopicSource(name="flights", topics=("flights",), value_format="json", schema_json=SCHEMA, key_column="origin")
TEXTS = TopicSource(
    name="texts", topics=("texts",), value_format="string", schema_json=StructType().add("value", "string").json()
)
ROW = {"origin": "JFK", "n": 1}


def test_mappings_become_json_and_bytes_stay():
    rows, values = encode_source_rows([ROW, b"\xff", "text", None, {"n": None}], SOURCE)
    assert len(rows) == 5
    first, *others = values.to_pylist()
    assert json.loads(first) == ROW
    assert others == [b"\xff", b"text", None, b'{"n":null}']


def test_arrow_rows_are_encoded_as_a_sink_writes_them():
    rows, values = encode_source_rows(pa.table({"origin": ["JFK", None]}), SOURCE)
    assert rows == [{"origin": "JFK"}, {"origin": None}]
    assert values.to_pylist() == [b'{"origin":"JFK"}', b'{"origin":null}']
    assert encode_source_rows(pa.table({"origin": pa.array([], pa.string())}), SOURCE)[1].to_pylist() == []
    assert encode_source_rows(pa.table({"value": ["a", None]}), TEXTS)[1].to_pylist() == [b"a", None]


@pytest.mark.parametrize(
    ("key", "source", "found"),
    [
        (None, SOURCE, [None, None]),
        (None, KEYED, [b"JFK", None]),
        ("n", KEYED, [b"1", b"n"]),
        (b"k", SOURCE, [b"k", b"k"]),
        (["a", None], KEYED, [b"a", None]),
        (lambda row: type(row).__name__, SOURCE, [b"dict", b"bytes"]),
    ],
)
def test_keys_are_columns_texts_functions_or_lists(key, source, found):
    assert record_keys(key, [ROW, b"raw"], source).to_pylist() == found


@pytest.mark.parametrize(
    ("rows", "source", "says"),
    [
        ([{"orgin": "JFK"}], SOURCE, 'did you mean "origin"'),
        (pa.table({"carrier": ["AA"]}), SOURCE, 'no column "carrier"'),
        (ROW, SOURCE, "a list of rows"),
        ("text", TEXTS, "a list of rows"),
        ([ROW], TEXTS, "reads string values, and a row is a dict"),
        (pa.table({"text": ["a"]}), TEXTS, "the one column value"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, source, says):
    with pytest.raises(TopologyError, match=says) as raised:
        encode_source_rows(rows, source)
    assert raised.value.fix


def test_values_are_read_by_the_sinks_format():
    texts = [b'{"n":1}', None]
    assert decode_sink_values(texts, TopicSink(topic="t")) == [{"n": 1}, None]
    assert decode_sink_values(texts, TopicSink(topic="t", value_format="string")) == ['{"n":1}', None]
    assert decode_sink_values(texts, TopicSink(topic="t", value_format="raw")) == texts
    sink = TopicSink(topic="t")
    assert [key_value(key, sink) for key in (b"a", b"\xff", None)] == ["a", b"\xff", None]


def test_typed_keys_and_single_values_are_those_of_the_rows():
    counts = TopicSource(
        name="counts",
        topics=("counts",),
        value_format="long",
        schema_json=StructType().add("id", "integer").add("value", "long").json(),
        typed_key=TypedKey(columns=("id",), format="integer"),
    )
    rows = [{"id": 1, "value": 2}, {"id": None, "value": None}, b"bad"]
    given, values = encode_source_rows(rows, counts)
    assert values.to_pylist() == [(2).to_bytes(8, "big"), None, b"bad"]
    assert record_keys(None, given, counts).to_pylist() == [b"\0\0\0\1", None, None]
    assert record_keys([7, b"x", None], given, counts).to_pylist() == [b"\0\0\0\7", b"x", None]
    table = pa.table({"id": pa.array([5], pa.int32()), "value": pa.array([6], pa.int64())})
    assert encode_source_rows(table, counts)[1].to_pylist() == [(6).to_bytes(8, "big")]
    sink = TopicSink(topic="t", value_format="long", typed_key=TypedKey(columns=("id",), format="integer"))
    assert decode_sink_values([(2).to_bytes(8, "big"), None], sink) == [2, None]
    assert key_value(b"\0\0\0\1", sink) == 1
    with pytest.raises(TopologyError, match="'one' is not a long"):
        encode_source_rows([{"value": "one"}], counts)
