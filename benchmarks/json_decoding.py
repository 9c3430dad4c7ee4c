"""Records per CPU second of the three ways in which a JSON record becomes columns.

    python benchmarks/json_decoding.py [--records 20000] [--rounds 5] [--json]

`spark/formats/json_decoding.py` tries a compiled pass first, gives doubtful records to pyarrow's reader, and the rest
to the reader of single records. Each shape of record is decoded twice, alternating: as the product does it, and without
pyarrow's reader (the middle way). The ratio is the value of that way. One process, CPU time, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from headrace.spark.formats.json_decoding import _JsonDecoder

FLAT = StructType([StructField("k", StringType()), StructField("n", LongType()), StructField("x", DoubleType())])
INNER = StructType([StructField("a", LongType()), StructField("b", ArrayType(StringType()))])
NESTED = StructType([*FLAT.fields, StructField("inner", INNER)])
# Name of the shape, its schema, and the fields in which record number i differs from a flat one.
SHAPES: tuple[tuple[str, StructType, Callable[[int], dict[str, Any]]], ...] = (
    ("flat", FLAT, lambda i: {}),
    ("an escape in 1 % of records", FLAT, lambda i: {} if i % 100 else {"k": f'a"{i}'}),
    ("an escape in every record", FLAT, lambda i: {"k": f'a"{i}'}),
    ("a nested struct and a list", NESTED, lambda i: {"inner": {"a": i, "b": ["x", "y"]}}),
)


def records(count: int, differing: Callable[[int], dict[str, Any]]) -> Iterator[bytes]:
    for i in range(count):
        yield json.dumps({"k": f"k{i % 1000}", "n": i, "x": i / 7, **differing(i)}).encode()


def rate(decoder: _JsonDecoder, values: pa.Array) -> float:
    """Return the records that `decoder` reads in one CPU second."""
    started = time.process_time()
    _, bad = decoder.decode(values, None)
    assert not bad, bad[0]
    return len(values) / (time.process_time() - started)


def measured(count: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for shape, schema, differing in SHAPES:
        values = pa.array(list(records(count, differing)), pa.binary())
        whole, without = _JsonDecoder(schema, "UTC"), _JsonDecoder(schema, "UTC")
        without._vectorised = False
        rates: dict[str, list[float]] = {"whole": [], "without": []}
        for turn in range(rounds + 1):
            for name, decoder in (("whole", whole), ("without", without)):
                found = rate(decoder, values)
                if turn:  # the first turn compiles
                    rates[name].append(found)
        ways = {name: statistics.median(found) for name, found in rates.items()}
        rows.append({"shape": shape, **ways, "ratio": ways["whole"] / ways["without"]})
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--records", type=int, default=20_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    arguments = options.parse_args()
    rows = measured(arguments.records, arguments.rounds)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'records per CPU second':32}{'as it is':>12}{'without pyarrow':>18}{'ratio':>8}")
    for row in rows:
        print(f"{row['shape']:32}{row['whole']:12,.0f}{row['without']:18,.0f}{row['ratio']:8.1f}")


if __name__ == "__main__":
    main()
