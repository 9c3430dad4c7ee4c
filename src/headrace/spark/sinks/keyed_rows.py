"""Rows of which each replaces the previous row of its key, or deletes it. Null is a key like any other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.spark.sinks.interface import DELETED_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["newest_rows", "rows_of_other_keys", "rows_that_stay"]

_AT = "__headrace_at"
_NEW = "__headrace_new"


def newest_rows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of the rows."""
    import pyarrow as pa

    numbered = rows.select(list(key)).append_column(_AT, pa.array(np.arange(len(rows))))
    last = numbered.group_by(list(key)).aggregate([(_AT, "max")])[f"{_AT}_max"]
    return rows.take(last.combine_chunks().sort())


def rows_that_stay(rows: pa.Table) -> pa.Table:
    """Return the rows that are no deletions, without `DELETED_COLUMN`."""
    from pyarrow import compute

    if DELETED_COLUMN not in rows.column_names:
        return rows
    return rows.filter(compute.invert(rows[DELETED_COLUMN])).drop_columns([DELETED_COLUMN])


def rows_of_other_keys(rows: pa.Table, replaced: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows whose key is not one of `replaced`, in their order.

    Args:
        rows: Rows, also several of one key.
        replaced: Rows whose key columns have the types of those of `rows`.
        key: Names of the key columns.
    """
    import pyarrow as pa
    from pyarrow import compute

    # A join would not find null keys; groups do.
    keys = pa.concat_tables([rows.select(list(key)), replaced.select(list(key))])
    keys = keys.append_column(_AT, pa.array(np.arange(len(keys))))
    keys = keys.append_column(_NEW, pa.array(np.arange(len(keys)) >= len(rows)))
    groups = keys.group_by(list(key)).aggregate([(_AT, "list"), (_NEW, "max")])
    kept = groups.filter(compute.invert(groups[f"{_NEW}_max"]))[f"{_AT}_list"]
    return rows.take(compute.list_flatten(kept).combine_chunks().sort())
