"""Window functions in event time, without Spark and broker: upstream tasks that judge rows, their topic, the reader."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.stateful_task import RepartitionTopic, Task

from headrace.errors import UserCodeError
from headrace.spark.runtime.operators.over_rows_operator import OverRowsOperator
from headrace.spark.runtime.operators.watermark_operator import WatermarkOperator
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    OverFunction,
    OverRows,
    RowFunction,
    SortColumn,
    Watermark,
)

SECOND = 1_000_000
TASKS = 2
TIMESTAMP = pa.timestamp("us", "UTC")
LONG, DOUBLE, TEXT = '"long"', '"double"', '"string"'


def function(name: RowFunction, column: str | None, kind: str, unit: str, begin: int | None, end: int) -> OverFunction:
    return OverFunction(
        function=name,
        column=column,
        expression=str(column),
        result_type=kind,
        unit=unit,  # type: ignore[arg-type]
        begin=begin,
        end=end,
    )


FUNCTIONS = (
    function("sum", "i1", LONG, "rows", -2, 0),
    function("avg", "i1", DOUBLE, "rows", -3, -1),
    function("count", None, LONG, "rows", None, 0),
    function("count", "i1", LONG, "range", None, 0),
    function("sum", "i1", LONG, "range", None, 0),
    function("avg", "i2", DOUBLE, "rows", None, 0),
    function("min", "i2", DOUBLE, "rows", None, 0),
    function("max", "i3", TEXT, "rows", -2, 0),
    function("max", "i2", DOUBLE, "range", -5 * SECOND, 0),
    function("count", None, LONG, "range", -5 * SECOND, 0),
    function("sum", "i1", LONG, "range", 0, 0),
    function("lag", "i3", TEXT, "rows", -1, -1),
    function("lag", "i1", LONG, "rows", -4, -4),
    function("first", "i3", TEXT, "rows", None, 0),
    function("first", "i1", LONG, "rows", -2, 0),
    function("last", "i3", TEXT, "range", None, 0),
    function("last", "i1", LONG, "rows", -3, -2),
    function("first", "g0", TEXT, "rows", -1, 0),
)


def over_of(functions: Sequence[OverFunction]) -> OverRows:
    kinds = [one.result_type for one in functions]
    return OverRows(
        name="over-by-key",
        group_columns=(("key", TEXT),),
        inputs=(("i0", '"timestamp"'), ("i1", LONG), ("i2", DOUBLE), ("i3", TEXT)),
        order=(SortColumn(column="i0", descending=False, nulls_last=False),),
        functions=tuple(functions),
        columns=(("key", TEXT), ("time", '"timestamp"'), *((f"f{at}", kind) for at, kind in enumerate(kinds))),
        origins=("g0", "i0", *(f"f{at}" for at in range(len(functions)))),
        changelog_topic="app-over-by-key-changelog",
        group_expressions=("key",),
        input_expressions=("time", "n", "x", "text"),
        watermark_sources=("rows",),
    )


@dataclass(frozen=True)
class Event:
    """A record of a source partition."""

    task: int
    key: str | None
    time: int | None
    n: int | None
    x: float | None
    text: str | None

    @property
    def order(self) -> tuple[Any, ...]:
        """As the operator orders rows of a key: by time, then by the other columns, nulls first."""
        return tuple((value is not None, value) for value in (self.time, self.n, self.x, self.text))


def on_time(events: Sequence[Event], delay: int) -> tuple[list[Event], int | None]:
    """Rows that are not late in their own partition, and the watermark at the end."""
    newest: dict[int, int] = {}
    kept = []
    for event in events:
        if event.time is None:
            continue
        if event.task not in newest or event.time >= newest[event.task] - delay:
            kept.append(event)
        newest[event.task] = max(newest.get(event.task, event.time), event.time)
    return kept, min(newest.values()) - delay if len(newest) == TASKS else None


def reference(events: Sequence[Event], over: OverRows, delay: int) -> Counter[tuple[Any, ...]]:
    """The functions over all rows on time, of those that the watermark has passed."""
    kept, watermark = on_time(events, delay)
    found: Counter[tuple[Any, ...]] = Counter()
    if watermark is None:
        return found
    for key in {event.key for event in kept}:
        rows = sorted((event for event in kept if event.key == key), key=lambda event: event.order)
        for at, event in enumerate(rows):
            assert event.time is not None
            if event.time < watermark:
                found[key, event.time, *(value_of(one, rows, at) for one in over.functions)] += 1
    return found


def value_of(one: OverFunction, rows: Sequence[Event], at: int) -> Any:
    """Return the value of a function at one row, as its definition says it."""
    name = {"i1": "n", "i2": "x", "i3": "text", "g0": "key", None: "key"}[one.column]
    if one.function == "lag":
        place = at + (one.begin or 0)
        return getattr(rows[place], name) if place >= 0 else None
    time = rows[at].time
    assert time is not None
    if one.unit == "range":
        first = time + one.begin if one.begin is not None else -(1 << 62)
        frame = [row for row in rows if first <= (row.time or 0) <= time]
    else:
        frame = list(rows[max(0, at + one.begin) if one.begin is not None else 0 : max(0, at + one.end + 1)])
    values = [getattr(row, name) for row in frame]
    if one.function in ("first", "last"):
        return None if not values else values[0] if one.function == "first" else values[-1]
    known = [value for value in values if value is not None]
    if one.function == "count":
        return len(values) if one.column is None else len(known)
    if not known:
        return None
    if one.function in ("sum", "avg"):
        total = sum(known)
        return total if one.function == "sum" else total / len(known)
    return max(known) if one.function == "max" else min(known)


class Pipeline:
    """Upstream tasks, the repartition topic as a list, and the task that reads it."""

    def __init__(self, directory: Path, over: OverRows, delay: int) -> None:
        clock = Watermark(
            name="over-by-key-watermark",
            source="rows",
            window=None,
            event_time_expression="time",
            delay_us=delay,
            max_ahead_us=3600 * SECOND,
            announces_each_batch=False,
            changelog_topic="",
        )
        self.over = over
        self.upstream = [Task(WatermarkOperator(clock), directory / f"u{task}") for task in range(TASKS)]
        self.reader = Task(OverRowsOperator(over), directory / "reader")
        self.topic = RepartitionTopic()
        self.out: Counter[tuple[Any, ...]] = Counter()

    def send(self, task: int, events: Sequence[Event], *, commits: bool = True) -> None:
        rows, written = self.upstream[task].run(rows_of(events), commits=commits)
        if rows is None or written is None:
            return
        self.topic.send(rows, written.announced_us, source="rows", task=task, tasks=TASKS)

    def take(self, records: int, *, commits: bool = True) -> None:
        """A micro-batch of the reader."""
        no_rows = rows_of([]).drop_columns([EVENT_TIME_COLUMN, TIMESTAMP_COLUMN])
        results, written = self.topic.take(self.reader, records, no_rows=no_rows, commits=commits)
        for table in results or ():
            columns = [table.column(name) for name, _ in self.over.columns]
            columns[1] = columns[1].cast(pa.int64())
            self.out.update(zip(*(column.to_pylist() for column in columns), strict=True))
        if written is not None:
            keys = written.keys.to_pylist()
            assert keys == sorted(set(keys))

    def stored(self, kind: int) -> int:
        return sum(key[:1] == bytes([kind]) for key, _ in self.reader.store.values())

    def close(self) -> None:
        for task in (*self.upstream, self.reader):
            task.store.close()


def rows_of(events: Sequence[Event]) -> pa.Table:
    times = pa.array([event.time for event in events], TIMESTAMP)
    return pa.table(
        {
            "g0": pa.array([event.key for event in events], pa.string()),
            "i0": times,
            "i1": pa.array([event.n for event in events], pa.int64()),
            "i2": pa.array([event.x for event in events], pa.float64()),
            "i3": pa.array([event.text for event in events], pa.string()),
            TASK_COLUMN: pa.array([0] * len(events), pa.int32()),
            EVENT_TIME_COLUMN: times,
            TIMESTAMP_COLUMN: pa.array([-1] * len(events), pa.int64()),
        }
    )


EVENTS = st.lists(
    st.builds(
        Event,
        task=st.integers(0, TASKS - 1),
        key=st.sampled_from([None, "", "a", "a", "a", "ab", "x" * 450]),
        time=st.one_of(st.none(), *[st.integers(-20, 60).map(lambda half: half * SECOND // 2)] * 9),
        n=st.one_of(st.none(), st.integers(-5, 5)),
        x=st.one_of(st.none(), st.sampled_from([0.5, 1.0, -2.25, 4.0])),  # sums are exact in any order
        text=st.one_of(st.none(), st.sampled_from(["", "b", "é", "zz"])),
    ),
    max_size=70,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["u0", "u1", "read", "read"]),
        st.integers(0, 12),
        st.sampled_from(["commit", "commit", "undo", "restore"]),
    ),
    max_size=50,
)


@settings(max_examples=200, deadline=None)
@given(
    events=EVENTS,
    steps=STEPS,
    delay=st.sampled_from([0, 1, 3, 10]),
    functions=st.lists(st.sampled_from(FUNCTIONS), min_size=1, max_size=4) | st.just(list(FUNCTIONS)),
)
def test_results_do_not_depend_on_cuts_interleaving_undone_batches_and_restores(
    events: list[Event], steps: list[tuple[str, int, str]], delay: int, functions: list[OverFunction]
) -> None:
    over, delay_us = over_of(functions), delay * SECOND
    with tempfile.TemporaryDirectory() as directory:
        pipeline = Pipeline(Path(directory), over, delay_us)
        waiting = [[event for event in events if event.task == task] for task in range(TASKS)]
        try:
            for who, size, outcome in [*steps, ("u0", 99, "commit"), ("u1", 99, "commit"), ("read", 999, "commit")]:
                commits = outcome != "undo"
                task = pipeline.reader if who == "read" else pipeline.upstream[int(who[1])]
                if outcome == "restore":
                    task.restore()
                if who == "read":
                    pipeline.take(size, commits=commits)
                    continue
                pipeline.send(int(who[1]), waiting[int(who[1])][:size], commits=commits)
                if commits:
                    del waiting[int(who[1])][:size]
            assert pipeline.out == reference(events, over, delay_us)
            kept, watermark = on_time(events, delay_us)
            assert pipeline.stored(1) == sum(watermark is None or (event.time or 0) >= watermark for event in kept)
            assert pipeline.stored(2) <= max_history(over, kept)
            if not any(one.begin is None for one in functions):
                assert pipeline.stored(3) == 0
        finally:
            pipeline.close()


@pytest.mark.parametrize("units", [("rows",), ("range",), ("rows", "range")])
@pytest.mark.parametrize("size", [1, 3, 200])
def test_functions_go_on_from_one_micro_batch_to_the_next(tmp_path: Path, size: int, units: tuple[str, ...]) -> None:
    """Many rows of few keys, far more than any frame has, in micro-batches of some records."""
    events = [
        Event(number % 2, "ab"[number % 3 > 0], number * SECOND // 3, number % 7 - 3 or None, float(number % 5), None)
        for number in range(120)
    ]
    over = over_of([one for one in FUNCTIONS if one.unit in units])  # either unit may keep what the other one needs
    pipeline = Pipeline(tmp_path, over, SECOND)
    for event in events:
        pipeline.send(event.task, [event])
    while pipeline.topic.read < len(pipeline.topic):
        pipeline.take(size)
    assert sum(pipeline.out.values()) > 100
    assert pipeline.out == reference(events, over, SECOND)
    pipeline.close()


def max_history(over: OverRows, events: Sequence[Event]) -> int:
    """The most rows that are kept of those that have left."""
    keys = {event.key for event in events}
    return len(events) if over.history_us >= 0 else over.history_rows * len(keys)


def test_rows_behind_a_watermark_that_was_passed_over_are_late(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, over_of(FUNCTIONS[:1]), 0)
    old, new = Event(0, "a", 1 * SECOND, 1, None, None), Event(0, "a", 9 * SECOND, 2, None, None)
    pipeline.send(0, [new])
    pipeline.send(1, [Event(1, "b", 8 * SECOND, 1, None, None)])
    pipeline.take(99)
    pipeline.topic.append(rows_of([old]).drop_columns([EVENT_TIME_COLUMN, TIMESTAMP_COLUMN]))
    pipeline.take(99)
    assert pipeline.reader.late == 1
    pipeline.close()


def test_a_sum_beyond_64_bits_is_an_error(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, over_of([function("sum", "i1", LONG, "rows", -1, 0)]), 0)
    largest = (1 << 63) - 1
    pipeline.send(0, [Event(0, "a", SECOND, largest, None, None), Event(0, "a", 2 * SECOND, 1, None, None)])
    pipeline.send(0, [Event(0, "b", 9 * SECOND, 1, None, None)])
    pipeline.send(1, [Event(1, "b", 9 * SECOND, 1, None, None)])
    with pytest.raises(UserCodeError, match="left the range of int64"):
        pipeline.take(99)
    pipeline.close()
