"""Stored rows of one program as rows of another one that groups by the same columns.

Partial results that both keep are taken over, by name; those that only the new one keeps begin as an aggregate of
nothing: a count of 0, everything else null.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StateError
from headrace.spark.arrow_types import FLAT
from headrace.spark.runtime.operators.aggregate_states import initial_values
from headrace.spark.runtime.rows.row_schema import DISTINCT_OF, WINDOW_START, RowColumn, RowSchema
from headrace.spark.runtime.rows.rows import decode_rows, empty_row, encode_rows
from headrace.spark.topology.nodes import JOIN_SIDES

__all__ = ["check_convertible", "convert_rows"]

_TYPES = {str(kind): kind for kind in FLAT.values()}
_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")


def check_convertible(old: RowSchema, new: RowSchema) -> None:
    """Refuse a conversion between rows that group by different columns. Raises StateError("state-schema-changed")."""
    if old.keys != new.keys:
        raise StateError(
            "state-schema-changed",
            f"groups by {', '.join(map(str, old.keys))} are not groups by {', '.join(map(str, new.keys))}: "
            "no stored value can be taken over",
            "Choose --state recompute.",
        )
    # A stored row of a join has the columns of its own side, beside counters and marks. Read as a row of both, it would
    # yield other values.
    if any(column.role in JOIN_SIDES for column in (*old.values, *new.values)):
        raise StateError(
            "state-schema-changed",
            "the rows of a join of two streams cannot be taken over by a version that keeps other columns or times",
            "Choose --state recompute.",
        )
    if WINDOW_START in new.keys:  # values hold their groups as well, and watermarks have columns of their own
        raise StateError(
            "state-schema-changed",
            "open windows cannot be taken over by a version that keeps other aggregates",
            "Choose --state recompute.",
        )
    for column in (*old.values, *new.values):
        _stored_types(column)
    # Entries of a distinct count carry its number, and a counter that begins anew would not match those that are there.
    distinct = [[column for column in schema.values if column.role == "count_distinct"] for schema in (old, new)]
    if distinct[0] != distinct[1]:
        raise StateError(
            "state-schema-changed",
            f"distinct counts change: {', '.join(map(str, distinct[0])) or 'none'} before, "
            f"{', '.join(map(str, distinct[1])) or 'none'} now. They are only right over all values of a group",
            "Choose --state recompute.",
        )


def convert_rows(values: pa.Array, old: RowSchema, new: RowSchema) -> pa.Array:
    """Rows of `old` as rows of `new`; nulls stay. Raises StateError: state-schema-changed, state-corrupt."""
    check_convertible(old, new)
    # Entries of distinct counts have no columns: only their start names the schema.
    is_entry = pc.equal(values, pa.scalar(empty_row(old.fingerprint), pa.binary()))
    if pc.any(is_entry).as_py():
        rows = _convert(pc.if_else(pc.fill_null(is_entry, False), pa.scalar(None, pa.binary()), values), old, new)
        return pc.if_else(pc.fill_null(is_entry, False), pa.scalar(empty_row(new.fingerprint), pa.binary()), rows)
    return _convert(values, old, new)


def _convert(values: pa.Array, old: RowSchema, new: RowSchema) -> pa.Array:
    types = [kind for column in old.values for kind in _stored_types(column)]
    decoded = iter(decode_rows(values.drop_null(), types, old.fingerprint))
    # By the column's identity (function and canonical argument), not by position: both programs order their columns by
    # themselves.
    known = {column: [next(decoded) for _ in _stored_types(column)] for column in old.values}
    count = len(values) - values.null_count
    columns = [
        array
        for column in new.values
        for array in known.get(column) or [_of_nothing(column, at, kind, count) for at, kind in _numbered(column)]
    ]
    rows = encode_rows(columns, new.fingerprint)
    if not values.null_count:
        return rows
    valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    # Null rows (tombstones) have no bytes to convert; they return to their places.
    return rows.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _numbered(column: RowColumn) -> list[tuple[int, pa.DataType]]:
    return list(enumerate(_stored_types(column)))


def _of_nothing(column: RowColumn, at: int, kind: pa.DataType, count: int) -> pa.Array:
    """The stored column of an aggregate that has seen no record."""
    initial = dict(enumerate(initial_values(column.role))).get(at)
    return pa.nulls(count, kind) if initial is None else pa.repeat(pa.scalar(initial, kind), count)


def _stored_types(column: RowColumn) -> list[pa.DataType]:
    found = []
    for name in column.type.partition(DISTINCT_OF)[0].split(" + "):
        kind = _TYPES.get(name)
        if kind is None and (decimal := _DECIMAL.fullmatch(name)):
            kind = pa.decimal128(int(decimal[1]), int(decimal[2]))
        if kind is None:
            raise StateError(
                "state-schema-changed",
                f"stored values of {column} cannot be taken over: their type is not known here",
                "Choose --state recompute.",
            )
        found.append(kind)
    return found
