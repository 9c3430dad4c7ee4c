"""Our Avro beside Spark's own `from_avro` and `to_avro`, in a process of its own whose Spark has spark-avro.

    python -m tests.spark.formats.avro_beside_spark JAR SCHEMAS SEED

Random schemas and rows: decoded columns must be equal, and encoded records must be the same bytes. The newest
spark-avro to be had is of 4.0.1; it runs on later versions of Spark as well.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import os
import random
import sys
import time
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.avro.functions import from_avro, to_avro

from headrace.formats import Avro
from headrace.spark.formats.avro import decode_avro, encode_avro

ROWS = 25
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class RandomSchemas:
    """Schemas that Spark and we read alike, and rows of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._names = 0

    def record(self, depth: int) -> dict[str, Any]:
        fields = [{"name": f"f{i}", "type": self.kind(depth)} for i in range(self.chance.randint(1, 5))]
        return {"type": "record", "name": self._name(), "fields": fields}

    def kind(self, depth: int) -> Any:
        nested = [self._array, self._map, self.record] if depth else []
        made = self.chance.choice([self._flat, self._flat, self._logical, self._named, *nested])(depth - 1)
        return ["null", made] if self.chance.random() < 0.4 else made

    def _name(self) -> str:
        self._names += 1
        return f"N{self._names}"

    def _flat(self, _depth: int) -> str:
        return self.chance.choice(["boolean", "int", "long", "float", "double", "bytes", "string"])

    def _logical(self, _depth: int) -> dict[str, Any]:
        times = ("timestamp-micros", "timestamp-millis", "local-timestamp-micros")
        kinds: list[dict[str, Any]] = [{"type": "long", "logicalType": time} for time in times]
        kinds.append({"type": "int", "logicalType": "date"})
        kinds.append({"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4})
        return self.chance.choice(kinds)

    def _named(self, _depth: int) -> dict[str, Any]:
        if self.chance.random() < 0.5:
            return {"type": "fixed", "name": self._name(), "size": 4}
        return {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]}

    def _array(self, depth: int) -> dict[str, Any]:
        return {"type": "array", "items": self.kind(max(depth, 0))}

    def _map(self, depth: int) -> dict[str, Any]:
        return {"type": "map", "values": self.kind(max(depth, 0))}

    def value(self, kind: Any) -> Any:
        chance = self.chance
        if isinstance(kind, list):
            return None if chance.random() < 0.3 else self.value(kind[1])
        if isinstance(kind, str):
            return self._plain(kind)
        match kind["type"]:
            case "record":
                return {field["name"]: self.value(field["type"]) for field in kind["fields"]}
            case "array":
                return [self.value(kind["items"]) for _ in range(chance.randint(0, 3))]
            case "map":
                return {f"k{i}": self.value(kind["values"]) for i in range(chance.randint(0, 3))}
            case "fixed":
                return chance.randbytes(kind["size"])
            case "enum":
                return chance.choice(kind["symbols"])
        return self._timed(kind["logicalType"])

    def _timed(self, logical: str) -> Any:
        if logical == "decimal":
            return decimal.Decimal(self.chance.randint(-(10**18) + 1, 10**18 - 1)).scaleb(-4)
        if logical == "date":
            return (EPOCH + dt.timedelta(days=self.chance.randint(-20_000, 40_000))).date()
        unit = 1000 if "millis" in logical else 1
        moment = EPOCH + dt.timedelta(microseconds=self.chance.randint(-(10**15), 4 * 10**15) // unit * unit)
        return moment.replace(tzinfo=None) if logical.startswith("local") else moment

    def _plain(self, kind: str) -> Any:
        chance = self.chance
        match kind:
            case "boolean":
                return chance.random() < 0.5
            case "int":
                return chance.choice([0, -1, 2**31 - 1, -(2**31), chance.randint(-1000, 1000)])
            case "long":
                return chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randint(-(10**6), 10**6)])
            case "float":
                return chance.choice([0.0, 1.5, -0.25, float(chance.randint(-1000, 1000)) / 8])
            case "double":
                return chance.choice([0.0, 1e300, -1e-300, chance.random()])
            case "bytes":
                return chance.randbytes(chance.randint(0, 6))
        return "".join(chance.choice("abé漢\u0000\U0001f600") for _ in range(chance.randint(0, 6)))


def plain(value: Any) -> Any:
    """A value as `collect` returns it, without Row and bytearray. Timestamps are in UTC (see `main`)."""
    if isinstance(value, Row):
        return {name: plain(value[name]) for name in value.__fields__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return bytes(value) if isinstance(value, bytearray) else value


def of_arrow(value: Any, kind: pa.DataType) -> Any:
    """A value of Arrow's `to_pylist` as `plain` has it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: of_arrow(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {key: of_arrow(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [of_arrow(item, kind.value_type) for item in value]
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def differences(spark: SparkSession, schemas: RandomSchemas) -> list[str]:
    """Compare one random schema, and return what differs."""
    schema = schemas.record(2)
    text, rows = json.dumps(schema), [schemas.value(schema) for _ in range(ROWS)]
    parsed, values = fastavro.parse_schema(json.loads(text)), []
    for row in rows:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, row)
        values.append(target.getvalue())
    names = [field["name"] for field in schema["fields"]]
    ours, bad = decode_avro(pa.array(values, pa.binary()), Avro(schema=text), names)
    assert not bad, bad
    frame = spark.createDataFrame([(i, bytearray(value)) for i, value in enumerate(values)], "i int, value binary")
    read = frame.coalesce(1).select("i", from_avro("value", text).alias("row"))
    theirs = [plain(row["row"]) for row in read.collect()]
    kinds = [ours.schema.field(name).type for name in names]
    columns = [[of_arrow(v, kind) for v in ours.column(i).to_pylist()] for i, kind in enumerate(kinds)]
    here = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    found = [f"decoded: {a} {b}" for a, b in zip(here, theirs, strict=True) if a != b][:2]
    written = [bytes(row[0]) for row in read.select(to_avro("row", json.dumps(["null", schema]))).collect()]
    mine = [b"\x02" + value for value in encode_avro(ours, names, Avro(schema=text)).to_pylist()]
    if written != mine:
        found += [f"encoded: {a!r} {b!r}" for a, b in zip(mine, written, strict=True) if a != b][:2]
    return [f"{text}: {each}" for each in found]


def main() -> int:
    jar, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.environ["TZ"] = "UTC"  # `collect` returns timestamps in the time zone of Python
    time.tzset()
    settings = {"spark.jars": jar, "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark, schemas = builder.getOrCreate(), RandomSchemas(seed)
    found = [each for _ in range(count) for each in differences(spark, schemas)]
    for each in found:
        print(each)
    print(f"{count} schemas of seed {seed}: {len(found)} differences")
    spark.stop()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
