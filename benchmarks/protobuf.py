"""Records per CPU second of Protobuf to columns and back: ours beside Google's library, in one process.

    python benchmarks/protobuf.py [--records 100000] [--rounds 5] [--json]

Records of 100 bytes: a long, a string, an optional double, a timestamp, an int and a text; and records with a list and
a map. Google's library (upb, in C) makes a message object of each record; its rate is that of parsing and serializing
alone, without reading a field. CPU time, medians.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
from codec_rates import Shape, compare
from google.protobuf.message_factory import GetMessageClass

from headrace.formats import Protobuf
from headrace.spark.formats.protobuf import decode_protobuf, encode_protobuf, protobuf_columns
from headrace.spark.formats.protobuf_schema import compile_proto

FIELDS = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Value {
  int64 id = 1;
  string customer = 2;
  optional double amount = 3;
  google.protobuf.Timestamp placed = 4;
  int32 n = 5;
"""
FLAT = FIELDS + "  string note = 6;\n}\n"
WITH_LISTS = FIELDS + "  repeated string tags = 6;\n  map<string, int64> counts = 7;\n}\n"


def messages(made: Any, count: int, lists: bool) -> list[Any]:
    found = []
    for i in range(count):
        message = made(id=i * 12_345, customer=f"c{i}", n=i)
        message.placed.seconds = 1_767_225_600
        if i % 3:
            message.amount = i / 7
        if lists:
            message.tags.extend(["red", "large"])
            message.counts["a"] = 1
        else:
            message.note = "x" * 70
        found.append(message)
    return found


def shape(schema: str, lists: bool, count: int) -> Shape:
    made = GetMessageClass(compile_proto(schema).message_types_by_name["Value"])
    objects = messages(made, count, lists)
    written = [message.SerializeToString() for message in objects]
    values, protobuf = pa.array(written, pa.binary()), Protobuf(schema=schema)
    names = protobuf_columns(protobuf).names
    batch, bad = decode_protobuf(values, protobuf, names)
    assert not bad
    assert encode_protobuf(batch, names, protobuf).to_pylist() == written
    return Shape(
        written,
        decode=lambda: decode_protobuf(values, protobuf, names),
        peer_decodes=lambda: [made.FromString(value) for value in written],
        encode=lambda: encode_protobuf(batch, names, protobuf),
        peer_encodes=lambda: [message.SerializeToString() for message in objects],
    )


if __name__ == "__main__":
    compare(
        __doc__,
        "Google",
        {"flat": partial(shape, FLAT, False), "list and map": partial(shape, WITH_LISTS, True)},
    )
