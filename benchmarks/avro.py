"""Records per CPU second of Avro to columns and back: ours beside fastavro, in one process.

    python benchmarks/avro.py [--records 100000] [--rounds 5] [--json]

Records of 100 bytes: a long, a string, an optional double, a timestamp, an int and a text; and records with an array
and a map. fastavro makes a Python dictionary of each record, and its rate is that of reading and writing them alone.
CPU time, medians.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
from codec_rates import Shape, compare

from headrace.formats import Avro
from headrace.spark.formats.avro import decode_avro, encode_avro

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": ["null", "double"], "default": None},
    {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "n", "type": "int"},
]
NESTED: list[dict[str, Any]] = [
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "long"}},
]
FLAT = {"type": "record", "name": "Flat", "fields": [*FIELDS, {"name": "note", "type": "string"}]}
WITH_LISTS = {"type": "record", "name": "Lists", "fields": [*FIELDS, *NESTED]}
PLACED = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def rows(count: int, lists: bool) -> list[dict[str, Any]]:
    more: dict[str, Any] = {"tags": ["red", "large"], "counts": {"a": 1, "b": 2}} if lists else {"note": "x" * 70}
    return [
        {"id": i * 12_345, "customer": f"c{i}", "amount": i / 7 if i % 3 else None, "placed": PLACED, "n": i, **more}
        for i in range(count)
    ]


def shape(schema: dict[str, Any], lists: bool, count: int) -> Shape:
    made, parsed = rows(count, lists), fastavro.parse_schema(json.loads(json.dumps(schema)))

    def write() -> list[bytes]:
        values = []
        for row in made:
            target = io.BytesIO()
            fastavro.schemaless_writer(target, parsed, row)
            values.append(target.getvalue())
        return values

    written = write()
    values, avro = pa.array(written, pa.binary()), Avro(schema=json.dumps(schema))
    names = [field["name"] for field in schema["fields"]]
    batch, bad = decode_avro(values, avro, names)
    assert not bad
    assert encode_avro(batch, names, avro).to_pylist() == written
    return Shape(
        written,
        decode=lambda: decode_avro(values, avro, names),
        peer_decodes=lambda: [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in written],
        encode=lambda: encode_avro(batch, names, avro),
        peer_encodes=write,
    )


if __name__ == "__main__":
    compare(
        __doc__,
        "fastavro",
        {"flat": partial(shape, FLAT, False), "array and map": partial(shape, WITH_LISTS, True)},
    )
