"""Rows of a test as records, and records as rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headrace.errors import TopologyError
from headrace.spark.topology.nodes import TopicSink, TopicSource
from headrace.spark.verification.tested_records import decode_sink_values, encode_source_rows, key_text, record_keys

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
    assert (key_text(b"a"), key_text(b"\xff"), key_text(None)) == ("a", b"\xff", None)
