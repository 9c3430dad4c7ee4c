"""Comparison of database tables with rows that should be in them, by SQLite and a PostgreSQL server."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.sink_stories import TASK, schema_json
from tests.longer import LONG
from tests.spark.sinks.test_database import DATABASES, Place, connections, rows_of, started, written

from headrace.spark.sinks.database_comparison import TableComparison, compare_table_rows, count_waiting_parts

__all__ = ["connections"]  # a fixture, used by every test here


@pytest.fixture(params=DATABASES)
def place(request, tmp_path):
    return Place(tmp_path, request.getfixturevalue("server") if request.param == "postgres" else None)


def test_a_table_with_the_rows_is_equal_and_nothing_stays_behind(place):
    sink = started(place.sink())
    sink.commit([written(sink, number) for number in range(2)])
    before = tables_of(place)
    found = compare_table_rows(sink, [rows_of(0), rows_of(1)], examples=3)
    assert found == TableComparison(expected=6, found=6, equal=6, repeated=0, extra=0, examples=())
    assert tables_of(place) == before
    assert sum(place.numbers(sink).values()) == 6


def tables_of(place):
    query = "SELECT name FROM sqlite_master" if place.server is None else "SELECT relname::text FROM pg_class"
    return sorted(place.run(query))


def test_lost_repeated_and_foreign_rows_are_told_apart(place):
    sink = started(place.sink())
    sink.commit([written(sink, number) for number in range(2)])
    place.run(f"DELETE FROM {sink.target} WHERE n = 4")
    place.run(f"INSERT INTO {sink.target} SELECT * FROM {sink.target} WHERE n = 0")
    place.run(f"INSERT INTO {sink.target} VALUES (77, 'JFK')")
    found = compare_table_rows(sink, [rows_of(0), rows_of(1)], examples=9)
    assert (found.expected, found.found, found.equal, found.repeated, found.extra) == (6, 7, 5, 1, 1)
    assert sorted(found.examples) == [("0", "EWR", 2, 1), ("4", None, 0, 1), ("77", "JFK", 1, 0)]


def test_values_of_many_types_are_compared_as_the_database_keeps_them(place):
    columns = [("n", "long"), ("price", "decimal(9,2)"), ("day", "date"), ("at", "timestamp"), ("x", "double")]
    columns += [("raw", "binary"), ("is_new", "boolean")]
    declared = {"long": "bigint", "decimal(9,2)": "numeric(9,2)", "timestamp": "timestamptz", "double": "float8"}
    declared |= {"binary": "bytea"}
    if place.server is None:
        declared = {"decimal(9,2)": "text", "date": "text", "timestamp": "text", "double": "real", "binary": "blob"}
    definition = ", ".join(f'"{name}" {declared.get(kind, kind)}' for name, kind in columns)
    sink = started(place.sink(definition, schema=schema_json(columns)))
    rows = pa.table(
        {
            "n": pa.array([1, None], pa.int64()),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "day": pa.array([dt.date(2026, 1, 2), None]),
            "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            "x": pa.array([0.1, None]),
            "raw": pa.array([b"\x00\xff", None]),
            "is_new": pa.array([True, None]),
        }
    )
    [part] = [write_rows(sink, rows)]
    sink.commit([part])
    assert compare_table_rows(sink, [rows], examples=3).equal == 2
    other = rows.set_column(4, "x", pa.array([0.2, None]))
    assert compare_table_rows(sink, [other], examples=3).equal == 1


def write_rows(sink, rows):
    from tests.harness.sink_stories import write_part

    return write_part(sink, 0, rows)


def test_parts_that_wait_are_counted(place):
    sink = place.sink()
    assert count_waiting_parts(sink, TASK.group_id) == 0
    started(sink)
    part = written(sink, 0)
    assert count_waiting_parts(sink, TASK.group_id) == 1
    assert count_waiting_parts(sink, "another") == 0
    sink.commit([part])
    assert count_waiting_parts(sink, TASK.group_id) == 0


NUMBERS = st.lists(st.integers(0, 5), max_size=12)


@settings(max_examples=200 if LONG else 40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(there=NUMBERS, wanted=NUMBERS)
def test_random_multisets_against_a_plain_count(tmp_path, there, wanted):
    place = Place(tmp_path)
    sink = place.sink()
    for number in there:
        place.run(f"INSERT INTO {sink.target} VALUES ($1, 'a')", number)
    rows = pa.table({"n": pa.array(wanted, pa.int64()), "origin": pa.array(["a"] * len(wanted), pa.string())})
    found = compare_table_rows(sink, [rows], examples=99)
    is_there, should_be = Counter(there), Counter(wanted)
    surplus = is_there - should_be
    assert (found.expected, found.found) == (len(wanted), len(there))
    assert found.equal == (is_there & should_be).total()
    assert found.repeated == sum(count for number, count in surplus.items() if number in should_be)
    assert found.extra == sum(count for number, count in surplus.items() if number not in should_be)
