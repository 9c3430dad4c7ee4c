"""Joins as of event time, without Spark and broker: upstream tasks of both sides, their topic, the task that joins."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.operators.test_event_time_join_operator import (
    LEFT,
    RIGHT,
    SECOND,
    STEPS,
    TASKS,
    Event,
    Pipeline,
    all_sent,
    join_of,
    on_time,
)
from tests.spark.runtime.stateful_task import Task

from headrace.spark.runtime.operators import versioned_join_operator
from headrace.spark.runtime.operators.versioned_join_operator import (
    VersionedJoinOperator,
    superseded_versions,
    valid_versions,
)
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.topology.nodes import Join, JoinKind, TimeBound, TimeOrder


def versioned_join_of(kind: JoinKind = "inner") -> Join:
    """A left row is joined with the newest right row at its start."""
    join = join_of(kind)
    return replace(
        join,
        left=replace(join.left, bounds=(TimeBound(column="start", shift_us=0),)),
        right=replace(join.right, bounds=()),
        orders=(TimeOrder(side=RIGHT, earlier="time", later="start", is_strict=False),),
        is_versioned=True,
    )


class VersionedPipeline(Pipeline):
    """The same upstream tasks and topic, with a task that joins versions."""

    def __init__(self, directory: Path, join: Join, delay: int) -> None:
        super().__init__(directory, join, delay)
        self.reader.store.close()
        self.reader = Task(VersionedJoinOperator(join), directory / "versions")

    def entries(self, kind: int) -> int:
        return sum(key[:1] == bytes([kind]) for key, _ in self.reader.store.values())


def valid_at(events: Sequence[Event], kept: Sequence[int], row: Event) -> list[int]:
    """Numbers of the versions that are valid for a row: the plain definition."""
    if row.key is None or row.time is None:
        return []
    versions = [(n, events[n]) for n in kept if events[n].side == RIGHT and events[n].key == row.key]
    times = [one.time for _, one in versions if one.time is not None and one.time <= row.time]
    return [n for n, one in versions if times and one.time == max(times)]


def matches_nothing(event: Event) -> bool:
    """Whether a left row leaves at once: the sink of its side finds a null in the key or in a stored time."""
    return event.key is None or event.time is None or event.until is None


def reference(events: Sequence[Event], kind: JoinKind, delay: int) -> Counter[tuple[int | None, ...]]:
    """Rows on time that the watermark of the right side has passed, with their versions."""
    kept, (_, complete) = on_time(events, delay)
    found: Counter[tuple[int | None, ...]] = Counter()
    for number in kept:
        event = events[number]
        if event.side == RIGHT:
            continue
        if matches_nothing(event):
            versions = []
        elif event.time is None or complete is None or event.time >= complete:
            continue
        else:
            versions = valid_at(events, kept, event)
        found.update((number, version) for version in versions)
        if not versions and kind == "left":
            found[number, None] += 1
    return found


EVENTS = st.lists(
    st.builds(
        Event,
        side=st.sampled_from([LEFT, RIGHT]),
        task=st.integers(0, TASKS - 1),
        key=st.sampled_from([None, "", "a", "a", "b", "x" * 450]),
        time=st.one_of(st.none(), *[st.integers(-20, 60).map(lambda half: half * SECOND // 2)] * 9),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(
    events=EVENTS,
    steps=STEPS,
    delay=st.sampled_from([0, 1, 3, 10]),
    kind=st.sampled_from(["inner", "left"]),
)
def test_results_do_not_depend_on_cuts_interleaving_undone_batches_and_restores(
    events: list[Event], steps: list[tuple[str, int, str]], delay: int, kind: JoinKind
) -> None:
    delay_us = delay * SECOND
    with tempfile.TemporaryDirectory() as directory:
        pipeline = VersionedPipeline(Path(directory), versioned_join_of(kind), delay_us)
        waiting = [
            [[(n, e) for n, e in enumerate(events) if (e.side, e.task) == (side, task)] for task in range(TASKS)]
            for side in (LEFT, RIGHT)
        ]
        ends = [(f"u{side}{task}", 99, "commit") for side in range(2) for task in range(TASKS)]
        try:
            for who, size, outcome in [*steps, *ends, ("read", 999, "commit"), ("read", 999, "commit")]:
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
            assert pipeline.out == reference(events, kind, delay_us)
            assert pipeline.reader.late == 0
            check_state(pipeline, events, delay_us)
        finally:
            pipeline.close()


def check_state(pipeline: VersionedPipeline, events: Sequence[Event], delay_us: int) -> None:
    """Exactly the rows that wait are there, and of each key all versions that a later row can need."""
    kept, (left, complete) = on_time(events, delay_us)
    waiting = [
        events[n]
        for n in kept
        if events[n].side == LEFT
        and not matches_nothing(events[n])
        and (complete is None or (events[n].time or 0) >= complete)
    ]
    assert pipeline.entries(1) == len(waiting)
    versions = [
        (one.key, one.time)
        for one in (events[n] for n in kept if events[n].side == RIGHT)
        if one.key is not None and one.time is not None
    ]
    passed = None if left is None or complete is None else min(left, complete)
    needed = [
        (key, time)
        for key, time in versions
        if passed is None or not any(k == key and time < t <= passed for k, t in versions)
    ]
    assert len(needed) <= pipeline.entries(2) <= len(versions)


@pytest.fixture
def new_pipeline(tmp_path: Path) -> Iterator[Callable[..., VersionedPipeline]]:
    made: list[VersionedPipeline] = []

    def make(join: Join, delay: int = 5 * SECOND) -> VersionedPipeline:
        made.append(VersionedPipeline(Path(tempfile.mkdtemp(dir=tmp_path)), join, delay))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


def test_a_row_waits_for_versions_that_come_later(new_pipeline: Callable[..., VersionedPipeline]) -> None:
    pipeline = new_pipeline(versioned_join_of(), 0)
    pipeline.send(LEFT, 0, [(0, Event(LEFT, 0, "a", 10 * SECOND))])
    pipeline.send(RIGHT, 0, [(1, Event(RIGHT, 0, "a", 5 * SECOND)), (2, Event(RIGHT, 0, "a", 90 * SECOND))])
    pipeline.take(9)
    assert pipeline.out == Counter()  # the other task of the right side may have a later version
    pipeline.send(RIGHT, 1, [(3, Event(RIGHT, 1, "a", 9 * SECOND)), (4, Event(RIGHT, 1, "a", 10 * SECOND))])
    pipeline.take(9)
    assert pipeline.out == Counter()  # and more of them at this very time
    pipeline.send(RIGHT, 1, [(5, Event(RIGHT, 1, "z", 10 * SECOND + 1))])
    pipeline.take(9)
    assert pipeline.out == Counter({(0, 4): 1})


def test_state_is_the_newest_version_of_each_key(new_pipeline: Callable[..., VersionedPipeline]) -> None:
    pipeline = new_pipeline(versioned_join_of("left"))
    events = [Event(side=n % 2, task=n // 2 % TASKS, key=f"k{n % 14 // 2}", time=n * SECOND) for n in range(1_200)]
    counts = []
    for first in range(0, len(events), 100):
        piece = list(enumerate(events))[first : first + 100]
        for side in (LEFT, RIGHT):
            for task in range(TASKS):
                pipeline.send(side, task, [(n, e) for n, e in piece if (e.side, e.task) == (side, task)])
        pipeline.take(len(pipeline.topic))
        counts.append(pipeline.reader.store.count())
    assert pipeline.out == reference(events, "left", 5 * SECOND)
    assert max(counts[1:]) <= 130
    # A key without new versions keeps its last one for ever.
    for task in range(TASKS):
        for side in (LEFT, RIGHT):
            pipeline.send(side, task, [(1_200, Event(side, task, "z", 9_000 * SECOND))])
    pipeline.take(99)
    pipeline.send(RIGHT, 0, [(1_201, Event(RIGHT, 0, "z", 9_000 * SECOND))])
    pipeline.take(99)
    assert pipeline.entries(1) == 2
    assert pipeline.entries(2) == 7 + TASKS + 1


def test_results_leave_in_tables_of_bounded_size(
    new_pipeline: Callable[..., VersionedPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned_join_operator, "PAIRS_PER_TABLE", 100)
    pipeline = new_pipeline(versioned_join_of("left"))
    events = [Event(side=n % 2, task=n // 2 % TASKS, key="a", time=n // 20 * SECOND) for n in range(800)]
    all_sent(pipeline, events, 90)
    assert pipeline.out == reference(events, "left", 5 * SECOND)
    assert max(Counter(n for n, _ in pipeline.out).values()) == 10  # versions of equal times are all valid
    assert 10 < pipeline.largest <= 100


def test_rows_of_a_task_that_was_passed_over_are_counted_as_late(
    new_pipeline: Callable[..., VersionedPipeline],
) -> None:
    pipeline = new_pipeline(replace(versioned_join_of("left"), idle_timeout_ms=1000), 0)

    def send_both(task: int, sent_ms: int, left: tuple[int, Event], right: tuple[int, Event]) -> None:
        pipeline.send(LEFT, task, [left])
        pipeline.send(RIGHT, task, [right])
        pipeline.topic[:] = [
            replace(one, sent_ms=sent_ms) if isinstance(one, UpstreamWatermark) and at >= pipeline.topic.read else one
            for at, one in enumerate(pipeline.topic)
        ]
        pipeline.take(9)

    send_both(0, 0, (0, Event(LEFT, 0, "a", 10 * SECOND)), (1, Event(RIGHT, 0, "a", 5 * SECOND)))
    send_both(0, 5000, (2, Event(LEFT, 0, "a", 100 * SECOND)), (3, Event(RIGHT, 0, "b", 100 * SECOND)))
    assert pipeline.out == Counter({(0, 1): 1})
    send_both(1, 6000, (4, Event(LEFT, 1, "a", 10 * SECOND)), (5, Event(RIGHT, 1, "a", 6 * SECOND)))
    assert pipeline.out == Counter({(0, 1): 1})
    assert pipeline.reader.late == 2


def test_no_version_is_valid_before_the_first_one() -> None:
    none = np.empty(0, np.int64)
    assert valid_versions(none, none, np.array([0]), np.array([5])).counts.tolist() == [0]
    found = valid_versions(np.array([1, 0]), np.array([3, 9]), np.array([0, 0, 1, 1]), np.array([8, 9, 2, 99]))
    assert found.counts.tolist() == [0, 1, 0, 1]
    assert found.order[found.begins[[1, 3]]].tolist() == [1, 0]


def test_versions_before_the_newest_one_that_has_been_passed_are_superseded() -> None:
    keys, times = np.array([0, 0, 0, 1, 1]), np.array([5, 7, 7, 1, 20])
    assert superseded_versions(keys, times, 6).tolist() == []
    assert superseded_versions(keys, times, 7).tolist() == [0]
    assert superseded_versions(keys, times, 20).tolist() == [0, 3]
