"""Single values, and the partitions of keys made of them, beside Kafka's own serializers and partitioner."""

from __future__ import annotations

import json
import random
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars, skip_without_kafka

from headrace.protocol.partitioner import partition_for_key
from headrace.spark.formats.scalars import SCALARS, decode_scalars, encode_scalars

pytestmark = pytest.mark.interop

WIDTHS = {"short": 2, "integer": 4, "long": 8, "float": 4, "double": 8, "boolean": 1}
EDGES = ("0" * 16, "f" * 16, "7" + "f" * 15, "8" + "0" * 15, "7ff0000000000001", "fff8000000000123", "7f800001ffc00123")
PARTITIONS = 13


def random_bytes(seed: int, count: int) -> list[tuple[str, bytes]]:
    chance = random.Random(seed)
    found = []
    for name, width in WIDTHS.items():
        found += [(name, bytes.fromhex(edge)[:width]) for edge in EDGES]
        found += [(name, chance.randbytes(width)) for _ in range(count)]
        found += [(name, chance.randbytes(length)) for length in (0, 1, 2, 3, 4, 7, 8, 9)]
    for _ in range(count):
        text = str(uuid.UUID(bytes=chance.randbytes(16)))
        found += [("uuid", text.encode()), ("uuid", text.upper().encode()), ("uuid", text[:35].encode() + b"g")]
        found.append(("string", "".join(map(chr, chance.choices(range(0xD800), k=5))).encode()))
    return found


def answers_of_kafka(given: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
    classes = compiled(Path(__file__).parent / "java")
    lines = [json.dumps({"format": name, "hex": value.hex(), "partitions": PARTITIONS}) for name, value in given]
    command = [java(), "-cp", f"{classes}:{kafka_jars(TOOLS_VERSION)}/*", "headrace.interop.ScalarBytes"]
    ran = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_values_and_partitions_are_those_of_kafkas_serializers() -> None:
    given = random_bytes(7, 100)
    with skip_without_kafka():
        answers = answers_of_kafka(given)
    assert len(answers) == len(given)
    refused = 0
    for name in {*WIDTHS, "uuid", "string"}:
        records = [value for format_name, value in given if format_name == name]
        theirs = [answer for answer in answers if answer["format"] == name]
        column, bad = decode_scalars(pa.array(records, pa.binary()), name)
        assert [row.index for row in bad] == [at for at, answer in enumerate(theirs) if "error" in answer], name
        refused += len(bad)
        written = encode_scalars(column, name, "value").to_pylist()
        for value, mine, answer in zip(column.to_pylist(), written, theirs, strict=True):
            if "error" in answer:
                assert mine is None
                continue
            assert mine is not None
            assert mine.hex() == answer["written"], answer
            assert partition_for_key(mine, PARTITIONS) == answer["partition"]
            assert repr(value) == repr(value_of(name, answer["text"])) or SCALARS[name].noun == "a float", answer
    assert refused > 100


def value_of(name: str, text: str) -> object:
    if name in ("float", "double"):
        return float(text)
    if name == "boolean":
        return text == "true"
    return text if name in ("uuid", "string") else int(text)
