"""Ranks over windows that close, without Spark and broker: on rows of a source, and on rows of closed windows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.operators.test_window_operator import (
    COUNTED,
    EVENTS,
    HOPPING,
    SECOND,
    TASKS,
    TUMBLING,
    Event,
    Task,
    reference,
    rows_of,
    windows_of,
)

from headrace.spark.runtime.operators.stateful_operator import StatefulOperator
from headrace.spark.runtime.operators.watermark_operator import WatermarkOperator
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.operators.window_operator import WindowOperator
from headrace.spark.runtime.operators.window_top_n_operator import WindowTopNOperator
from headrace.spark.topology.nodes import (
    DELETED_COLUMN,
    EVENT_TIME_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    OutputMode,
    RankFunction,
    SortColumn,
    TimeWindow,
    Watermark,
    WindowedTopN,
)

Record: TypeAlias = pa.Table | UpstreamWatermark
RANKED = WindowedTopN(
    name="top",
    function="rank",
    limit=1,
    group_columns=(("window", '"timestamp"'),),
    inputs=(("i0", '"long"'), ("i1", '"string"')),
    order=(SortColumn(column="i0", descending=True, nulls_last=True),),
    key_name="row_number",
    results=(("window", TUMBLING.sql), ("i0", "i0"), ("i1", "i1"), ("r", "r")),
    output_schema_json="",
    changelog_topic="",
    group_expressions=("w",),
    input_expressions=("n", "k"),
    window=TUMBLING,
    watermark_sources=("clicks",),
    output_mode="append",
)
# Of equal rows, one is taken for the other; a price of few values makes many ties.
Ranked: TypeAlias = tuple[int, int, int, str | None]  # start, position, value, key


def first_rows(
    rows: Sequence[tuple[int, int, str | None]], function: RankFunction, limit: int
) -> dict[tuple[int, int], tuple[int, int, str | None]]:
    """(start, position) → (rank, value, key) of rows (start, value, key), the greatest values first."""
    found = {}
    for start in {row[0] for row in rows}:
        ordered = sorted(
            (row for row in rows if row[0] == start), key=lambda row: (-row[1], row[2] is not None, row[2] or "")
        )
        values = [row[1] for row in ordered]
        for position, (_, value, key) in enumerate(ordered, 1):
            rank = {
                "row_number": position,
                "rank": 1 + values.index(value),
                "dense_rank": 1 + len({one for one in values if one > value}),
            }[function]
            if rank <= limit:
                found[start, position] = (rank, value, key)
    return found


class Stage:
    """Tasks of one operator, each with the log that it reads. Logs hold rows one by one, and watermarks."""

    def __init__(self, directory: Path, operator: StatefulOperator, tasks: int) -> None:
        self.tasks = [Task(operator, directory / f"{operator.name}-{task}") for task in range(tasks)]
        self.logs: list[list[Record]] = [[] for _ in range(tasks)]
        self.read = [0] * tasks

    def take(self, task: int, records: int, nothing: pa.Table, *, commits: bool = True) -> tuple[pa.Table, int | None]:
        """A micro-batch of one task: its rows, and the watermark that it sends on."""
        piece = self.logs[task][self.read[task] : self.read[task] + records]
        tables = [one for one in piece if isinstance(one, pa.Table)]
        marks = [one for one in piece if isinstance(one, UpstreamWatermark)]
        result, written = self.tasks[task].run(pa.concat_tables(tables) if tables else nothing, marks, commits=commits)
        if commits:
            self.read[task] += len(piece)
        announced = None if written is None else written.announced_us
        return nothing.slice(0, 0) if result is None else result, announced

    def put(self, task: int, rows: pa.Table, source: str, sender: int, tasks: int, announced: int | None) -> None:
        self.logs[task] += [rows.slice(at, 1) for at in range(rows.num_rows)]
        if announced is not None:
            mark = UpstreamWatermark(source=source, task=sender, tasks=tasks, time_us=announced, sent_ms=0)
            self.logs[task].append(mark)

    def close(self) -> None:
        for task in self.tasks:
            task.store.close()


def clock(window: TimeWindow, delay: int) -> WatermarkOperator:
    return WatermarkOperator(
        Watermark(
            name="w",
            source="clicks",
            window=window,
            event_time_expression="ts",
            delay_us=delay,
            max_ahead_us=5 * SECOND,
            announces_each_batch=False,
            changelog_topic="",
        )
    )


def ranked_input(rows: pa.Table) -> pa.Table:
    """Rows of a source, ranked by their number modulo 5."""
    values = pa.array([number % 5 for number in rows.column("i0").to_pylist()], pa.int64())
    return rows.drop_columns(["g1", "i1"]).set_column(1, "i0", values).append_column("i1", rows.column("g1"))


def left(result: pa.Table, into: dict[tuple[int, int], tuple[int, int, str | None]], times: list[int]) -> None:
    """Apply the rows of the top-N as a reader of its topic does; positions count the rows of one batch and window."""
    if not result.num_rows:
        return
    seen: dict[int, int] = {}
    starts = result.column("g0").cast(pa.int64()).to_pylist()
    for start, rank, value, key in zip(
        starts, *(result.column(name).to_pylist() for name in ("r", "i0", "i1")), strict=True
    ):
        seen[start] = seen.get(start, 0) + 1
        into[start, seen[start]] = (rank, value, key)
        times.append(start)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["u0", "u1", "m0", "m1", "r0"]),
        st.integers(0, 9),
        st.sampled_from(["commit", "commit", "undo", "restore"]),
    ),
    max_size=50,
)
END = [("u0", 999, "commit"), ("u1", 999, "commit"), ("m0", 9999, "commit"), ("m1", 9999, "commit")]


@settings(max_examples=100, deadline=None)
@given(
    events=EVENTS,
    steps=STEPS,
    delay=st.sampled_from([0, 3, 10]),
    window=st.sampled_from([TUMBLING, HOPPING]),
    function=st.sampled_from(["row_number", "rank", "dense_rank"]),
    limit=st.integers(1, 3),
)
def test_first_rows_of_closed_windows_do_not_depend_on_cuts_and_restores(
    events: list[Event],
    steps: list[tuple[str, int, str]],
    delay: int,
    window: TimeWindow,
    function: RankFunction,
    limit: int,
) -> None:
    declared = replace(RANKED, window=window, function=function, limit=limit)
    waiting = {task: [(n, event) for n, event in enumerate(events) if event.task == task] for task in range(TASKS)}
    nothing = ranked_input(rows_of([], window).drop_columns([EVENT_TIME_COLUMN, TIMESTAMP_COLUMN]))
    with tempfile.TemporaryDirectory() as directory:
        upstream = Stage(Path(directory), clock(window, delay * SECOND), TASKS)
        reader = Stage(Path(directory), WindowTopNOperator(declared), 1)
        found: dict[tuple[int, int], tuple[int, int, str | None]] = {}
        times: list[int] = []
        try:
            for who, size, outcome in [*steps, *END, ("r0", 9999, "commit")]:
                task, commits = int(who[1]), outcome != "undo"
                stage = {"u": upstream, "r": reader}.get(who[0])
                if stage is None:
                    continue
                if outcome == "restore":
                    stage.tasks[task].restore()
                if who[0] == "u":
                    rows, written = upstream.tasks[task].run(rows_of(waiting[task][:size], window), commits=commits)
                    if commits:
                        del waiting[task][:size]
                    if rows is not None and written is not None:
                        reader.put(0, ranked_input(rows), "clicks", task, TASKS, written.announced_us)
                    continue
                rows, _ = reader.take(0, size, nothing, commits=commits)
                left(rows, found, times)
            closed_rows, closed = on_time(events, window, delay * SECOND)
            assert found == first_rows(closed_rows, function, limit)
            assert len(times) == len(found), "each window leaves once"
            assert reader.tasks[0].late == 0
            kept = first_rows(open_rows(events, window, delay * SECOND, closed), function, limit)
            sent = {mark.task for mark in reader.logs[0] if isinstance(mark, UpstreamWatermark)}
            assert reader.tasks[0].store.count() == len(kept) + len(sent), "closed windows are deleted"
        finally:
            upstream.close()
            reader.close()


def on_time(
    events: list[Event], window: TimeWindow, delay: int
) -> tuple[list[tuple[int, int, str | None]], int | None]:
    """(start, value, key) of the rows on time in closed windows, and until when windows are closed."""
    _, _, closed = reference(events, window, delay, 5 * SECOND)
    rows = rows_on_time(events, window, delay)
    return [row for row in rows if closed is not None and row[0] + window.size_us <= closed], closed


def open_rows(
    events: list[Event], window: TimeWindow, delay: int, closed: int | None
) -> list[tuple[int, int, str | None]]:
    rows = rows_on_time(events, window, delay)
    return [row for row in rows if closed is None or row[0] + window.size_us > closed]


def rows_on_time(events: list[Event], window: TimeWindow, delay: int) -> list[tuple[int, int, str | None]]:
    newest: dict[int, int] = {}
    rows = []
    for number, event in enumerate(events):
        rows += [
            (start, number % 5, event.key)
            for start in windows_of(event.time, window)
            if event.task not in newest or start + window.size_us > newest[event.task] - delay
        ]
        if event.record_ms < 0 or event.time <= event.record_ms * 1000 + 5 * SECOND:
            newest[event.task] = max(newest.get(event.task, event.time), event.time)
    return rows


@settings(max_examples=100, deadline=None)
@given(events=EVENTS, steps=STEPS, delay=st.sampled_from([0, 3, 10]), window=st.sampled_from([TUMBLING, HOPPING]))
def test_rows_that_leave_at_close_are_never_late_behind_the_next_repartition_topic(
    events: list[Event], steps: list[tuple[str, int, str]], delay: int, window: TimeWindow
) -> None:
    """Counts by window and key in two tasks, which send their watermark on; the greatest counts of each window."""
    counted = replace(COUNTED, window=window, buffers=COUNTED.buffers[:1])
    declared = replace(RANKED, window=window, watermark_sources=("by-window",))
    waiting = {task: [(n, event) for n, event in enumerate(events) if event.task == task] for task in range(TASKS)}
    empty = rows_of([], window).drop_columns([EVENT_TIME_COLUMN, TIMESTAMP_COLUMN])
    with tempfile.TemporaryDirectory() as directory:
        upstream = Stage(Path(directory), clock(window, delay * SECOND), TASKS)
        middle = Stage(Path(directory), WindowOperator(counted), 2)
        reader = Stage(Path(directory), WindowTopNOperator(declared), 1)
        found: dict[tuple[int, int], tuple[int, int, str | None]] = {}
        times: list[int] = []
        try:
            for who, size, outcome in [*steps, *END, ("r0", 9999, "commit")]:
                task, commits = int(who[1]), outcome != "undo"
                stage = {"u": upstream, "m": middle, "r": reader}[who[0]]
                if outcome == "restore":
                    stage.tasks[task].restore()
                if who[0] == "u":
                    rows, written = upstream.tasks[task].run(rows_of(waiting[task][:size], window), commits=commits)
                    if commits:
                        del waiting[task][:size]
                    if rows is not None and written is not None:
                        for partition in range(2):
                            mine = [len(key or "") % 2 == partition for key in rows.column("g1").to_pylist()]
                            part = rows.filter(pa.array(mine, pa.bool_()))
                            middle.put(partition, part, "clicks", task, TASKS, written.announced_us)
                elif who[0] == "m":
                    rows, announced = middle.take(task, size, empty, commits=commits)
                    if commits:
                        reader.put(0, counts_of(rows), "by-window", task, 2, announced)
                else:
                    rows, _ = reader.take(0, size, counts_of(empty), commits=commits)
                    left(rows, found, times)
            groups, _, closed = reference(events, window, delay * SECOND, 5 * SECOND)
            complete = [
                (start, values[0], key)
                for (start, key), values in groups.items()
                if closed is not None and start + window.size_us <= closed
            ]
            assert found == first_rows(complete, "rank", 1)
            assert len(times) == len(found), "each window leaves once"
            assert [task.late for task in (*middle.tasks, *reader.tasks)] == [0, 0, 0]
        finally:
            for stage in (upstream, middle, reader):
                stage.close()


def counts_of(rows: pa.Table) -> pa.Table:
    """Rows (window, key, count) of the aggregate as input of the rank."""
    counts = rows.column("b0") if "b0" in rows.column_names else pa.array([], pa.int64())
    return pa.table(
        {
            "g0": rows.column("g0"),
            "i0": counts,
            "i1": rows.column("g1"),
            TASK_COLUMN: pa.array([0] * rows.num_rows, pa.int32()),
        }
    )


@pytest.mark.parametrize("mode", ["update", "append"])
def test_rows_of_a_closed_window_are_dropped_and_its_state_is_gone(tmp_path: Path, mode: OutputMode) -> None:
    stage = Stage(tmp_path, WindowTopNOperator(replace(RANKED, output_mode=mode), with_key=True), 1)

    def rows(*found: tuple[int, int, str]) -> pa.Table:
        return pa.table(
            {
                "g0": pa.array([start * SECOND for start, _, _ in found], pa.timestamp("us", "UTC")),
                "i0": pa.array([value for _, value, _ in found], pa.int64()),
                "i1": pa.array([key for _, _, key in found], pa.string()),
                TASK_COLUMN: pa.array([0] * len(found), pa.int32()),
            }
        )

    def taken(table: pa.Table, announced: int | None = None) -> list[tuple[str, bool]]:
        stage.put(0, table, "clicks", 0, 1, None if announced is None else announced * SECOND)
        result, _ = stage.take(0, 99, rows())
        deleted = result.column(DELETED_COLUMN) if DELETED_COLUMN in result.column_names else [pa.scalar(False)] * 9
        return [(value, flag.as_py()) for value, flag in zip(result.column("i1").to_pylist(), deleted, strict=False)]

    first = taken(rows((0, 5, "a"), (0, 5, "b"), (10, 1, "c")))
    assert first == ([] if mode == "append" else [("a", False), ("b", False), ("c", False)])
    second = taken(rows((0, 7, "d")))
    assert second == ([] if mode == "append" else [("d", False), ("b", True)])
    third = taken(rows(), 10)
    assert third == ([("d", False)] if mode == "append" else [])
    assert taken(rows((0, 9, "late")), 12) == []
    assert stage.tasks[0].late == 1
    assert stage.tasks[0].store.count() == 2, "the row of the open window, and the clock"
    stage.close()


def test_a_task_that_was_passed_over_opens_no_closed_window_again(tmp_path: Path) -> None:
    declared = replace(COUNTED, idle_timeout_ms=1000)
    task = Task(WindowOperator(declared), tmp_path / "task")
    rows = rows_of([(0, Event(0, "a", 0))], TUMBLING).drop_columns([EVENT_TIME_COLUMN, TIMESTAMP_COLUMN])

    def mark(sender: int, seconds: int, sent_ms: int) -> UpstreamWatermark:
        return UpstreamWatermark(source="clicks", task=sender, tasks=2, time_us=seconds * SECOND, sent_ms=sent_ms)

    task.run(rows, [mark(1, 0, 0)])
    result, _ = task.run(rows.slice(0, 0), [mark(0, 20, 5000)])
    assert result is not None
    assert result.num_rows == 1, "the silent task is passed over"
    task.run(rows.slice(0, 0), [mark(1, 1, 5001)])  # the least watermark is at one second again
    task.run(rows, [])
    assert task.late == 1
    result, _ = task.run(rows.slice(0, 0), [mark(1, 30, 5002)])
    assert result is None or result.num_rows == 0
    task.store.close()
