"""JSON records to columns: all at once where that is safe, record by record where it is not.

Flat schemas are read by one compiled pass (`json_columns`), which says of each record whether it is sure; all others
take the next way. pyarrow's reader is four times as fast as Spark's, but it reads lines, stops at the first bad one,
its timestamps are not Spark's, and it takes NaN and Infinity for numbers. So records are joined to lines only when each
begins with `{`, ends with `}` and holds neither a line break (then every line yields at least one row, and equal counts
mean one each) nor these words; timestamps and dates are read as text and parsed by Spark's rules; and a block that does
not read is halved until the offending records stand alone, which `json_values` reads or refuses one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.spark.formats.arrow_types import INSTANT, arrow_schema, children
from headrace.spark.formats.instants import dates, instants
from headrace.spark.formats.json_columns import JsonColumns
from headrace.spark.formats.json_values import BadRow, NotOfSchema, excerpt, row_of
from headrace.spark.formats.schemas import struct_of

_SMALLEST_BLOCK = 32
_LARGEST_BLOCK_BYTES = 1 << 30
_ODD = (b"\n", b"\r", b"NaN", b"Inf")
# Types that pyarrow reads as Spark does; a schema with any other is read by `json_columns`, or row by row.
_READ_AT_ONCE = (BooleanType, ShortType, IntegerType, LongType, DoubleType, StringType)


def decode_json(
    values: pa.Array, schema_json: str, zone_name: str, wanted: Sequence[str] | None = None
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Decode JSON values into one row per value, in order, and return the values that do not decode.

    Rows of undecodable and of null values are null. Whether a value decodes depends on the schema alone, never on
    `wanted`.

    Args:
        values: Binary record values.
        schema_json: The Spark schema as JSON.
        zone_name: Time zone for timestamps without one.
        wanted: The columns to build; None for all.
    """
    return _decoder(schema_json, zone_name).decode(values, wanted)


@lru_cache(maxsize=64)
def _decoder(schema_json: str, zone_name: str) -> _JsonDecoder:
    return _JsonDecoder(struct_of(schema_json), zone_name)


class _JsonDecoder:
    def __init__(self, schema: StructType, zone_name: str) -> None:
        self._schema = schema
        self._zone = zone_name
        self._target = arrow_schema(schema)
        self._timed = {f.name: f.dataType for f in schema.fields if isinstance(f.dataType, (DateType, TimestampType))}
        self._read = pa.schema(
            [pa.field(f.name, pa.string() if f.name in self._timed else f.type) for f in self._target]
        )
        self._vectorised = all(f.name in self._timed or _is_read_at_once(f.dataType) for f in schema.fields)
        self._columns = JsonColumns(schema, zone_name) if JsonColumns.can_read(schema) else None

    def decode(self, values: pa.Array, wanted: Sequence[str] | None) -> tuple[pa.RecordBatch, list[BadRow]]:
        names = self._target.names if wanted is None else list(wanted)
        everything = np.arange(len(values))
        pieces: list[tuple[np.ndarray, pa.Table]] = []
        if self._columns is not None:
            # 1. The compiled scanner. Usually no record is odd, and this is all.
            batch, odd = self._columns.read(values, names)
            if not odd.any():
                return batch, []
            if names:  # a batch without columns has no length
                pieces.append((everything[~odd], pa.Table.from_batches([batch]).filter(pa.array(~odd))))
            everything = everything[odd]
        bad: list[BadRow] = []
        # 2. pyarrow's reader for the rest, 3. record by record for what it refuses.
        for rows, table in self._uncertain(values, everything, bad):
            pieces.append((rows, table.select(names)))
        if not names:
            return pa.RecordBatch.from_arrays([], names=[]), bad
        return self._in_order(pieces, names, len(values)), bad

    def _uncertain(
        self, values: pa.Array, rows: np.ndarray, bad: list[BadRow]
    ) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Decode the rows that the compiled scanner called odd: together where possible, else one by one."""
        if not len(rows):
            return
        if self._vectorised:
            regular = _regular(values if len(rows) == len(values) else values.take(pa.array(rows)))
        else:
            regular = np.zeros(len(rows), np.bool_)
        alone = [rows[~regular]]
        for block, table, odd in self._blocks(values, rows[regular]):
            if table is None:
                alone.append(block)
                continue
            if odd.any():
                alone.append(block[odd])
                block, table = block[~odd], table.filter(pa.array(~odd))
            yield block, table
        remaining = np.sort(np.concatenate(alone))
        if len(remaining):
            yield remaining, self._one_by_one(values, remaining, bad)

    def _blocks(self, values: pa.Array, rows: np.ndarray) -> Iterator[tuple[np.ndarray, pa.Table | None, np.ndarray]]:
        """Yield (rows, their columns or None if they must be decoded one by one, the rows that must be)."""
        pending = [rows] if len(rows) else []
        while pending:
            block = pending.pop()
            found = self._at_once(values if len(block) == len(values) else values.take(pa.array(block)))
            if found is not None:
                yield block, *found
            elif len(block) <= _SMALLEST_BLOCK:
                yield block, None, np.zeros(0, np.bool_)
            else:
                # A block that fails names no line. Halving isolates k bad records in about k * log2(n / 32) reads;
                # blocks of 32 records and less are read one by one.
                middle = len(block) // 2
                pending += [block[middle:], block[:middle]]

    def _at_once(self, values: pa.Array) -> tuple[pa.Table, np.ndarray] | None:
        if values.nbytes > _LARGEST_BLOCK_BYTES:
            return None
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), b"\n")[0]
        try:
            values.cast(pa.string())  # refuses what is not UTF-8
            table = pj.read_json(
                pa.BufferReader(joined.as_buffer()),
                read_options=pj.ReadOptions(use_threads=False, block_size=max(1 << 16, len(joined.as_buffer()) + 1)),
                parse_options=pj.ParseOptions(explicit_schema=self._read, unexpected_field_behavior="ignore"),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return None
        # Each line yields at least one row, so equal counts mean exactly one each: no record was two objects, none was
        # empty.
        if table.num_rows != len(values):
            return None
        return self._timed_columns(table.select(self._read.names))

    def _timed_columns(self, table: pa.Table) -> tuple[pa.Table, np.ndarray]:
        odd = np.zeros(table.num_rows, np.bool_)
        columns = []
        for field in self._target:
            column = table.column(field.name)
            if field.name in self._timed:
                texts = column.combine_chunks()
                parsed, wrong = instants(texts, self._zone) if field.type == INSTANT else dates(texts)
                odd |= wrong.to_numpy(zero_copy_only=False)
                columns.append(parsed)
            else:
                columns.append(column.combine_chunks().cast(field.type))
        return pa.Table.from_arrays(columns, schema=self._target), odd

    def _one_by_one(self, values: pa.Array, rows: np.ndarray, bad: list[BadRow]) -> pa.Table:
        found: list[dict[str, Any]] = []
        for row in rows.tolist():
            value = values[row].as_py()
            if value is None:
                found.append({})
                continue
            try:
                found.append(row_of(value, self._schema, self._zone))
            except NotOfSchema as error:
                bad.append(BadRow(row, str(error), excerpt(value)))
                found.append({})
        columns = [pa.array([row.get(field.name) for row in found], field.type) for field in self._target]
        return pa.Table.from_arrays(columns, schema=self._target)

    def _in_order(self, pieces: list[tuple[np.ndarray, pa.Table]], names: list[str], count: int) -> pa.RecordBatch:
        schema = pa.schema([self._target.field(name) for name in names])
        table = pa.concat_tables([piece for _, piece in pieces]) if pieces else schema.empty_table()
        if len(pieces) > 1:
            # Pieces were decoded apart; a stable sort by row number brings them back into the order of the log.
            order = np.argsort(np.concatenate([rows for rows, _ in pieces]), kind="stable")
            table = table.take(pa.array(order))
        columns = [column.combine_chunks() for column in table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        assert batch.num_rows == count
        return batch


def _is_read_at_once(kind: DataType) -> bool:
    if isinstance(kind, (StructType, ArrayType)):
        return all(map(_is_read_at_once, children(kind)))
    return isinstance(kind, _READ_AT_ONCE)


def _regular(values: pa.Array) -> np.ndarray:
    """Return the mask of values that are one line from `{` to `}`, without words that pyarrow reads as numbers."""
    lengths = pc.binary_length(values)
    whole = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
    whole = pc.and_(whole, pc.greater(lengths, 1))
    for odd in _occurring(values, _ODD):
        whole = pc.and_(whole, pc.invert(pc.match_substring(values, odd)))
    return pc.fill_null(whole, False).to_numpy(zero_copy_only=False)


def _occurring(values: pa.Array, wanted: Sequence[bytes]) -> list[bytes]:
    """Return the words of `wanted` that occur in any value.

    All bytes are searched at once: a search of each value took half of the decoding time.
    """
    data = values.buffers()[2]
    if data is None or len(values) == 0:
        return []
    width = np.dtype(np.int64 if pa.types.is_large_binary(values.type) else np.int32)
    offsets = np.frombuffer(values.buffers()[1], width, len(values) + 1, values.offset * width.itemsize)
    text = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()
    return [found for found in wanted if found in text]
