"""Windows that close, without Spark and broker: two upstream tasks, their topic, and the operator that reads it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.stateful_task import Event, RepartitionTopic, Task

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.partial_results import PartialResults
from headrace.spark.runtime.operators.upstream_clock import least_watermark
from headrace.spark.runtime.operators.watermark_operator import WatermarkOperator
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.operators.window_operator import WindowOperator
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    Buffer,
    OutputMode,
    TimeWindow,
    Watermark,
    WindowedAggregate,
)

SECOND = 1_000_000
TASKS = 2
TUMBLING = TimeWindow(group="g0", size_us=10 * SECOND, slide_us=10 * SECOND, start_us=0)
HOPPING = TimeWindow(group="g0", size_us=10 * SECOND, slide_us=4 * SECOND, start_us=3 * SECOND)
COUNTED = WindowedAggregate(
    name="by-window",
    group_columns=(("window", '"timestamp"'), ("id", '"string"')),
    buffers=(
        Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"', argument="*"),
        Buffer(name="b1", function="sum", input="i0", input_type='"long"', result_type='"long"', argument="n"),
    ),
    results=(("window", TUMBLING.sql), ("id", "g1"), ("rows", "b0"), ("total", "b1")),
    output_schema_json="",
    changelog_topic="",
    window=TUMBLING,
    watermark_sources=("clicks",),
    output_mode="append",
)


ROW_COLUMNS = (("g0", '"timestamp"'), ("g1", '"string"'), ("i0", '"long"'))
DISTINCT = replace(
    COUNTED,
    buffers=(
        *COUNTED.buffers,
        Buffer(
            name="b2",
            function="count_distinct",
            input="i1",
            input_type='"string"',
            result_type='"long"',
            argument="text",
        ),
        Buffer(
            name="b3",
            function="count_distinct",
            input="i0",
            input_type='"long"',
            result_type='"long"',
            argument="n, text",
            more_inputs=(("i1", '"string"'),),
        ),
    ),
)


def text_of(number: int) -> str | None:
    return [None, "", "z", "z" * 450][number % 4]


def windows_of(time: int, window: TimeWindow) -> list[int]:
    """Starts of the windows that hold `time`, the latest one first."""
    start = window.start_us + (time - window.start_us) // window.slide_us * window.slide_us
    starts = []
    while start + window.size_us > time:
        starts.append(start)
        start -= window.slide_us
    return starts


def reference(
    events: Sequence[Event], window: TimeWindow, delay: int, most_ahead: int
) -> tuple[dict[tuple[int, str | None], list[int]], int, int | None]:
    """Groups of the rows on time, how many rows were late, and until when windows are closed at the end."""
    groups: dict[tuple[int, str | None], list[int]] = {}
    newest: dict[int, int] = {}
    late = 0
    for number, event in enumerate(events):
        for start in windows_of(event.time, window):
            if event.task in newest and start + window.size_us <= newest[event.task] - delay:
                late += 1
                continue
            group = groups.setdefault((start, event.key), [0, 0])
            group[0] += 1
            group[1] += number
        if event.record_ms < 0 or event.time <= event.record_ms * 1000 + most_ahead:
            newest[event.task] = max(newest.get(event.task, event.time), event.time)
    closed = min(newest.values()) - delay if len(newest) == TASKS else None
    return groups, late, closed


def distinct_values(
    events: Sequence[Event], group: tuple[int, str | None], window: TimeWindow, delay: int
) -> tuple[set[str], set[tuple[int, str]]]:
    """The texts, and the pairs of number and text, of a group's rows on time."""
    newest: dict[int, int] = {}
    texts, pairs = set(), set()
    for number, event in enumerate(events):
        on_time = event.task not in newest or group[0] + window.size_us > newest[event.task] - delay
        text = text_of(number)
        if on_time and event.key == group[1] and group[0] in windows_of(event.time, window) and text is not None:
            texts.add(text)
            pairs.add((number, text))
        if event.record_ms < 0 or event.time <= event.record_ms * 1000 + 5 * SECOND:
            newest[event.task] = max(newest.get(event.task, event.time), event.time)
    return texts, pairs


class Pipeline:
    """Upstream tasks that judge rows, the repartition topic as a list, and the task that reads it."""

    def __init__(
        self, directory: Path, declared: WindowedAggregate, delay: int, most_ahead: int, *, partials: bool = False
    ) -> None:
        assert isinstance(declared.window, TimeWindow)
        self.window = declared.window
        self.partials_of = declared if partials else None
        declared = replace(declared, takes_partials=partials)
        self.watermark = Watermark(
            name="w",
            source="clicks",
            window=self.window,
            event_time_expression="ts",
            delay_us=delay,
            max_ahead_us=most_ahead,
            announces_each_batch=declared.idle_timeout_ms > 0,
            changelog_topic="",
        )
        self.upstream = [Task(WatermarkOperator(self.watermark), directory / f"u{task}") for task in range(TASKS)]
        self.reader = Task(WindowOperator(declared), directory / "reader")
        self.topic = RepartitionTopic()
        self.clock_ms = 0
        self.out: list[tuple[tuple[int, str | None], list[int]]] = []

    def send(self, task: int, events: Sequence[tuple[int, Event]], *, commits: bool = True) -> None:
        """A micro-batch of an upstream task: rows on time to the topic, then its watermark."""
        self.clock_ms += 1
        rows, written = self.upstream[task].run(rows_of(events, self.window), commits=commits)
        if rows is None or written is None:
            return
        if self.partials_of is not None:
            partials = PartialResults(self.partials_of, ROW_COLUMNS, combines=True)
            sent = [*partials.add(rows), *partials.rest()]
            rows = pa.concat_tables(sent) if sent else rows
        self.topic.send(rows, written.announced_us, source="clicks", task=task, tasks=TASKS, sent_ms=self.clock_ms)

    def take(self, records: int, *, commits: bool = True) -> None:
        """A micro-batch of the reader."""
        result, _ = self.topic.take(self.reader, records, no_rows=rows_of([], self.window), commits=commits)
        if result is not None and result.num_rows:
            names = ["g1", *(name for name in result.column_names if name.startswith("b"))]
            columns = [result.column(name).to_pylist() for name in names]
            starts = result.column("g0").cast(pa.int64()).to_pylist()
            self.out += [((start, key), values) for start, key, *values in zip(starts, *columns, strict=True)]

    @property
    def late(self) -> int:
        return sum(task.late for task in self.upstream)

    def close(self) -> None:
        for task in (*self.upstream, self.reader):
            task.store.close()


def rows_of(events: Sequence[tuple[int, Event]], window: TimeWindow) -> pa.Table:
    copies = [(number, event, start) for number, event in events for start in windows_of(event.time, window)]
    return pa.table(
        {
            "g0": pa.array([start for _, _, start in copies], pa.timestamp("us", "UTC")),
            "g1": pa.array([event.key for _, event, _ in copies], pa.string()),
            "i0": pa.array([number for number, _, _ in copies], pa.int64()),
            "i1": pa.array([text_of(number) for number, _, _ in copies], pa.string()),
            TASK_COLUMN: pa.array([0] * len(copies), pa.int32()),
            EVENT_TIME_COLUMN: pa.array([event.time for _, event, _ in copies], pa.timestamp("us", "UTC")),
            TIMESTAMP_COLUMN: pa.array([event.record_ms for _, event, _ in copies], pa.int64()),
        }
    )


@pytest.fixture
def new_pipeline(tmp_path: Path) -> Iterator[Callable[..., Pipeline]]:
    made: list[Pipeline] = []

    def make(declared: WindowedAggregate = COUNTED, delay: int = 5 * SECOND) -> Pipeline:
        made.append(Pipeline(Path(tempfile.mkdtemp(dir=tmp_path)), declared, delay, 3600 * SECOND))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


EVENTS = st.lists(
    st.builds(
        Event,
        task=st.integers(0, TASKS - 1),
        key=st.sampled_from([None, "", "a", "b", "x" * 450]),
        time=st.integers(-60, 120).map(lambda half: half * SECOND // 2),
        record_ms=st.sampled_from([-1, 0, 20_000]),
    ),
    max_size=50,
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["u0", "u1", "read"]), st.integers(0, 9), st.sampled_from(["commit", "undo", "restore"])),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(
    events=EVENTS,
    steps=STEPS,
    delay=st.sampled_from([0, 1, 3, 10]),
    window=st.sampled_from([TUMBLING, HOPPING]),
    mode=st.sampled_from(["append", "update"]),
)
def test_results_do_not_depend_on_cuts_order_undone_batches_and_restores(
    events: list[Event], steps: list[tuple[str, int, str]], delay: int, window: TimeWindow, mode: OutputMode
) -> None:
    declared = replace(DISTINCT, window=window, output_mode=mode)
    groups, late, closed = reference(events, window, delay * SECOND, 5 * SECOND)
    values = {group: distinct_values(events, group, window, delay * SECOND) for group in groups}
    for group, [texts, pairs] in values.items():
        groups[group] += [len(texts), len(pairs)]
    with tempfile.TemporaryDirectory() as directory:
        pipeline = Pipeline(Path(directory), declared, delay * SECOND, 5 * SECOND)
        try:
            run_steps(pipeline, events, steps)
            complete = {g: v for g, v in groups.items() if closed is not None and g[0] + window.size_us <= closed}
            assert pipeline.late == late
            assert pipeline.reader.late == 0
            if mode == "append":
                assert len(pipeline.out) == len(complete), "each group leaves once"
                assert dict(pipeline.out) == complete
            else:
                assert dict(pipeline.out) == groups
            sent = {one.task for one in pipeline.topic if isinstance(one, UpstreamWatermark)}
            entries = sum(len(each) for group in groups.keys() - complete.keys() for each in values[group])
            assert pipeline.reader.store.count() == len(groups) - len(complete) + entries + len(sent), (
                "closed windows are deleted"
            )
        finally:
            pipeline.close()


@settings(max_examples=50, deadline=None)
@given(
    events=EVENTS,
    steps=STEPS,
    delay=st.sampled_from([0, 1, 3, 10]),
    window=st.sampled_from([TUMBLING, HOPPING]),
    mode=st.sampled_from(["append", "update"]),
)
def test_partial_results_of_upstream_tasks_give_the_same_windows(
    events: list[Event], steps: list[tuple[str, int, str]], delay: int, window: TimeWindow, mode: OutputMode
) -> None:
    declared = replace(COUNTED, window=window, output_mode=mode)
    groups, late, closed = reference(events, window, delay * SECOND, 5 * SECOND)
    with tempfile.TemporaryDirectory() as directory:
        pipeline = Pipeline(Path(directory), declared, delay * SECOND, 5 * SECOND, partials=True)
        try:
            run_steps(pipeline, events, steps)
            complete = {g: v for g, v in groups.items() if closed is not None and g[0] + window.size_us <= closed}
            assert (pipeline.late, pipeline.reader.late) == (late, 0)
            if mode == "append":
                assert len(pipeline.out) == len(complete)
            assert dict(pipeline.out) == (complete if mode == "append" else groups)
        finally:
            pipeline.close()


def run_steps(pipeline: Pipeline, events: list[Event], steps: list[tuple[str, int, str]]) -> None:
    """Run micro-batches of all tasks, some of them undone, until every event is read."""
    waiting = {task: [(n, event) for n, event in enumerate(events) if event.task == task] for task in range(TASKS)}
    rest = [*[(f"u{task}", len(events), "commit") for task in range(TASKS)], ("read", 10_000, "commit")]
    for who, size, outcome in [*steps, *rest]:
        task = pipeline.reader if who == "read" else pipeline.upstream[int(who[1:])]
        if outcome == "restore":
            task.restore()
        if who == "read":
            pipeline.take(size, commits=outcome != "undo")
            continue
        pipeline.send(int(who[1:]), waiting[int(who[1:])][:size], commits=outcome != "undo")
        if outcome != "undo":
            del waiting[int(who[1:])][:size]


def test_a_task_sends_one_watermark_per_window_and_none_without_progress(new_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = new_pipeline()
    for number, second in enumerate([0, 1, 2, 14, 15, 16, 17, 25, 24]):
        pipeline.send(0, [(number, Event(0, "a", second * SECOND))])
    times = [one.time_us // SECOND for one in pipeline.topic if isinstance(one, UpstreamWatermark)]
    assert times == [-10, 0, 10, 20]  # 0 s less the delay is within the window that ends at 0 s


def test_windows_wait_for_every_upstream_task(new_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = new_pipeline()
    pipeline.send(0, [(0, Event(0, "a", 0)), (1, Event(0, "b", 100 * SECOND))])
    pipeline.take(10)
    assert pipeline.out == []
    pipeline.send(1, [(2, Event(1, "a", SECOND))])
    pipeline.send(1, [(3, Event(1, "c", 16 * SECOND))])
    pipeline.take(10)
    assert pipeline.out == [((0, "a"), [2, 2])]


def test_a_row_of_a_closed_window_does_not_begin_it_anew(new_pipeline: Callable[..., Pipeline]) -> None:
    """At least once, rows may come again behind the watermark that they moved."""
    pipeline = new_pipeline()
    for task in range(TASKS):
        pipeline.send(task, [(task, Event(task, "a", 0)), (task, Event(task, "b", 30 * SECOND))])
    again = pipeline.topic[0]
    pipeline.take(10)
    pipeline.topic.append(again)
    pipeline.take(10)
    assert pipeline.out == [((0, "a"), [2, 1])]
    assert pipeline.reader.late == 1


def mark(task: int, seconds: int, sent_ms: int, tasks: int = 2) -> UpstreamWatermark:
    return UpstreamWatermark(source="clicks", task=task, tasks=tasks, time_us=seconds * SECOND, sent_ms=sent_ms)


@pytest.mark.parametrize(
    ("upstream", "idle_timeout_ms", "seconds"),
    [
        pytest.param([], 0, None, id="none"),
        pytest.param([mark(0, 7, 0)], 0, None, id="one-of-two"),
        pytest.param([mark(0, 7, 0), mark(1, 5, 0)], 0, 5, id="the-least"),
        pytest.param([mark(0, 7, 0), mark(1, 5, 0, tasks=3)], 0, None, id="a-partition-more"),
        pytest.param([mark(0, 7, 900), mark(1, 5, 0)], 1000, 5, id="silent-for-less-than-the-timeout"),
        pytest.param([mark(0, 7, 1001), mark(1, 5, 0)], 1000, 7, id="silent-for-longer"),
        pytest.param([mark(0, 7, 2000)], 1000, None, id="never-seen-and-no-time-passed"),
        pytest.param([mark(0, 7, 2000).after(mark(0, 6, 0))], 1000, 7, id="never-seen"),
        pytest.param([mark(0, 7, 2000), mark(2, 6, 1500, tasks=3)], 1000, None, id="never-seen-and-little-time-passed"),
    ],
)
def test_least_watermark(upstream: list[UpstreamWatermark], idle_timeout_ms: int, seconds: int | None) -> None:
    found = least_watermark(COUNTED.watermark_sources, upstream, idle_timeout_ms)
    assert found == (NO_TIME if seconds is None else seconds * SECOND)
