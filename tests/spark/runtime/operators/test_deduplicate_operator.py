"""Deduplication in event time against a plain reference: any cuts, undone micro-batches, restores. No Spark."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.runtime.operators import deduplicate_operator
from headrace.spark.runtime.operators.deduplicate_operator import CLOCK_KEY, DeduplicateOperator
from headrace.spark.runtime.rows.rows import decode_rows
from headrace.spark.runtime.stores.store import (
    BatchKey,
    StoreIdentity,
    StorePosition,
    StoreReader,
    StoreWrites,
    TaskStore,
)
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, TASK_COLUMN, TIMESTAMP_COLUMN, Deduplication

SECOND = 1_000_000
BY_ID = Deduplication(
    name="unique-by-id",
    key_columns=(("id", '"string"'),),
    key_expressions=("id",),
    event_time_expression="ts",
    delay_us=10 * SECOND,
    max_ahead_us=3600 * SECOND,
    changelog_topic="app-unique-by-id-changelog",
)


@dataclass(frozen=True)
class Event:
    """One row. Times in microseconds; `record_ms` is the timestamp of its record."""

    key: str | None
    time: int | None
    record_ms: int = 1_700_000_000_000


def reference(events: Sequence[Event], declared: Deduplication) -> tuple[list[int], int]:
    """Return numbers of the kept events, and the number of late ones: the module's two rules, word by word."""
    newest: int | None = None
    kept: dict[str | None, list[int]] = {}
    found, late = [], 0
    for number, event in enumerate(events):
        if event.time is None or (newest is not None and event.time < newest - declared.delay_us):
            late += 1
        elif all(abs(event.time - time) > declared.delay_us for time in kept.get(event.key, [])):
            kept.setdefault(event.key, []).append(event.time)
            found.append(number)
        ahead = (
            event.time is not None
            and event.record_ms >= 0
            and event.time > event.record_ms * 1000 + declared.max_ahead_us
        )
        if event.time is not None and not ahead and (newest is None or event.time > newest):
            newest = event.time
    return found, late


@dataclass
class Task:
    """A task's store and changelog, as the stateful step and the driver treat them."""

    directory: Path
    declared: Deduplication = BY_ID
    store: TaskStore = field(init=False)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    committed: BatchKey | None = None
    batch: int = 0
    restores: int = 0
    late: int = 0
    watermark_ms: int | None = None

    def __post_init__(self) -> None:
        self.store = self._opened()

    def _opened(self) -> TaskStore:
        [spec] = DeduplicateOperator(self.declared).stores
        identity = StoreIdentity(changelog_topic_id="t", schema_hash=spec.rows.hash, boot_id="b")
        return TaskStore(self.directory / f"store-{self.restores}", identity)

    def run(self, events: Sequence[Event], first: int, *, commits: bool = True, tables: int = 1) -> list[int]:
        """Run a micro-batch of events numbered from `first`; the numbers of its rows."""
        self.batch += 1
        key = BatchKey(incarnation="run", batch_id=self.batch)
        operator = DeduplicateOperator(self.declared).start()
        operator.begin(key)
        rows = table_of(events, first)
        for piece in np.array_split(np.arange(rows.num_rows), tables):
            if len(piece):
                operator.on_rows(0, rows.slice(int(piece[0]), len(piece)))
        changes = operator.end(0)
        position = StorePosition(batch=key, input_offsets={"in-0": first + len(events)}, changelog_offset=0)
        written: list[StoreWrites] = []
        if changes is None:
            written.append(StoreWrites(keys=pa.array([], pa.binary()), values=pa.array([], pa.binary())))
            self.store.update(self.committed, position, lambda _: written[0]).prepare(None)
        else:
            [change] = changes.stores
            assert hasattr(change, "update")

            def update(reader: StoreReader) -> StoreWrites:
                written.append(change.update(reader))
                return written[-1]

            self.store.update(self.committed, position, update).prepare(len(self.changelog))
        if not commits:
            return []
        self.committed = key
        newest = written[-1]
        self.changelog += zip(newest.keys.to_pylist(), newest.values.to_pylist(), strict=True)
        self.late += newest.late_rows
        self.watermark_ms = newest.watermark_ms
        return [] if changes is None else changes.results().column("number").to_pylist()

    def restore(self) -> None:
        """Go on with a new store that is made of the changelog alone."""
        if self.committed is None:  # nothing to stand at
            return
        self.store.close()
        self.restores += 1
        self.store = self._opened()
        writer = BatchKey(incarnation="restore", batch_id=self.restores)
        at = self.store.begin_replay(writer, 0, len(self.changelog))
        keys, values = zip(*self.changelog, strict=True) if self.changelog else ((), ())
        self.store.load(writer, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), len(self.changelog))
        assert at == 0
        over = self.store.position()
        assert over is not None
        self.store.assign_position(self.committed, {}, over=over)

    def content(self) -> dict[bytes, int]:
        """Store key → event time, of the committed values."""
        self.store.resolve_prepared(self.committed)
        keys, values = zip(*self.store.values(), strict=True) if self.store.count() else ((), ())
        fingerprint = DeduplicateOperator(self.declared).stores[0].rows.fingerprint
        [times] = decode_rows(pa.array(values, pa.binary()), [pa.int64()], fingerprint)
        return dict(zip(keys, times.to_pylist(), strict=True))


def table_of(events: Sequence[Event], first: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([event.key for event in events], pa.string()),
            "number": pa.array(range(first, first + len(events)), pa.int64()),
            TASK_COLUMN: pa.array([0] * len(events), pa.int32()),
            EVENT_TIME_COLUMN: pa.array([event.time for event in events], pa.timestamp("us", "UTC")),
            TIMESTAMP_COLUMN: pa.array([event.record_ms for event in events], pa.int64()),
        }
    )


@pytest.fixture
def new_task(tmp_path: Path) -> Iterator[Callable[..., Task]]:
    made: list[Task] = []

    def make(declared: Deduplication = BY_ID) -> Task:
        made.append(Task(Path(tempfile.mkdtemp(dir=tmp_path)), declared))
        return made[-1]

    yield make
    for task in made:
        task.store.close()


EVENTS = st.lists(
    st.builds(
        Event,
        key=st.sampled_from([None, "", "a", "b", "ab", "x" * 500, "x" * 501]),
        time=st.one_of(st.none(), st.integers(-40, 90).map(lambda second: second * SECOND // 2), st.just(1 << 62)),
        record_ms=st.sampled_from([-1, 0, 20_000]),
    ),
    max_size=60,
)
CUTS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["commit", "undo", "restore"])), max_size=30)


@settings(max_examples=120, deadline=None)
@given(events=EVENTS, cuts=CUTS, delay=st.sampled_from([0, 1, 3, 10]), tables=st.integers(1, 3))
def test_results_do_not_depend_on_cuts_undone_batches_and_restores(
    events: list[Event], cuts: list[tuple[int, str]], delay: int, tables: int
) -> None:
    declared = replace(BY_ID, delay_us=delay * SECOND, max_ahead_us=5 * SECOND)
    with tempfile.TemporaryDirectory() as directory:
        task = Task(Path(directory), declared)
        try:
            kept, at = [], 0
            for size, outcome in [*cuts, (len(events), "commit")]:
                if outcome == "restore":
                    before = task.content()
                    task.restore()
                    assert task.content() == before
                piece = events[at : at + size]
                kept += task.run(piece, at, commits=outcome != "undo", tables=tables)
                at += len(piece) if outcome != "undo" else 0
            assert (kept, task.late) == reference(events, declared)
        finally:
            task.store.close()


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(st.sampled_from([None, "", "a", "b", "x" * 500]), max_size=60), cuts=CUTS)
def test_without_a_clock_the_first_row_of_each_key_is_kept(keys: list[str | None], cuts: list[tuple[int, str]]) -> None:
    declared = replace(BY_ID, event_time_expression="", delay_us=0)
    events = [Event(key, 0) for key in keys]
    with tempfile.TemporaryDirectory() as directory:
        task = Task(Path(directory), declared)
        try:
            kept, at = [], 0
            for size, outcome in [*cuts, (len(events), "commit")]:
                if outcome == "restore":
                    task.restore()
                piece = events[at : at + size]
                kept += task.run(piece, at, commits=outcome != "undo")
                at += len(piece) if outcome != "undo" else 0
            assert kept == sorted({key: at for at, key in reversed(list(enumerate(keys)))}.values())
            assert (task.late, task.watermark_ms) == (0, None)
        finally:
            task.store.close()


def test_a_long_stream_keeps_its_state_small_and_its_results_right(new_task: Callable[..., Task]) -> None:
    """30,000 events, each up to 9 s early or late, a fifth of them repeated within the delay."""
    chance = random.Random(7)
    times = [second * SECOND // 20 for second in range(30_000)]
    events = []
    for number, time in enumerate(times):
        key = f"k{number - chance.randrange(100) if chance.random() < 0.2 else number}"
        events.append(Event(key, time + chance.randrange(9 * SECOND // 2)))
    task, kept, at, most = new_task(), [], 0, 0
    while at < len(events):
        size = chance.choice([1, 50, 2_000])
        kept += task.run(events[at : at + size], at)
        at += size
        most = max(most, task.store.count())
    assert (kept, task.late) == reference(events, BY_ID)
    assert task.late == 0
    # 20 events a second live for at most three delays, and a batch of 2,000 adds its own before the next one expires.
    assert most < 20 * 30 + 3 * 2_000
    task.run([Event("end", times[-1] + 1000 * SECOND)], at)
    assert list(task.content()) == [CLOCK_KEY, next(key for key in task.content() if key.endswith(b"end"))]


def test_kept_rows_are_changelog_records_and_expired_ones_tombstones(
    new_task: Callable[..., Task],
) -> None:
    task = new_task()
    assert task.run([Event("a", 0), Event("b", SECOND), Event("a", 2 * SECOND)], 0) == [0, 1]
    assert [value is None for _, value in task.changelog] == [False] * 3  # a, b, and the clock
    assert task.run([Event("a", SECOND), Event("b", 2 * SECOND)], 3) == []
    assert len(task.changelog) == 3  # duplicates change nothing
    assert task.run([Event("c", 60 * SECOND)], 5) == [5]
    assert sorted(key[-1:] for key, value in task.changelog[3:] if value is None) == [b"a", b"b"]


def test_expiry_is_bounded_and_goes_on(new_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplicate_operator, "MOST_EXPIRED", 3)
    task = new_task()
    events = [Event(f"k{number}", number) for number in range(8)]
    task.run(events, 0)
    sizes = []
    for number in range(4):
        assert task.run([Event(f"late-{number}", (100 + number) * SECOND)], 8 + number) == [8 + number]
        sizes.append(task.store.count())
    assert sizes == [1 + 5 + 1, 1 + 2 + 2, 1 + 0 + 3, 1 + 4]  # the clock, old entries, new ones


@pytest.mark.parametrize(
    ("events", "kept", "late"),
    [
        pytest.param([Event("a", 0), Event("a", 10 * SECOND)], [0], 0, id="exactly-the-delay-apart"),
        pytest.param([Event("a", 0), Event("a", 10 * SECOND + 1)], [0, 1], 0, id="further-apart"),
        pytest.param([Event("a", 10 * SECOND), Event("a", 0)], [0], 0, id="an-older-duplicate"),
        pytest.param([Event("z", 10 * SECOND), Event("a", 0)], [0, 1], 0, id="as-late-as-allowed"),
        pytest.param([Event("z", 10 * SECOND + 1), Event("a", 0)], [0], 1, id="too-late"),
        pytest.param([Event(None, 0), Event(None, 1), Event("", 2)], [0, 2], 0, id="null-keys-are-equal"),
        pytest.param([Event("a", None), Event("a", 0)], [1], 1, id="no-event-time"),
        pytest.param([Event("a", 1 << 62, 0), Event("b", 0, 0), Event("a", 1, 0)], [0, 1, 2], 0, id="far-future"),
        pytest.param([Event("a", 1 << 62, -1), Event("b", 0, -1)], [0], 1, id="records-without-a-timestamp"),
        pytest.param([Event("a", -(1 << 63) + 1), Event("b", 0), Event("a", 1)], [0, 1, 2], 0, id="far-past"),
        pytest.param([Event("x" * 500, 0), Event("x" * 501, 0), Event("x" * 500, 1)], [0, 1], 0, id="long-keys"),
    ],
)
def test_rules(new_task: Callable[..., Task], events: list[Event], kept: list[int], late: int) -> None:
    task = new_task()
    assert task.run(events, 0) == kept
    assert task.late == late


def test_one_batch_after_another_gives_the_same_as_one(new_task: Callable[..., Task]) -> None:
    """The watermark is stored: what is late in one micro-batch is late when it comes in the next one."""
    events = [Event("a", 100 * SECOND), Event("b", 85 * SECOND), Event("c", 95 * SECOND), Event("a", 95 * SECOND)]
    task = new_task()
    assert [number for at, event in enumerate(events) for number in task.run([event], at)] == [0, 2]
    assert (task.late, task.watermark_ms) == (1, 90_000)
    whole = new_task()
    assert whole.run(events, 0) == [0, 2]
    assert whole.content() == task.content()
