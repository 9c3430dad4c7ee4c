"""Sessions that close, without Spark and broker: upstream tasks that judge rows, their topic, and the operator."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.stateful_task import Event, RepartitionTopic, Task

from headrace.spark.runtime.operators.event_time_kernels import number_sessions
from headrace.spark.runtime.operators.session_operator import SessionOperator
from headrace.spark.runtime.operators.watermark_operator import WatermarkOperator
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.stores.state_reading import read_aggregate
from headrace.spark.topology.nodes import (
    DELETED_COLUMN,
    EVENT_TIME_COLUMN,
    SESSION_END_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    Buffer,
    OutputMode,
    RepartitionSink,
    SessionWindow,
    Watermark,
    WindowedAggregate,
)

TASKS = 2
GAP = 10
AHEAD = 20
SESSION = SessionWindow(group="g1", gap_us=GAP)
COUNTED = WindowedAggregate(
    name="by-id-session",
    group_columns=(("id", '"string"'), ("session_window", '"timestamp"')),
    buffers=(
        Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"', argument="*"),
        Buffer(name="b1", function="sum", input="i0", input_type='"long"', result_type='"long"', argument="n"),
        Buffer(
            name="b2",
            function="max_by",
            input="i0",
            input_type='"long"',
            result_type='"long"',
            argument="n, n",
            more_inputs=(("i0", '"long"'),),
        ),
    ),
    results=(("id", "g0"), ("session_window", SESSION.sql), ("rows", "b0"), ("total", "b1"), ("last", "b2")),
    output_schema_json="",
    changelog_topic="",
    window=SESSION,
    watermark_sources=("clicks",),
    output_mode="append",
)
Session: TypeAlias = tuple[str | None, int, int]  # key, start, end


def on_time(events: Sequence[Event], delay: int) -> tuple[list[tuple[int, Event]], dict[int, int]]:
    """Return the rows that are not before the watermark of their partition, with their numbers, and the watermarks."""
    newest: dict[int, int] = {}
    kept = []
    for number, event in enumerate(events):
        if event.task not in newest or event.time >= newest[event.task] - delay:
            kept.append((number, event))
        if event.record_ms < 0 or event.time <= event.record_ms * 1000 + AHEAD:
            newest[event.task] = max(newest.get(event.task, event.time), event.time)
    return kept, {task: time - delay for task, time in newest.items()}


def sessions_of(rows: Sequence[tuple[int, Event]]) -> dict[Session, list[int]]:
    """Return the sessions of rows: [count, sum of the numbers, greatest number]."""
    found: dict[Session, list[int]] = {}
    for key in {event.key for _, event in rows}:
        pieces: list[list[tuple[int, Event]]] = []
        for row in sorted((row for row in rows if row[1].key == key), key=lambda row: row[1].time):
            if not pieces or row[1].time > pieces[-1][-1][1].time + GAP:
                pieces.append([])
            pieces[-1].append(row)
        for piece in pieces:
            numbers = [number for number, _ in piece]
            span = key, piece[0][1].time, piece[-1][1].time + GAP
            found[span] = [len(numbers), sum(numbers), max(numbers)]
    return found


class Pipeline:
    """Upstream tasks that judge rows, the repartition topic as a list, and the task that reads it."""

    def __init__(self, directory: Path, declared: WindowedAggregate, delay: int) -> None:
        watermark = Watermark(
            name="w",
            source="clicks",
            window=SESSION,
            event_time_expression="ts",
            delay_us=delay,
            max_ahead_us=AHEAD,
            announces_each_batch=False,
            changelog_topic="",
        )
        self.declared = declared
        self.upstream = [Task(WatermarkOperator(watermark), directory / f"u{task}") for task in range(TASKS)]
        self.reader = Task(SessionOperator(declared), directory / "reader")
        self.topic = RepartitionTopic()
        self.out: list[tuple[Session, list[int] | None]] = []

    def send(self, task: int, events: Sequence[tuple[int, Event]], *, commits: bool = True) -> None:
        """A micro-batch of an upstream task: rows on time to the topic, then its watermark."""
        rows, written = self.upstream[task].run(rows_of(events), commits=commits)
        if rows is None or written is None:
            return
        self.topic.send(rows, written.announced_us, source="clicks", task=task, tasks=TASKS)

    def take(self, records: int, *, commits: bool = True) -> None:
        """A micro-batch of the reader."""
        result, _ = self.topic.take(self.reader, records, no_rows=rows_of([]), commits=commits)
        if result is not None and result.num_rows:
            self.out += leaving(result)

    def open_sessions(self) -> dict[Session, list[int]]:
        """Return what the reader's store holds."""
        keys = pa.array(dict.fromkeys(key for key, _ in self.reader.changelog), pa.binary())
        table = read_aggregate(self.reader.store, self.declared, keys)
        return {span: values for span, values in leaving(table) if values is not None}

    def close(self) -> None:
        for task in (*self.upstream, self.reader):
            task.store.close()


def leaving(table: pa.Table) -> list[tuple[Session, list[int] | None]]:
    """Return rows as (session, values); None for a deletion."""
    spans = zip(
        table.column("g0").to_pylist(),
        table.column("g1").cast(pa.int64()).to_pylist(),
        table.column(SESSION_END_COLUMN).cast(pa.int64()).to_pylist(),
        strict=True,
    )
    values = zip(*(table.column(name).to_pylist() for name in ("b0", "b1", "b2")), strict=True)
    deleted: Any = [False] * len(table)
    if DELETED_COLUMN in table.column_names:
        deleted = table.column(DELETED_COLUMN).to_pylist()
    return [
        (span, None if is_deleted else list(row)) for span, row, is_deleted in zip(spans, values, deleted, strict=True)
    ]


def rows_of(events: Sequence[tuple[int, Event]]) -> pa.Table:
    times = pa.array([event.time for _, event in events], pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "g0": pa.array([event.key for _, event in events], pa.string()),
            "g1": times,
            "i0": pa.array([number for number, _ in events], pa.int64()),
            TASK_COLUMN: pa.array([0] * len(events), pa.int32()),
            EVENT_TIME_COLUMN: times,
            TIMESTAMP_COLUMN: pa.array([event.record_ms for _, event in events], pa.int64()),
        }
    )


EVENTS = st.lists(
    st.builds(
        Event,
        task=st.integers(0, TASKS - 1),
        key=st.sampled_from([None, "", "a", "ab", "x" * 450]),
        time=st.integers(-60, 120),
        record_ms=st.sampled_from([-1, -1, 0]),
    ),
    max_size=50,
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["u0", "u1", "read"]), st.integers(0, 9), st.sampled_from(["commit", "undo", "restore"])),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(
    events=EVENTS,
    steps=STEPS,
    delay=st.sampled_from([0, 1, 5, 30]),
    mode=st.sampled_from(["append", "update"]),
)
def test_sessions_do_not_depend_on_cuts_interleaving_undone_batches_and_restores(
    events: list[Event], steps: list[tuple[str, int, str]], delay: int, mode: OutputMode
) -> None:
    kept, watermarks = on_time(events, delay)
    wanted = sessions_of(kept)
    closed_until = min(watermarks.values()) if len(watermarks) == TASKS else None
    closed = {one: row for one, row in wanted.items() if closed_until is not None and one[2] < closed_until}
    waiting = {task: [(n, event) for n, event in enumerate(events) if event.task == task] for task in range(TASKS)}
    with tempfile.TemporaryDirectory() as directory:
        pipeline = Pipeline(Path(directory), replace(COUNTED, output_mode=mode), delay)
        try:
            rest = [*[(f"u{task}", len(events), "commit") for task in range(TASKS)], ("read", 10_000, "commit")]
            for who, size, outcome in [*steps, *rest]:
                task = pipeline.reader if who == "read" else pipeline.upstream[int(who[1:])]
                if outcome == "restore":
                    task.restore()
                if who == "read":
                    pipeline.take(size, commits=outcome != "undo")
                    continue
                piece = waiting[int(who[1:])][:size]
                pipeline.send(int(who[1:]), piece, commits=outcome != "undo")
                if outcome != "undo":
                    del waiting[int(who[1:])][:size]
            assert sum(task.late for task in pipeline.upstream) == len(events) - len(kept)
            assert pipeline.reader.late == 0
            table = {span: values for span, values in dict(pipeline.out).items() if values is not None}
            if mode == "append":
                assert len(pipeline.out) == len(closed), "each session leaves once"
                assert table == closed
            else:
                assert table == wanted
            still_open = {one: row for one, row in wanted.items() if one not in closed}
            assert pipeline.open_sessions() == still_open
            sent = {one.task for one in pipeline.topic if isinstance(one, UpstreamWatermark)}
            keys = {key for key, _, _ in still_open}
            times = pipeline.reader.store.count() - len(still_open) - len(sent)
            assert len(keys) <= times <= 3 * len(keys), "closed sessions and times that have passed are deleted"
        finally:
            pipeline.close()


def run(pipeline: Pipeline, *batches: Sequence[tuple[str, int]]) -> None:
    """Process micro-batches of (key, time) of both upstream tasks."""
    number = 0
    for batch in batches:
        for task in range(TASKS):
            pipeline.send(task, [(number := number + 1, Event(task, key, time)) for key, time in batch])
        pipeline.take(1000)


def test_a_row_at_the_end_of_a_session_belongs_to_it(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COUNTED, 0)
    run(pipeline, [("a", 0)], [("b", GAP)], [("a", GAP)], [("b", 3 * GAP)])
    assert [span for span, _ in pipeline.out] == [("a", 0, 2 * GAP), ("b", GAP, 2 * GAP)]
    pipeline.close()


def test_a_row_that_spark_admits_behind_the_watermark_does_not_split_a_session(tmp_path: Path) -> None:
    """The session of "a" closes at 11. A row at 1 is within its gap, and Structured Streaming begins a second one."""
    pipeline = Pipeline(tmp_path, COUNTED, 0)
    run(pipeline, [("a", 0), ("b", GAP + 1)], [("a", 1)])
    assert pipeline.out == [(("a", 0, GAP), [2, 4, 3])]
    assert sum(task.late for task in pipeline.upstream) == 2
    assert list(pipeline.open_sessions()) == [("b", GAP + 1, 2 * GAP + 1)]
    pipeline.close()


def test_sessions_that_become_one_are_deleted_from_a_table(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, replace(COUNTED, output_mode="update"), 100)
    run(pipeline, [("a", 0), ("a", 20)])
    assert {span for span, _ in pipeline.out} == {("a", 0, 10), ("a", 20, 30)}
    pipeline.out.clear()
    run(pipeline, [("a", 10)])
    assert [(span, row is None) for span, row in pipeline.out] == [
        (("a", 0, 30), False),
        (("a", 0, 10), True),
        (("a", 20, 30), True),
    ]
    pipeline.close()


def test_a_row_that_makes_a_session_longer_writes_one_entry(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COUNTED, 1000)
    run(pipeline, [("a", 0)])
    before = len(pipeline.reader.changelog)
    run(pipeline, [("a", 5)])
    marks = TASKS
    assert len(pipeline.reader.changelog) - before == 1 + marks
    pipeline.close()


def test_pieces_within_a_stored_session_do_not_end_it() -> None:
    keys = np.zeros(4, np.int64)
    firsts, lasts = np.array([0, 1, 40, 51]), np.array([30, 1, 40, 51])
    assert number_sessions(keys, firsts, lasts, 10).tolist() == [0, 0, 0, 1]


def test_the_time_of_a_session_does_not_name_its_partition() -> None:
    columns = (("g0", '"string"'), ("g1", '"timestamp"'), ("i0", '"long"'))
    watermark = Watermark(
        name="w",
        source="clicks",
        window=SESSION,
        event_time_expression="ts",
        delay_us=0,
        max_ahead_us=0,
        announces_each_batch=False,
        changelog_topic="",
    )
    assert RepartitionSink(topic="t", columns=columns, watermark=watermark).key_columns == ("g0",)
    assert RepartitionSink(topic="t", columns=columns).key_columns == ("g0", "g1")
