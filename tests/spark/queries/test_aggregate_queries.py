"""Queries of an aggregate's store, against what its operator passed on: committed micro-batches only."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.values import not_none
from tests.spark.runtime.aggregating_task import AggregatingTask
from tests.spark.runtime.stateful_task import Task

from headrace.errors import ConfigError, StateError
from headrace.spark.queries.aggregate_queries import AggregateQueries, refuse_query
from headrace.spark.queries.key_values import key_columns, parse_json
from headrace.spark.runtime.operators.window_operator import WindowOperator
from headrace.spark.runtime.stores.committed_view import CommittedView
from headrace.spark.topology.nodes import TASK_COLUMN, Aggregate, Buffer, SessionWindow, TimeWindow, WindowedAggregate
from headrace.temporary_directories import OwnedDirectory

SECOND = 1_000_000
TUMBLING = TimeWindow(group="g0", size_us=10 * SECOND, slide_us=10 * SECOND, start_us=0)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def counted(*groups, window=None, kind=Aggregate, **more):
    buffers = (
        Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"', argument="*"),
        Buffer(name="b1", function="avg", input="i0", input_type='"long"', result_type='"double"', argument="n"),
    )
    shown = [(name, f"`g{at}`" if window is None or at else window.sql) for at, (name, _) in enumerate(groups)]
    return kind(
        name="by-key",
        group_columns=groups,
        buffers=buffers,
        results=(*shown, ("rows", "`b0`"), ("mean", "`b1`")),
        output_schema_json="",
        changelog_topic="c",
        bare=True,
        window=window,
        **more,
    )


BY_WORD = counted(("word", '"string"'))
BY_WINDOW = counted(
    ("window", '"timestamp"'), ("word", '"string"'), window=TUMBLING, kind=WindowedAggregate, watermark_sources=("in",)
)


@contextmanager
def view_of(task):
    store = task.store
    with store._environment.lmdb.begin() as transaction:
        yield CommittedView(transaction, store._meta, store._blocks, task.committed)


@contextmanager
def task_of(aggregate, made=AggregatingTask):
    directory = OwnedDirectory("headrace-test-")
    task = (
        made(directory.path, aggregate) if made is AggregatingTask else made(WindowOperator(aggregate), directory.path)
    )
    try:
        yield task
    finally:
        task.store.close()
        directory.remove()


TEXT = (pa.string(),)


def rows_of(*groups, kinds=TEXT):
    columns = {f"g{at}": pa.array([row[at] for row in groups], kind) for at, kind in enumerate(kinds)}
    columns["i0"] = pa.array([row[len(kinds)] for row in groups], pa.int64())
    return pa.table({**columns, TASK_COLUMN: pa.array([0] * len(groups), pa.int32())})


def scanned(queries, view):
    return pa.concat_tables(queries.scan(view)).to_pylist()


WORDS = st.sampled_from([None, "", "a", "aa", "b", "é", "\0", "z" * 400])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.tuples(WORDS, st.integers(-9, 9)), max_size=6), st.booleans()), max_size=6),
    WORDS,
    WORDS,
    st.integers(0, 4),
)
def test_queries_return_the_committed_rows(batches, first, last, limit):
    queries = AggregateQueries(BY_WORD)
    with task_of(BY_WORD) as task:
        for rows, commits in batches:
            task.run(rows_of(*rows), commits=commits)
            wanted = {
                row["g0"]: {"word": row["g0"], "rows": row["b0"], "mean": row["b1"]} for row in task.newest.values()
            }
            with view_of(task) as view:
                found = scanned(queries, view)
                assert {row["word"]: row for row in found} == wanted
                assert len(found) == len(wanted)
                for word in (first, last):
                    one = queries.get(view, word).rows.to_pylist()
                    assert one == ([wanted[word]] if word in wanted else [])
                page = queries.range(view, first, last, limit)
                inside = [
                    word
                    for word in sorted((w for w in wanted if w is not None), key=str.encode)
                    if (first is None or first.encode() <= word.encode())
                    and (last is None or word.encode() <= last.encode())
                ]
                assert page.rows.to_pylist() == [wanted[word] for word in inside[:limit]]
                assert page.is_cut == (len(inside) > limit)


def test_typed_keys_are_found():
    kinds = (pa.int64(), pa.date32(), pa.decimal128(10, 2), pa.float64(), pa.timestamp("us", "UTC"), pa.binary())
    types = ('"long"', '"date"', '"decimal(10,2)"', '"double"', '"timestamp"', '"binary"')
    aggregate = counted(*((f"c{at}", kind) for at, kind in enumerate(types)))
    day, moment = dt.date(2026, 2, 28), dt.datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=dt.UTC)
    values = (7, day, decimal.Decimal("1.50"), float("nan"), moment, b"\xff\x00")
    nothing = (None,) * 6
    queries = AggregateQueries(aggregate)
    with task_of(aggregate) as task:
        task.run(rows_of((*values, 1), (*nothing, 2), kinds=kinds))
        with view_of(task) as view:

            def rows(text):
                return [row["rows"] for row in queries.get(view, parse_json(text, "key")).rows.to_pylist()]

            key = {"c0": 7, "c1": "2026-02-28", "c2": 1.5, "c3": "NaN", "c4": "2026-02-28T02:02:03.000004+01:00"}
            assert rows(json.dumps({**key, "c5": "/wA="})) == [1]
            assert rows(json.dumps({**key, "c5": "AA=="})) == []
            assert rows("[null, null, null, null, null, null]") == [1]
            with pytest.raises(StateError, match="no ranges"):
                queries.range(view, None, None, 5)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, pa.string()),
        ("7", pa.int64()),
        (True, pa.int64()),
        (1 << 63, pa.int64()),
        (200, pa.int8()),
        (decimal.Decimal("1.0"), pa.int64()),
        (1, pa.bool_()),
        ("2026-02-30", pa.date32()),
        ("yesterday", pa.timestamp("us", "UTC")),
        ("2026-02-28T01:02:03", pa.timestamp("us", "UTC")),
        ("2026-02-28T01:02:03Z", pa.timestamp("us")),
        (0, pa.timestamp("us", "UTC")),
        ("1.005", pa.decimal128(10, 2)),
        ("1e1000000000", pa.decimal128(10, 2)),
        ("123456789012", pa.decimal128(10, 2)),
        ("x", pa.decimal128(10, 2)),
        ("!", pa.binary()),
        ("é", pa.binary()),
        ("\ud800", pa.string()),
        ({"a": 1}, pa.string()),
        ([1, 2], pa.string()),
        ([[1]], pa.string()),
    ],
)
def test_wrong_key_values_are_refused(value, kind):
    with pytest.raises(ConfigError, match="bad-value"):
        key_columns(value, [("c", kind)])


@pytest.mark.parametrize("text", ["", "{", "NaN", "[1", '"\\', "[" * 100_000, "é", "{'a': 1}"])
def test_wrong_json_is_refused(text):
    with pytest.raises(ConfigError, match="bad-value"):
        parse_json(text, "key")


def test_columns_of_a_key_are_named():
    columns = [("a", pa.string()), ("b", pa.int64())]
    assert key_columns({"b": 1, "a": "x"}, columns) == key_columns(["x", 1], columns)
    for wrong in ({"a": "x"}, {"a": "x", "b": 1, "c": 2}, ["x"], "x", None):
        with pytest.raises(ConfigError, match="bad-value"):
            key_columns(wrong, columns)


def test_long_keys_are_found_and_never_left_out_silently():
    queries = AggregateQueries(BY_WORD)
    with task_of(BY_WORD) as task:
        task.run(rows_of(("a", 1)))
        task.run(rows_of(("b" * 600, 3)), commits=False)
        with view_of(task) as view:
            assert [row["word"] for row in scanned(queries, view)] == ["a"]
        task.run(rows_of(("b" * 600, 3)))
        with view_of(task) as view:
            with pytest.raises(StateError, match="more than 480 bytes"):
                list(queries.scan(view))
            with pytest.raises(StateError, match="more than 480 bytes"):
                queries.range(view, "c", None, 5)


def test_a_long_key_has_its_row():
    """The row of a key whose name in the store is a digest holds the key that was asked for."""
    queries = AggregateQueries(BY_WORD)
    with task_of(BY_WORD) as task:
        task.run(rows_of(("b" * 600, 3)))
        with view_of(task) as view:
            assert queries.get(view, "b" * 600).rows.to_pylist() == [{"word": "b" * 600, "rows": 1, "mean": 3.0}]


def windowed_rows(*rows):
    moments = [(EPOCH + dt.timedelta(seconds=start), word, number) for start, word, number in rows]
    return rows_of(*moments, kinds=(pa.timestamp("us", "UTC"), pa.string()))


def shown(start, word, rows, mean):
    begin = EPOCH + dt.timedelta(seconds=start)
    return {
        "window": {"start": begin, "end": begin + dt.timedelta(seconds=10)},
        "word": word,
        "rows": rows,
        "mean": mean,
    }


def test_windows_of_a_key():
    queries = AggregateQueries(BY_WINDOW)
    long = "z" * 450
    with task_of(BY_WINDOW, Task) as task:
        task.run(windowed_rows((0, "a", 1), (10, "a", 2), (10, "b", 5), (20, None, 3), (30, long, 4), (-10, "a", 9)))
        task.run(windowed_rows((10, "a", 4), (40, "a", 4)), commits=False)
        with view_of(task) as view:
            found = queries.windows(view, "a", -10 * SECOND, 40 * SECOND, 10)
            wanted = [shown(-10, "a", 1, 9.0), shown(0, "a", 1, 1.0), shown(10, "a", 1, 2.0)]
            assert found.rows.to_pylist() == wanted
            assert not found.is_cut
            cut = queries.windows(view, "a", -10 * SECOND, 40 * SECOND, 2)
            assert cut.rows.to_pylist() == wanted[:2]
            assert cut.is_cut
            assert queries.windows(view, "a", 0, 10 * SECOND, 9).rows.to_pylist() == wanted[1:2]
            assert queries.windows(view, "a", 10 * SECOND, 0, 9).rows.num_rows == 0
            assert queries.windows(view, None, 0, 99 * SECOND, 9).rows.to_pylist() == [shown(20, None, 1, 3.0)]
            assert queries.windows(view, long, 0, 99 * SECOND, 9).rows.to_pylist() == [shown(30, long, 1, 4.0)]
            for key, row in (
                ({"window": "1970-01-01T00:00:30Z", "word": long}, [shown(30, long, 1, 4.0)]),
                ({"window": "1970-01-01T00:00:10Z", "word": "a"}, [shown(10, "a", 1, 2.0)]),
                ({"window": "1970-01-01T00:00:11Z", "word": "a"}, []),
                ({"window": None, "word": "a"}, []),
            ):
                assert queries.get(view, key).rows.to_pylist() == row
            assert [row["word"] for row in scanned(queries, view)] == ["a", "a", "a", "b", None, long]


def test_windows_that_do_not_close_are_keys():
    aggregate = counted(("window", '"timestamp"'), ("word", '"string"'), window=TUMBLING)
    queries = AggregateQueries(aggregate)
    with task_of(aggregate) as task:
        task.run(windowed_rows((0, "a", 1), (10, "a", 2)))
        with view_of(task) as view:
            key = {"window": "1970-01-01T00:00:10Z", "word": "a"}
            assert queries.get(view, key).rows.to_pylist() == [shown(10, "a", 1, 2.0)]
            with pytest.raises(StateError, match="not ordered by windows"):
                queries.windows(view, "a", 0, 1, 1)


def test_other_stores_are_refused():
    assert refuse_query(BY_WORD) is None
    session = counted(
        ("session", '"timestamp"'),
        ("word", '"string"'),
        window=SessionWindow(group="g0", gap_us=1),
        kind=WindowedAggregate,
        watermark_sources=("in",),
    )
    assert "sessions" in not_none(refuse_query(session))
    assert "aggregates" in not_none(refuse_query(object()))


def test_results_of_sql_are_evaluated():
    def evaluate(groups, aggregate):
        doubled = pa.compute.multiply(groups.column("b0"), 2)
        return pa.table({"word": groups.column("g0"), "rows": doubled})

    queries = AggregateQueries(
        counted(
            ("word", '"string"'),
        ),
        evaluate,
    )
    object.__setattr__(queries.aggregate, "bare", False)
    with task_of(queries.aggregate) as task:
        with view_of(task) as view:
            assert scanned(queries, view) == []
        task.run(rows_of(("a", 1), ("a", 2)))
        with view_of(task) as view:
            assert queries.get(view, "a").rows.to_pylist() == [{"word": "a", "rows": 4}]
            assert scanned(queries, view) == [{"word": "a", "rows": 4}]
