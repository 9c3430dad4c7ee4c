"""CPU seconds of the way of q5's rows through a repartition topic: with a record per row, and with partial results.

Nexmark q5 counts the bids of each auction in windows of 10 s that begin every 2 s, so each bid makes five rows. Both
ways encode keys, rows and record batches, decode them, and group them as the reader does; nothing is sent or fetched.
Equal counts are checked. One process: `python benchmarks/partial_results.py --micro-batches 20`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.protocol.arrow_encoding import encode_from_arrow
from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.operators.aggregate_operator import PartialRows
from headrace.spark.runtime.operators.partial_results import PartialResults, partial_columns
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.topology.nodes import Aggregate, Buffer, ProjectForGroup

EVENTS = 50_000  # of a micro-batch
EVENTS_PER_MS = 10
ROWS_PER_TABLE = 10_000
FINGERPRINT = b"abcd"
ROUNDS = 3

COUNT = Aggregate(
    name="n",
    group_columns=(("window", '"timestamp"'), ("auction", '"long"')),
    buffers=(Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"'),),
    results=(),
    output_schema_json="",
    changelog_topic="",
)
ROWS = (("g0", '"timestamp"'), ("g1", '"long"'))
_PROJECTION = ProjectForGroup(key_sql=(), input_sql=(), columns=ROWS, expressions=("window", "auction"))
PARTIALS, _ = partial_columns(COUNT, _PROJECTION, _PROJECTION.expressions)
Columns = Sequence[tuple[str, str]]


def rows_of(number: int, chance: np.random.Generator) -> pa.Table:
    """Return the rows of a micro-batch: each bid in its five windows. Half of the bids are for hot auctions."""
    events = number * EVENTS + np.arange(EVENTS)
    bids = events[events % 50 >= 4]  # of 50 events, one is a person and three are auctions
    last = bids // 50 * 3
    auction = np.where(chance.random(len(bids)) < 0.5, last // 100 * 100, last - chance.integers(0, 100, len(bids)))
    first_window = bids // EVENTS_PER_MS // 2000
    starts = np.concatenate([(first_window - back) * 2000 for back in range(5)])
    order = np.argsort(np.tile(np.arange(len(bids)), 5), kind="stable")
    windows = pa.array((starts * 1000)[order], pa.timestamp("us", "UTC"))
    return pa.table({"g0": windows, "g1": pa.array(np.tile(auction, 5)[order])})


def pieces_of(rows: pa.Table) -> Iterator[pa.Table]:
    for at in range(0, rows.num_rows, ROWS_PER_TABLE):
        yield rows.slice(at, ROWS_PER_TABLE)


def records_of(rows: pa.Table, columns: Columns) -> pa.Array:
    """Encode rows as the sink stage does, record batches included, and return the values."""
    rows = rows.select([name for name, _ in columns]).combine_chunks()
    values = encode_rows(rows.columns, FINGERPRINT)
    list(encode_from_arrow(encode_key(rows.select(["g0", "g1"]).columns), values, timestamps_ms=0, compression="none"))
    return values


def measure(tables: Sequence[pa.Table], *, combines: bool) -> tuple[int, float, pa.Table]:
    """Return the records, the CPU seconds of both ends, and the groups that the reader has."""
    columns = PARTIALS if combines else ROWS
    began = time.process_time()
    values = []
    for table in tables:
        if combines:
            partials = PartialResults(COUNT, ROWS, combines=True)
            made = [one for piece in pieces_of(table) for one in partials.add(piece)] + list(partials.rest())
        else:
            made = list(pieces_of(table))
        values += [records_of(piece, columns) for one in made for piece in pieces_of(one)]
    reader = PartialRows(AggregateFunctions(replace(COUNT, takes_partials=combines)))
    names = [name for name, _ in columns]
    for each in values:
        reader.add(pa.table(decode_rows(each, arrow_types(columns), FINGERPRINT), names=names))
    groups = reader.combined()
    return sum(map(len, values)), time.process_time() - began, groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=20)
    chance = np.random.default_rng(1)
    tables = [rows_of(number, chance) for number in range(parser.parse_args().micro_batches)]
    for combines in (False, True):  # compile the kernels
        measure(tables[:1], combines=combines)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    records, groups = {}, {}
    for _ in range(ROUNDS):
        for combines in (False, True):
            records[combines], cpu_s, groups[combines] = measure(tables, combines=combines)
            seconds[combines].append(cpu_s)
    by_group = [("g0", "ascending"), ("g1", "ascending")]
    assert groups[False].sort_by(by_group) == groups[True].sort_by(by_group)
    one, other = (statistics.median(seconds[combines]) for combines in (False, True))
    print(f"{sum(table.num_rows for table in tables):,} rows, {groups[True].num_rows:,} groups")
    print(f"a record per row: {records[False]:,} records, {one:.2f} CPU s")
    print(f"partial results:  {records[True]:,} records, {other:.2f} CPU s")
    print(f"ratio {one / other:.1f} (median of {ROUNDS} rounds)")


if __name__ == "__main__":
    main()
