"""Contents of a task's store as rows of a user: which groups there are, and what each of them amounts to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.operators.aggregate_operator import window_column
from headrace.spark.runtime.operators.session_operator import SESSION_COLUMNS
from headrace.spark.runtime.operators.table_functions import functions_of
from headrace.spark.runtime.rows.row_schema import store_of, store_of_deduplication
from headrace.spark.runtime.rows.rows import ENTRY_PREFIX, decode_key, decode_rows
from headrace.spark.runtime.stores.store import TaskStore
from headrace.spark.runtime.stores.time_keys import ENTRY, key_behind_time
from headrace.spark.topology.nodes import (
    SESSION_END_COLUMN,
    WINDOW_COLUMN,
    Aggregate,
    Deduplication,
    SessionWindow,
    WindowedAggregate,
)

__all__ = ["finished_groups", "group_entries", "read_aggregate", "read_deduplication", "renamed_results"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_aggregate(store: TaskStore, aggregate: Aggregate, keys: pa.Array) -> pa.Table:
    """Return the groups of an aggregate's store, as its `output_columns`: what its operator would pass on.

    Args:
        store: The store of one task.
        aggregate: The aggregate.
        keys: The keys to look up, distinct. A store cannot list its long keys; its changelog has all.
    """
    values = store.lookup(keys)
    there = values.is_valid()
    return finished_groups(aggregate, *group_entries(aggregate, keys.filter(there), values.filter(there)))


def group_entries(aggregate: Aggregate, keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return those of a store's entries that are groups: (keys, values)."""
    if isinstance(aggregate, WindowedAggregate):  # the others are watermarks
        is_group = pc.starts_with(keys, ENTRY)
    else:  # the others are entries of distinct counts
        is_group = pc.invert(pc.starts_with(keys, ENTRY_PREFIX))
    return keys.filter(is_group), values.filter(is_group)


def finished_groups(aggregate: Aggregate, keys: pa.Array, values: pa.Array) -> pa.Table:
    """Return groups by their entries in a store, as the aggregate's `output_columns`: what its operator would pass on.

    Raises StateError: state-corrupt, state-schema-changed.
    """
    functions, fingerprint = functions_of(aggregate), store_of(aggregate).rows.fingerprint
    types = [column.type for column in functions.state]
    if isinstance(aggregate.window, SessionWindow):
        kinds = [*functions.group_types, *(kind for _, kind in SESSION_COLUMNS), *types]
        own = [*functions.group_names, *(name for name, _ in SESSION_COLUMNS)]
        names = [*own, *(column.name for column in functions.state)]
        sessions = pa.Table.from_arrays(decode_rows(values, kinds, fingerprint), names=names)
        ends = pc.add(sessions.column("last"), aggregate.window.gap_us).cast(pa.timestamp("us", "UTC"))
        return functions.finish(sessions).append_column(SESSION_END_COLUMN, ends)
    if isinstance(aggregate, WindowedAggregate):  # values hold their group
        columns = decode_rows(values, [*functions.group_types, *types], fingerprint)
    else:
        columns = [*decode_key(keys, functions.group_types), *decode_rows(values, types, fingerprint)]
    names = [*functions.group_names, *(column.name for column in functions.state)]
    return functions.finish(pa.Table.from_arrays(columns, names=names))


def renamed_results(aggregate: Aggregate, groups: pa.Table) -> pa.Table:
    """Return groups as rows of the aggregate, whose results only rename them and show their window."""
    window = aggregate.window
    if window is not None:
        groups = groups.append_column(WINDOW_COLUMN, window_column(window, groups))
    shown = None if window is None else window.sql
    sources = [WINDOW_COLUMN if sql == shown else sql.strip("`") for _, sql in aggregate.results]
    names = [name for name, _ in aggregate.results]
    return pa.Table.from_arrays([groups.column(source) for source in sources], names=names)


def read_deduplication(store: TaskStore, deduplication: Deduplication) -> dict[Any, datetime]:
    """Return the kept keys of a deduplication's store, with the newest kept event time of each.

    A key of several columns is a tuple. Keys longer than the store's names are left out.
    """
    found = [(key, value) for name, value in store.values() if (key := key_behind_time(name)) is not None]
    if not found:
        return {}
    fingerprint = store_of_deduplication(deduplication).rows.fingerprint
    [times] = decode_rows(pa.array([value for _, value in found], pa.binary()), [pa.int64()], fingerprint)
    columns = decode_key(pa.array([key for key, _ in found], pa.binary()), arrow_types(deduplication.key_columns))
    newest: dict[Any, datetime] = {}
    for at in pc.sort_indices(times).to_pylist():
        values = tuple(column[at].as_py() for column in columns)
        newest[values[0] if len(values) == 1 else values] = _EPOCH + timedelta(microseconds=times[at].as_py())
    return newest
