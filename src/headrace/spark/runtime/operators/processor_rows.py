"""Rows on their way into a stateful processor and out of it: sorted by key, as Python objects, and back as Arrow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType

from headrace.protocol.arrow_batches import murmur2_partitions
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.rows.rows import decode_key
from headrace.spark.runtime.stores.state_rows import python_column
from headrace.spark.topology.nodes import KEY_COLUMN, Transform

__all__ = [
    "ROWS_AT_ONCE",
    "GroupedRows",
    "initial_rows",
    "key_values",
    "keys_in_order",
    "output_schema",
    "record_keys",
]

ROWS_AT_ONCE = 8192  # that become Python objects together, whatever the number of their keys


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of one task and micro-batch, those of a key in one run, keys in the order of their values."""

    rows: pa.Table  # the columns that the processor sees, by their names
    keys: list[bytes]  # of each run, in the form of a record's key
    bounds: NDArray[np.int64]  # run `n` is rows `bounds[n]` to before `bounds[n + 1]`
    transform: Transform

    @classmethod
    def of(cls, transform: Transform, rows: pa.Table) -> GroupedRows:
        """Sort rows `g0.., i0..` that have `KEY_COLUMN`. Rows of a key stay in their order."""
        groups = [rows.column(f"g{at}") for at in range(len(transform.group_columns))]
        rows = rows.take(_order(groups)).combine_chunks()
        codes = rows.column(KEY_COLUMN).combine_chunks().dictionary_encode().indices.to_numpy()
        begins = np.flatnonzero(np.diff(codes, prepend=-1))
        keys = rows.column(KEY_COLUMN).take(pa.array(begins)).to_pylist()
        names = [name for name, _ in transform.row_columns]
        seen = pa.Table.from_arrays([rows.column(column) for _, column in transform.row_columns], names=names)
        return cls(seen, keys, np.append(begins, len(codes)), transform)

    def __iter__(self) -> Iterator[tuple[bytes, Iterator[Row]]]:
        """Yield each key, and its rows as PySpark's `Row`s. What is not taken of them is passed over."""
        new_row = Row(*self.rows.column_names)
        done = 0  # rows before it were made
        made: list[Row] = []
        for key, begin, end in zip(self.keys, self.bounds, self.bounds[1:], strict=False):
            # A key of few rows shares its conversion with others; one of many is converted piece by piece.
            if end - begin > ROWS_AT_ONCE:
                yield key, self._many(new_row, int(begin), int(end))
                continue
            if end > done:
                first = int(begin)
                last = int(self.bounds[np.searchsorted(self.bounds, first + ROWS_AT_ONCE, side="right") - 1])
                made, done = list(self._converted(new_row, first, max(last, int(end)))), max(last, int(end))
            start = len(made) - (done - int(begin))
            yield key, iter(made[start : start + int(end - begin)])

    def _many(self, new_row: Any, begin: int, end: int) -> Iterator[Row]:
        for at in range(begin, end, ROWS_AT_ONCE):
            yield from self._converted(new_row, at, min(at + ROWS_AT_ONCE, end))

    def _converted(self, new_row: Any, begin: int, end: int) -> Iterator[Row]:
        piece = self.rows.slice(begin, end - begin).combine_chunks()
        zone = self.transform.time_zone
        columns = [python_column(column.combine_chunks(), zone) for column in piece.columns]
        return itertools.starmap(new_row, zip(*columns, strict=True))


def _order(groups: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Return the positions of rows in the order of their groups. Rows of a group keep their order."""
    # Nulls first, by a column of their own: the option differs between releases of Arrow. The sort is stable.
    by = {f"{at} {part}": one for at, group in enumerate(groups) for part, one in _sort_columns(group)}
    return pc.sort_indices(pa.table(by), [(name, "ascending") for name in by])


def _sort_columns(column: pa.ChunkedArray) -> list[tuple[str, pa.ChunkedArray]]:
    there = [("there", column.is_valid())] if column.null_count else []
    return [*there, ("value", column)]


def keys_in_order(transform: Transform, keys: Iterable[bytes]) -> list[bytes]:
    """Return distinct keys of groups in the order in which they have their turns."""
    distinct = pa.array(dict.fromkeys(keys), pa.binary())
    groups = decode_key(distinct, [arrow_type(kind) for _, kind in transform.group_columns])
    ordered: list[bytes] = distinct.take(_order([pa.chunked_array([group]) for group in groups])).to_pylist()
    return ordered


def initial_rows(transform: Transform, partition: int, tasks: int) -> GroupedRows | None:
    """Return the rows of the initial state whose keys belong to one of `tasks` tasks; None without any."""
    assert transform.initial is not None
    rows = pa.ipc.open_stream(transform.initial.rows).read_all().combine_chunks()
    # As the producer of the repartition topic does (`Producer.send`): the state of a group is where its rows are.
    here = murmur2_partitions(rows.column(KEY_COLUMN).combine_chunks(), tasks) == partition
    rows = rows.filter(pa.array(here))
    return GroupedRows.of(replace(transform, row_columns=transform.initial.row_columns), rows) if len(rows) else None


def key_values(transform: Transform, keys: list[bytes]) -> list[tuple[Any, ...]]:
    """Return keys of groups as the processor sees them."""
    columns = decode_key(pa.array(keys, pa.binary()), [arrow_type(kind) for _, kind in transform.group_columns])
    return list(zip(*(python_column(column, transform.time_zone) for column in columns), strict=True))


def record_keys(transform: Transform, keys: list[bytes]) -> pa.Array:
    """Return the keys that records of some groups have where the sink names none: those of an aggregate."""
    from headrace.spark import formats

    types = [arrow_type(kind) for _, kind in transform.group_columns]
    names = [name for name, _ in transform.group_columns]
    batch = pa.RecordBatch.from_arrays(decode_key(pa.array(keys, pa.binary()), types), names=names)
    return formats.encode_key(batch, names)


def output_schema(struct: StructType) -> pa.Schema:
    """Return the Arrow types of a processor's rows. Raises TopologyError("not-supported-here")."""
    return pa.schema([(field.name, _arrow(field.dataType)) for field in struct.fields])


def _arrow(kind: DataType) -> pa.DataType:
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _arrow(kind.elementType)))
    if isinstance(kind, MapType):
        return pa.map_(_arrow(kind.keyType), _arrow(kind.valueType))
    if isinstance(kind, StructType):
        return pa.struct([(field.name, _arrow(field.dataType)) for field in kind.fields])
    return arrow_type(kind.json())
