"""Records per CPU second of Protobuf to columns and back: ours beside Google's library, in one process.

    python benchmarks/protobuf.py [--records 100000] [--rounds 5] [--json]

Records of 100 bytes: a long, a string, an optional double, a timestamp, an int and a text; and records with a list and
a map. Google's library (upb, in C) makes a message object of each record; its rate is that of parsing and serializing
alone, without reading a field. CPU time, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
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


def rate(count: int, work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return count / (time.process_time() - started)


def measured(name: str, schema: str, lists: bool, count: int, rounds: int) -> dict[str, Any]:
    made = GetMessageClass(compile_proto(schema).message_types_by_name["Value"])
    objects = messages(made, count, lists)
    written = [message.SerializeToString() for message in objects]
    values, protobuf = pa.array(written, pa.binary()), Protobuf(schema=schema)
    names = protobuf_columns(protobuf).names
    batch, bad = decode_protobuf(values, protobuf, names)
    assert not bad
    assert encode_protobuf(batch, names, protobuf).to_pylist() == written
    ways: dict[str, Callable[[], object]] = {
        "decode": lambda: decode_protobuf(values, protobuf, names),
        "Google parses": lambda: [made.FromString(value) for value in written],
        "encode": lambda: encode_protobuf(batch, names, protobuf),
        "Google serializes": lambda: [message.SerializeToString() for message in objects],
    }
    rates = {way: statistics.median(rate(count, work) for _ in range(rounds)) for way, work in ways.items()}
    return {"shape": name, "bytes": round(sum(map(len, written)) / count), **rates}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--records", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    arguments = options.parse_args()
    table = [
        measured("flat", FLAT, False, arguments.records, arguments.rounds),
        measured("list and map", WITH_LISTS, True, arguments.records, arguments.rounds),
    ]
    if arguments.json:
        print(json.dumps(table))
        return
    heads = "".join(f"{way:>13}{'Google':>11}{'ratio':>7}" for way in ("decode", "encode"))
    print(f"{'records per CPU second':24}{'bytes':>6}{heads}")
    for row in table:
        read, write = row["decode"] / row["Google parses"], row["encode"] / row["Google serializes"]
        print(
            f"{row['shape']:24}{row['bytes']:6}{row['decode']:13,.0f}{row['Google parses']:11,.0f}{read:7.1f}"
            f"{row['encode']:13,.0f}{row['Google serializes']:11,.0f}{write:7.1f}"
        )


if __name__ == "__main__":
    main()
