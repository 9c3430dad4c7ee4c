"""Records per CPU second of single values to columns and back: ours beside a loop over Python's `struct` and `uuid`.

    python benchmarks/single_values.py [--records 100000] [--rounds 5] [--json]

Longs, doubles, booleans and UUIDs, one value in ten null. CPU time, medians.
"""

from __future__ import annotations

import random
import uuid
from functools import partial
from typing import Any

import pyarrow as pa
from codec_rates import Shape, compare

from headrace.spark.formats.scalar_reference import scalar_reader, scalar_writer
from headrace.spark.formats.scalars import decode_scalars, encode_scalars


def values(name: str, count: int) -> list[Any]:
    chance = random.Random(7)
    make: dict[str, Any] = {
        "long": lambda: chance.randrange(-(1 << 63), 1 << 63),
        "double": chance.random,
        "boolean": lambda: chance.random() < 0.5,
        "uuid": lambda: str(uuid.UUID(int=chance.getrandbits(128))),
    }
    return [make[name]() if at % 10 else None for at in range(count)]


def shape(name: str, count: int) -> Shape:
    read, write = scalar_reader(name), scalar_writer(name)
    made = values(name, count)
    written = [write(value) for value in made]
    records = pa.array(written, pa.binary())
    column, bad = decode_scalars(records, name)
    assert not bad
    assert column.to_pylist() == made
    assert encode_scalars(column, name, "value").equals(records)
    return Shape(
        [value or b"" for value in written],
        decode=lambda: decode_scalars(records, name),
        peer_decodes=lambda: [read(value) for value in written],
        encode=lambda: encode_scalars(column, name, "value"),
        peer_encodes=lambda: [write(value) for value in made],
    )


if __name__ == "__main__":
    compare(__doc__, "struct", {name: partial(shape, name) for name in ("long", "double", "boolean", "uuid")})
