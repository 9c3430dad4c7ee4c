"""Comparison of a database table with the rows that should be in it: by the database itself, in a transaction that is
rolled back.

The rows get into a copy of the target by the statements that an application uses, so types, casts and rounding are the
same on both sides. Nothing stays behind, whatever ends the process: creating tables is part of the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.spark.sinks.staged_rows import PART, Column, quoted

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.sinks.database import Connection, DatabaseSink

__all__ = ["TableComparison", "compare_table_rows", "count_waiting_parts"]

_COPY, _STAGED = "headrace_verify", "headrace_verify_staged"
_WITHOUT_EQUALITY = ("json",)  # PostgreSQL compares these as texts


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """Two multisets of rows.

    Attributes:
        expected: Number of rows that should be there.
        found: Number of rows that are there.
        equal: Number of rows that are on both sides.
        repeated: Surplus rows of which one is right.
        extra: Rows that should not be there at all.
        examples: A few different rows: their values, how often they are there, how often they should be.
    """

    expected: int
    found: int
    equal: int
    repeated: int
    extra: int
    examples: tuple[tuple[Any, ...], ...]


def count_waiting_parts(sink: DatabaseSink, group_id: str) -> int:
    """Return the number of parts of an application that wait beside a table. Raises OSError."""
    with sink.connection() as connection:
        parts = sink._beside("headrace_parts")
        if not sink._exists(connection, parts):
            return 0
        where = "target = $1 AND group_id = $2"
        [(count,)] = connection.execute(f"SELECT count(*) FROM {parts} WHERE {where}", sink.table, group_id)
    return int(count)


def compare_table_rows(sink: DatabaseSink, rows: Iterable[pa.Table], *, examples: int) -> TableComparison:
    """Compare the target of a sink with rows.

    Args:
        sink: A sink whose table only grows.
        rows: All rows that should be in the table, in the columns of the sink.
        examples: Most examples to return.

    Raises:
        OSError: if the database cannot be used, or does not let this user create tables.
        ValueError: if it cannot hold a row.
    """
    with sink.connection() as connection:
        connection.begin()
        try:
            _copy_rows(sink, connection, rows)
            return _compare(sink, connection, examples)
        finally:
            connection.execute("ROLLBACK")


def _copy_rows(sink: DatabaseSink, connection: Connection, rows: Iterable[pa.Table]) -> None:
    """Create a table like the target with these rows."""
    import pyarrow as pa

    layout = replace(sink.layout, key=())
    names = ", ".join(quoted(column.name) for column in layout.columns)
    copy, staged = sink._beside(_COPY), sink._beside(_STAGED)
    connection.execute(f"CREATE TABLE {copy} AS SELECT {names} FROM {sink.target} WHERE 1 = 0")
    connection.execute(f"CREATE TABLE {staged} ({', '.join(layout.staging_columns())})")
    for table in rows:
        encoded = sink._encode(table)
        part = pa.repeat(pa.scalar(0, pa.int64()), encoded.num_rows)
        connection.append(_STAGED, encoded.add_column(0, PART, part))
    connection.execute(layout.insertion(copy, staged, newest_only=False), 0)


def _compare(sink: DatabaseSink, connection: Connection, examples: int) -> TableComparison:
    columns = ", ".join(_comparable(column) for column in sink.layout.columns)
    names = ", ".join(quoted(column.name) for column in sink.layout.columns)
    sides = (
        f"SELECT {columns}, 1 AS headrace_wanted, 0 AS headrace_found FROM {sink._beside(_COPY)} "
        f"UNION ALL SELECT {columns}, 0, 1 FROM {sink.target}"
    )
    # Nulls are one group, so they are equal here.
    pairs = (
        f"WITH pairs AS (SELECT {names}, sum(headrace_wanted) AS wanted, sum(headrace_found) AS found "
        f"FROM ({sides}) AS sides GROUP BY {names}) "
    )
    [counts] = connection.execute(
        pairs
        + "SELECT "
        + ", ".join(
            f"CAST(coalesce(sum({what}), 0) AS bigint)"
            for what in (
                "wanted",
                "found",
                "CASE WHEN found < wanted THEN found ELSE wanted END",
                "CASE WHEN wanted > 0 AND found > wanted THEN found - wanted ELSE 0 END",
                "CASE WHEN wanted = 0 THEN found ELSE 0 END",
            )
        )
        + " FROM pairs"
    )
    expected, found, equal, repeated, extra = map(int, counts)
    shown: Sequence[tuple[Any, ...]] = ()
    if not expected == found == equal:
        texts = ", ".join(sink._as_text(quoted(column.name)) for column in sink.layout.columns)
        shown = connection.execute(
            f"{pairs}SELECT {texts}, CAST(found AS bigint), CAST(wanted AS bigint) FROM pairs WHERE wanted <> found "
            f"ORDER BY 1 LIMIT {examples}"
        )
    return TableComparison(
        expected=expected, found=found, equal=equal, repeated=repeated, extra=extra, examples=tuple(shown)
    )


def _comparable(column: Column) -> str:
    name = quoted(column.name)
    return f"CAST({name} AS text) AS {name}" if column.cast in _WITHOUT_EQUALITY else name
