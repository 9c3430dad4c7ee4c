"""Rows of changes behind Spark SQL: old and new rows of keys, put together again.

An operator that emits changes yields, for each changed key, the row that it had (`OLD_COLUMN`) and directly behind it
the row that it has now. Spark SQL filters and computes both kinds alike and keeps their order. What is left of a key
says what happened to it in the filtered table:

| left of the key | the key                              |
|-----------------|--------------------------------------|
| both rows       | has another row now                  |
| the new row     | has come: it had no row              |
| the old row     | is gone: a tombstone                 |
| none            | had no row and has none              |

No state is needed for that, and no key is deleted that never had a record. Rejected: a tombstone for each row that does
not pass, as Kafka Streams' `KTable.filter` sends without old values. `HAVING count > 1000` would write one for nearly
every record of the input.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.runtime.rows.rows import encode_key
from headrace.spark.topology.nodes import (
    CHANGE_COLUMN,
    DELETED_COLUMN,
    KEY_COLUMN,
    NEW_ROW,
    OLD_COLUMN,
    OLD_ROW,
    TASK_COLUMN,
)

__all__ = ["ChangeRows", "change_records", "upserts"]

Mask = NDArray[np.bool_]


class ChangeRows:
    """The rows of a micro-batch, table after table. Mutable: an old row at the end of a table waits for its new one."""

    def __init__(self) -> None:
        self._held: pa.Table | None = None

    def add(self, table: pa.Table) -> tuple[pa.Table, Mask, Mask]:
        """Take the next rows.

        Returns:
            Rows; which of them are old; and which of these have their new row directly behind them.
        """
        if self._held is not None:
            table, self._held = pa.concat_tables([self._held, table]), None
        # Tables are cut anywhere, so the new row may be the first one of the next table.
        if table.num_rows and table.column(OLD_COLUMN)[-1].as_py():
            self._held = table.slice(table.num_rows - 1)
            table = table.slice(0, table.num_rows - 1)
        return _examined(table.combine_chunks())

    def rest(self) -> tuple[pa.Table, Mask, Mask] | None:
        """Return the row that still waits at the end of the micro-batch, as `add` does. Its key has no new one."""
        if self._held is None:
            return None
        table, self._held = self._held, None
        return _examined(table.combine_chunks())


def upserts(table: pa.Table, is_old: Mask, is_replaced: Mask) -> pa.Table:
    """Return the new rows, and the old rows that none replaces, marked by `DELETED_COLUMN`."""
    rows = table.append_column(DELETED_COLUMN, pa.array(is_old)).drop_columns([OLD_COLUMN])
    return rows.filter(pa.array(~is_replaced)) if is_replaced.any() else rows


def change_records(table: pa.Table, is_old: Mask, is_replaced: Mask, schema: pa.Schema) -> pa.Table:
    """Return the rows as changes of their groups, for the repartition topic of an aggregate.

    Args:
        table: Rows `g0.., i0..`.
        is_old: As `ChangeRows.add` returns it.
        is_replaced: The same.
        schema: Columns of the topic: `g0.., i0.., o0..` and `CHANGE_COLUMN`.
    """
    groups = [name for name in schema.names if name.startswith("g")]
    inputs = [name for name in schema.names if name.startswith("i")]
    fitted = pa.table({name: table.column(name).cast(schema.field(name).type) for name in (*groups, *inputs)})
    # 1. Old and new row of a key in one group are one record: no reader sees the group between the two.
    first = np.flatnonzero(is_replaced)
    stays = _equal_neighbours(fitted.select(groups), first)
    first, within = first[stays], np.zeros(len(is_old), np.bool_)
    within[first] = within[first + 1] = True
    # 2. Such a row whose inputs are the same changes nothing.
    first = first[~_equal_neighbours(fitted.select(inputs), first)]
    # 3. All others are a record of their own, in the group that they left or that they came to.
    alone = np.flatnonzero(~within)
    new = np.concatenate([first + 1, np.where(is_old[alone], -1, alone)])
    old = np.concatenate([first, np.where(is_old[alone], alone, -1)])
    order = np.argsort(np.maximum(new, old), kind="stable")
    new, old = new[order], old[order]
    places, gone, absent = pa.array(np.maximum(new, old)), pa.array(new, mask=new < 0), pa.array(old, mask=old < 0)
    columns = {name: fitted.column(name).take(places) for name in groups}
    columns |= {name: fitted.column(name).take(gone) for name in inputs}
    columns |= {f"o{name[1:]}": fitted.column(name).take(absent) for name in inputs}
    name, _ = CHANGE_COLUMN
    columns[name] = pa.array(((new >= 0) * NEW_ROW + (old >= 0) * OLD_ROW).astype(np.int8))
    columns[TASK_COLUMN] = table.column(TASK_COLUMN).take(places)
    return pa.table(columns)


def _equal_neighbours(table: pa.Table, first: NDArray[np.int64]) -> Mask:
    """Return whether each of the rows `first` equals the row behind it, as keys do."""
    if not table.num_columns or not len(first):
        return np.ones(len(first), np.bool_)
    both = table.take(pa.array(np.concatenate([first, first + 1])))
    keys = encode_key(both.columns)
    same = pc.equal(keys[: len(first)], keys[len(first) :])
    return np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)


def _examined(table: pa.Table) -> tuple[pa.Table, Mask, Mask]:
    is_old = table.column(OLD_COLUMN).to_numpy().astype(np.bool_)
    is_replaced = np.zeros(len(is_old), np.bool_)
    if len(is_old) > 1:
        keys, tasks = (table.column(name).combine_chunks() for name in (KEY_COLUMN, TASK_COLUMN))
        same = pc.and_(pc.equal(keys[:-1], keys[1:]), pc.equal(tasks[:-1], tasks[1:]))
        is_replaced[:-1] = is_old[:-1] & ~is_old[1:] & same.to_numpy(zero_copy_only=False)
    return table, is_old, is_replaced
