"""Joins in event time, without Spark and broker: two upstream tasks of each side, their topic, the task that joins."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.stateful_task import RepartitionTopic, Task

from headrace.spark.runtime.operators import event_time_join_operator
from headrace.spark.runtime.operators.event_time_join_operator import EventTimeJoinOperator, latest_partners
from headrace.spark.runtime.operators.watermark_operator import WatermarkOperator
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_schema import store_of_join
from headrace.spark.runtime.rows.rows import encode_key, encode_rows
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    JOIN_SIDES,
    KEY_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    Join,
    JoinKind,
    JoinSide,
    TimeBound,
    TimeOrder,
    Watermark,
)

SECOND = 1_000_000
TASKS = 2
LEFT, RIGHT = 0, 1
TIMESTAMP = pa.timestamp("us", "UTC")


def join_of(kind: JoinKind = "inner", *, is_strict: bool = False) -> Join:
    """A left row is joined with the right rows from its own time until its end: Nexmark's auctions and bids."""
    return Join(
        name="joined-by-id",
        key_types=('"string"',),
        left=JoinSide(
            columns=(("n", '"long"'), ("until", '"timestamp"')),
            expressions=("n", "until"),
            key_expressions=("id",),
            times=(("start", "start"),),
            bounds=(TimeBound(column="until", shift_us=int(is_strict)),),
        ),
        right=JoinSide(
            columns=(("m", '"long"'),),
            expressions=("m",),
            key_expressions=("id",),
            times=(("time", "time"),),
            bounds=(TimeBound(column="time", shift_us=0),),
        ),
        columns=(("n", '"long"'), ("m", '"long"')) if kind != "left_semi" else (("n", '"long"'),),
        changelog_topic="app-joined-by-id-changelog",
        kind=kind,
        in_event_time=True,
        orders=(
            TimeOrder(side=LEFT, earlier="start", later="time", is_strict=False),
            TimeOrder(side=RIGHT, earlier="time", later="until", is_strict=is_strict),
        ),
    )


@dataclass(frozen=True)
class Event:
    """A record of a source partition of one side. Its place in the list is its number."""

    side: int
    task: int
    key: str | None
    time: int | None
    lasts: int | None = 0  # of left rows: until their end

    @property
    def until(self) -> int | None:
        return None if self.time is None or self.lasts is None else self.time + self.lasts


def on_time(events: Sequence[Event], delay: int) -> tuple[list[int], list[int | None]]:
    """Numbers of the rows that are not late in their own partition, and the watermark of each side at the end."""
    newest: dict[tuple[int, int], int] = {}
    kept = []
    for number, event in enumerate(events):
        where = event.side, event.task
        if event.time is None or where not in newest or event.time >= newest[where] - delay:
            kept.append(number)
        if event.time is not None:
            newest[where] = max(newest.get(where, event.time), event.time)
    watermarks = []
    for side in (LEFT, RIGHT):
        times = [newest[side, task] for task in range(TASKS) if (side, task) in newest]
        watermarks.append(min(times) - delay if len(times) == TASKS else None)
    return kept, watermarks


def reference(events: Sequence[Event], join: Join, delay: int) -> Counter[tuple[int | None, ...]]:
    """The join of the rows on time; rows without a partner as far as none can come any more."""
    is_strict = join.orders[1].is_strict
    kept, watermarks = on_time(events, delay)
    pairs = [
        (n, m)
        for n in kept
        for m in kept
        if events[n].side == LEFT and events[m].side == RIGHT and meet(events[n], events[m], is_strict)
    ]
    if join.kind == "left_semi":
        return Counter((n,) for n in {n for n, _ in pairs})
    found: Counter[tuple[int | None, ...]] = Counter(pairs)
    for side in join.preserved:
        for number in kept:
            event = events[number]
            if event.side == side and not any(pair[side] == number for pair in pairs):
                latest = latest_of(event, is_strict)
                passed = watermarks[1 - side]
                if latest is None or (passed is not None and latest < passed):
                    found[(number, None) if side == LEFT else (None, number)] += 1
    return found


def meet(left: Event, right: Event, is_strict: bool) -> bool:
    if left.key is None or left.key != right.key or None in (left.time, left.until, right.time):
        return False
    assert left.time is not None
    assert right.time is not None
    assert left.until is not None
    return left.time <= right.time and (right.time < left.until if is_strict else right.time <= left.until)


def latest_of(event: Event, is_strict: bool) -> int | None:
    """The latest time of a partner; None for a row that has none."""
    if event.key is None or event.time is None:
        return None
    if event.side == RIGHT:
        return event.time
    return None if event.until is None else event.until - int(is_strict)


class Pipeline:
    """Upstream tasks that judge rows, the repartition topic as a list, and the task that reads it."""

    def __init__(self, directory: Path, join: Join, delay: int) -> None:
        self.join = join
        self.upstream = [
            [Task(WatermarkOperator(clock(side, delay)), directory / f"u{side}{task}") for task in range(TASKS)]
            for side in JOIN_SIDES
        ]
        self.reader = Task(EventTimeJoinOperator(join), directory / "reader")
        self.topic = RepartitionTopic()
        self.out: Counter[tuple[int | None, ...]] = Counter()
        self.largest = 0

    def send(self, side: int, task: int, events: Sequence[tuple[int, Event]], *, commits: bool = True) -> None:
        """A micro-batch of an upstream task: rows on time to the topic, then its watermark."""
        rows, written = self.upstream[side][task].run(rows_of(events), commits=commits)
        if rows is None or written is None:
            return
        records = self.records(side, rows)
        self.topic.send(records, written.announced_us, source=JOIN_SIDES[side], task=task, tasks=TASKS)

    def records(self, side: int, rows: pa.Table) -> pa.Table:
        """Return rows as the sink of a side writes them."""
        names = ("n", "until", "start") if side == LEFT else ("n", "start")
        needed = [rows.column(name) for name in ("key", "start", *(("until",) if side == LEFT else ()))]
        null = np.any([column.is_null().to_numpy() for column in needed], axis=0)
        if side not in self.join.preserved:
            rows, null = rows.filter(pa.array(~null)), null[~null]
        fingerprint = store_of_join(self.join).rows.fingerprint
        return pa.table(
            {
                "side": pa.array(np.where(null, 2 + side, side).astype(np.int8)),
                "row": encode_rows([rows.column(name).combine_chunks() for name in names], fingerprint),
                KEY_COLUMN: encode_key([rows.column("key").combine_chunks()]),
                TASK_COLUMN: pa.array([0] * rows.num_rows, pa.int32()),
            }
        )

    def take(self, records: int, *, commits: bool = True) -> None:
        """A micro-batch of the reader."""
        no_rows = self.records(LEFT, rows_of([]))
        results, written = self.topic.take(self.reader, records, no_rows=no_rows, commits=commits)
        names = [name for name, _ in self.join.columns]
        for table in results or ():
            self.largest = max(self.largest, table.num_rows)
            self.out.update(zip(*(table.column(name).to_pylist() for name in names), strict=True))
        if written is not None:
            keys = written.keys.to_pylist()
            assert keys == sorted(set(keys))

    def stored_rows(self, side: int) -> int:
        return sum(key[:1] == bytes([1 + side]) for key, _ in self.reader.store.values())

    def close(self) -> None:
        for task in (*self.upstream[0], *self.upstream[1], self.reader):
            task.store.close()


def clock(side: str, delay: int) -> Watermark:
    return Watermark(
        name=f"joined-by-id-{side}-watermark",
        source=side,
        window=None,
        event_time_expression="time",
        delay_us=delay,
        max_ahead_us=3600 * SECOND,
        announces_each_batch=False,
        changelog_topic="",
    )


def rows_of(events: Sequence[tuple[int, Event]]) -> pa.Table:
    times = pa.array([event.time for _, event in events], TIMESTAMP)
    return pa.table(
        {
            "key": pa.array([event.key for _, event in events], pa.string()),
            "n": pa.array([number for number, _ in events], pa.int64()),
            "start": times,
            "until": pa.array([event.until for _, event in events], TIMESTAMP),
            TASK_COLUMN: pa.array([0] * len(events), pa.int32()),
            EVENT_TIME_COLUMN: times,
            TIMESTAMP_COLUMN: pa.array([-1] * len(events), pa.int64()),
        }
    )


EVENTS = st.lists(
    st.builds(
        Event,
        side=st.sampled_from([LEFT, RIGHT]),
        task=st.integers(0, TASKS - 1),
        key=st.sampled_from([None, "", "a", "a", "b", "x" * 450]),
        time=st.one_of(st.none(), *[st.integers(-20, 60).map(lambda half: half * SECOND // 2)] * 9),
        lasts=st.one_of(st.none(), *[st.integers(-2, 30).map(lambda half: half * SECOND // 2)] * 9),
    ),
    max_size=60,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["u00", "u01", "u10", "u11", "read", "read"]),
        st.integers(0, 9),
        st.sampled_from(["commit", "commit", "undo", "restore"]),
    ),
    max_size=50,
)


@settings(max_examples=200, deadline=None)
@given(
    events=EVENTS,
    steps=STEPS,
    delay=st.sampled_from([0, 1, 3, 10]),
    kind=st.sampled_from(["inner", "left", "right", "full", "left_semi"]),
    is_strict=st.booleans(),
)
def test_results_do_not_depend_on_cuts_interleaving_undone_batches_and_restores(
    events: list[Event], steps: list[tuple[str, int, str]], delay: int, kind: JoinKind, is_strict: bool
) -> None:
    join, delay_us = join_of(kind, is_strict=is_strict), delay * SECOND
    with tempfile.TemporaryDirectory() as directory:
        pipeline = Pipeline(Path(directory), join, delay_us)
        waiting = [
            [[(n, e) for n, e in enumerate(events) if (e.side, e.task) == (side, task)] for task in range(TASKS)]
            for side in (LEFT, RIGHT)
        ]
        ends = [(f"u{side}{task}", 99, "commit") for side in range(2) for task in range(TASKS)]
        try:
            for who, size, outcome in [*steps, *ends, ("read", 999, "commit")]:
                commits = outcome != "undo"
                if who == "read":
                    if outcome == "restore":
                        pipeline.reader.restore()
                    pipeline.take(size, commits=commits)
                    continue
                side, task = int(who[1]), int(who[2])
                if outcome == "restore":
                    pipeline.upstream[side][task].restore()
                pipeline.send(side, task, waiting[side][task][:size], commits=commits)
                if commits:
                    del waiting[side][task][:size]
            assert pipeline.out == reference(events, join, delay_us)
            check_state(pipeline, events, delay_us)
        finally:
            pipeline.close()


def check_state(pipeline: Pipeline, events: Sequence[Event], delay_us: int) -> None:
    """No row is there that can match no more: at once on a preserved side, else when a second is over."""
    kept, watermarks = on_time(events, delay_us)
    is_strict = pipeline.join.orders[1].is_strict
    for side in (LEFT, RIGHT):
        passed = watermarks[1 - side]
        latest = [latest_of(events[n], is_strict) for n in kept if events[n].side == side]
        alive = [one for one in latest if one is not None and (passed is None or one >= passed)]
        if side in pipeline.join.preserved:
            assert pipeline.stored_rows(side) == len(alive)
        elif pipeline.join.kind != "left_semi" or side == RIGHT:
            lagging = [one for one in latest if one is not None and passed is not None and passed - SECOND <= one]
            assert len(alive) <= pipeline.stored_rows(side) <= max(len(alive), len(lagging))
    if not any(pipeline.stored_rows(side) for side in (LEFT, RIGHT)):
        left_over = Counter(key[:1] for key, _ in pipeline.reader.store.values())
        assert not left_over[b"\x05"]
        assert not left_over[b"\x06"]


@pytest.fixture
def new_pipeline(tmp_path: Path) -> Iterator[Callable[..., Pipeline]]:
    made: list[Pipeline] = []

    def make(join: Join, delay: int = 5 * SECOND) -> Pipeline:
        made.append(Pipeline(Path(tempfile.mkdtemp(dir=tmp_path)), join, delay))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


def all_sent(pipeline: Pipeline, events: Sequence[Event], size: int) -> None:
    """Send and process events in their order, some at a time."""
    for first in range(0, len(events), size):
        piece = list(enumerate(events))[first : first + size]
        for side in (LEFT, RIGHT):
            for task in range(TASKS):
                pipeline.send(side, task, [(n, e) for n, e in piece if (e.side, e.task) == (side, task)])
        pipeline.take(len(pipeline.topic))


@pytest.mark.parametrize("kind", ["inner", "full"])
def test_state_stays_flat_over_a_long_time(kind: JoinKind, new_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = new_pipeline(join_of(kind))
    events = [
        Event(side=n % 2, task=n // 2 % TASKS, key=f"k{n % 14 // 2}", time=n * SECOND, lasts=20 * SECOND)
        for n in range(1_200)
    ]
    counts = []
    for first in range(0, len(events), 100):
        piece = list(enumerate(events))[first : first + 100]
        for side in (LEFT, RIGHT):
            for task in range(TASKS):
                pipeline.send(side, task, [(n, e) for n, e in piece if (e.side, e.task) == (side, task)])
        pipeline.take(len(pipeline.topic))
        counts.append(pipeline.reader.store.count())
    assert pipeline.out == reference(events, pipeline.join, 5 * SECOND)
    assert max(counts) <= counts[0] < 120
    assert min(counts) > 10


def test_pairs_of_a_busy_key_leave_in_tables_of_bounded_size(
    new_pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_time_join_operator, "PAIRS_PER_TABLE", 100)
    pipeline = new_pipeline(join_of("full"))
    events = [
        Event(side=n % 2, task=n // 2 % TASKS, key="a", time=n * SECOND // 20, lasts=n * 1000) for n in range(400)
    ]
    all_sent(pipeline, events, 90)
    assert pipeline.out == reference(events, pipeline.join, 5 * SECOND)
    assert 10 < pipeline.largest <= 100


def test_a_silent_task_holds_back_rows_without_a_partner(new_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = new_pipeline(join_of("left"))
    pipeline.send(LEFT, 0, [(0, Event(LEFT, 0, "a", 0, SECOND))])
    pipeline.send(RIGHT, 0, [(1, Event(RIGHT, 0, "b", 100 * SECOND))])
    pipeline.take(9)
    assert pipeline.out == Counter()
    pipeline.send(RIGHT, 1, [(2, Event(RIGHT, 1, "b", 6 * SECOND))])
    pipeline.take(9)
    # The watermark is at 1 s: a bid at this very second may still come.
    assert pipeline.out == Counter()
    pipeline.send(RIGHT, 1, [(3, Event(RIGHT, 1, "b", 6 * SECOND + 1))])
    pipeline.take(9)
    assert pipeline.out == Counter({(0, None): 1})


def test_equal_rows_count_once_in_a_distinct_join(new_pipeline: Callable[..., Pipeline]) -> None:
    """A row may come again after the other side has passed its window, and before its own side has."""
    pipeline = new_pipeline(replace(join_of(), is_distinct=True))
    row, partner = (7, Event(LEFT, 0, "a", 0, 10 * SECOND)), (8, Event(RIGHT, 0, "a", 5 * SECOND))
    pipeline.send(LEFT, 0, [row, row])
    pipeline.send(RIGHT, 0, [partner, partner])
    pipeline.take(9)
    for task in range(TASKS):
        pipeline.send(RIGHT, task, [(9, Event(RIGHT, task, "z", 100 * SECOND))])
    pipeline.take(9)
    pipeline.send(LEFT, 0, [row])
    pipeline.send(LEFT, 1, [row])
    pipeline.take(9)
    assert pipeline.out == Counter({(7, 8): 1})


def test_a_task_that_was_passed_over_repeats_no_row_of_a_distinct_join(new_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = new_pipeline(replace(join_of(), is_distinct=True, idle_timeout_ms=1000))
    row, partner = (7, Event(LEFT, 0, "a", 0, 10 * SECOND)), (8, Event(RIGHT, 0, "a", 5 * SECOND))

    def send_both(task: int, sent_ms: int, left: tuple[int, Event], right: tuple[int, Event]) -> None:
        pipeline.send(LEFT, task, [left])
        pipeline.send(RIGHT, task, [right])
        pipeline.topic[:] = [
            replace(one, sent_ms=sent_ms) if isinstance(one, UpstreamWatermark) and at >= pipeline.topic.read else one
            for at, one in enumerate(pipeline.topic)
        ]
        pipeline.take(9)

    send_both(0, 0, row, partner)
    late = Event(LEFT, 0, "z", 100 * SECOND, SECOND)
    send_both(0, 5000, (9, late), (10, replace(late, side=RIGHT, key="y")))
    assert pipeline.out == Counter({(7, 8): 1})
    send_both(1, 6000, row, partner)
    assert pipeline.out == Counter({(7, 8): 1})
    assert pipeline.reader.late == 2


def test_bounds_do_not_wrap_around() -> None:
    join = join_of(is_strict=True)
    least, greatest = -(1 << 63), (1 << 63) - 1
    times = np.array([least, 0, greatest])
    assert latest_partners(join, LEFT, {"until": times}, 3).tolist() == [least, -1, greatest - 1]
    later = replace(join, left=replace(join.left, bounds=(TimeBound(column="until", shift_us=-7),)))
    assert latest_partners(later, LEFT, {"until": times}, 3).tolist() == [least + 7, 7, greatest]
