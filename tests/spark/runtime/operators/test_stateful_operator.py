"""The step that runs operators with state: several stores, deletes, a failure between two stores. No Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.spark.runtime import worker_process
from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.batches.stages import StageContext
from headrace.spark.runtime.operators.stateful_operator import StatefulStep, StoreChange, open_store
from headrace.spark.runtime.rows.row_schema import RowColumn, RowSchema, StoreSpec
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.topology.nodes import TASK_COLUMN

ROWS = RowSchema((RowColumn("key", "k", "string"), RowColumn("max", "v", "string")))
LAST = StoreSpec(name="last", changelog_topic="app-last-changelog", rows=ROWS)
FIRST = StoreSpec(name="first", changelog_topic="app-first-changelog", rows=ROWS)


@dataclass(frozen=True)
class FirstAndLast:
    """Keeps the first value of each key in one store and the last one in another; the value "-" deletes the latter."""

    fails: bool = False

    @property
    def name(self) -> str:
        return "first-and-last"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (FIRST, LAST)

    def start(self) -> _Running:
        return _Running(self.fails)


class _Running:
    def __init__(self, fails: bool) -> None:
        self._fails = fails
        self._rows: dict[int, dict[bytes, bytes]] = {}

    def begin(self, batch: BatchKey) -> None:
        self._rows = {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        pairs = zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True)
        self._rows.setdefault(partition, {}).update(pairs)

    def end(self, partition: int) -> _Changes | None:
        rows = self._rows.pop(partition, None)
        return _Changes(partition, dict(sorted(rows.items())), self._fails) if rows else None


@dataclass
class _Changes:
    partition: int
    rows: dict[bytes, bytes]
    fails: bool

    @property
    def stores(self) -> Sequence[StoreChange]:
        keys = pa.array(list(self.rows), pa.binary())
        values = pa.array([None if value == b"-" else value for value in self.rows.values()], pa.binary())

        def last(old: pa.Array) -> pa.Array:
            if self.fails:
                raise ZeroDivisionError
            return values

        def first(old: pa.Array) -> pa.Array:
            pairs = zip(old.to_pylist(), values.to_pylist(), strict=True)
            return pa.array([mine if had is None else had for had, mine in pairs], pa.binary())

        changes = [StoreChange(store=LAST, keys=keys, merge=last)]
        if set(self.rows.values()) != {b"-"}:
            changes.append(StoreChange(store=FIRST, keys=keys, merge=first))
        return changes

    def results(self) -> pa.Table:
        return pa.table({"k": list(self.rows)})


class Stage:
    """Runs micro-batches of two tasks in this process, as the stage in a worker does."""

    def __init__(self, servers: str, directory: Path) -> None:
        self._servers, self._directory = servers, directory
        with NetworkClient(servers) as client:
            topics = client.known_topics([FIRST.changelog_topic, LAST.changelog_topic], refresh=True).topics
        self._topic_ids = {name: str(topic.topic_id) for name, topic in topics.items()}
        self.context: StageContext | None = None

    def run(
        self, number: int, rows: list[tuple[int, bytes, bytes]], *, after: int | None, fails: bool = False
    ) -> list[bytes]:
        """Keys of the resulting rows. `after`: number of the batch that is committed."""
        committed = None if after is None else BatchKey(incarnation="run", batch_id=after)
        tasks = tuple(
            TaskPlan(
                partition=partition,
                ranges=(InputRange(topic="in", partition=partition, start=0, end=number, topic_id="one"),),
                committed=committed,
            )
            for partition in (0, 1)
        )
        plan = MicroBatchPlan(
            subtopology_id="s",
            batch=BatchKey(incarnation="run", batch_id=number),
            member_id="m",
            member_epoch=1,
            bootstrap_servers=self._servers,
            state_dir=str(self._directory),
            slots=(SlotPlan(slot=0, tasks=tasks),),
            topic_ids=self._topic_ids,
        )
        stage_reports = StageReports(plan.state_dir, plan.subtopology_id, plan.batch)
        self.context = StageContext(plan=plan, slot=plan.slot(0), stage_reports=stage_reports, fetches=True)
        for task in tasks:
            self.context.report(task.partition).reached = {f"in-{task.partition}": number}
        operator = StatefulStep(FirstAndLast(fails), "fetch").start(self.context)
        columns = zip(*rows, strict=True) if rows else ([], [], [])
        table = pa.table(dict(zip((TASK_COLUMN, "k", "v"), map(list, columns), strict=True)))
        table = table.set_column(0, TASK_COLUMN, table.column(0).cast(pa.int32()))
        assert list(operator.push(table)) == []
        return [key for found in operator.finish() for key in found.column("k").to_pylist()]

    def stored(self, spec: StoreSpec, partition: int = 0) -> dict[bytes, bytes]:
        assert self.context is not None
        return dict(open_store(self.context, spec, partition).values())

    def stands(self, spec: StoreSpec, partition: int = 0) -> tuple[int, dict[str, int]]:
        """(number of the prepared batch, its input offsets)."""
        assert self.context is not None
        found = open_store(self.context, spec, partition).prepared()
        assert found is not None
        return found.batch.batch_id, dict(found.input_offsets)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker({}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics({FIRST.changelog_topic: 2, LAST.changelog_topic: 2})
        yield broker.bootstrap_servers
        worker_process.forget_client(broker.bootstrap_servers)


@pytest.fixture
def stage(servers: str, tmp_path: Path) -> Iterator[Stage]:
    yield Stage(servers, tmp_path)
    for _, store in worker_process._stores.values():
        store.close()
    worker_process._stores.clear()


def changelog(servers: str, spec: StoreSpec) -> list[tuple[int, bytes, bytes | None]]:
    """(partition, key, value) of the records so far."""
    from headrace.client.fetcher import Fetcher

    with NetworkClient(servers) as client:
        wanted = [(spec.changelog_topic, partition) for partition in (0, 1)]
        ends = Admin(client).list_offsets(dict.fromkeys(wanted, "latest"))
        ranges = {where: (0, ends[where].offset) for where in wanted if ends[where].offset}
        return [
            (batch.partition, *pair)
            for batch in Fetcher(client).fetch_ranges(ranges, columns=("key", "value"))
            for pair in zip(*(batch.table.column(name).to_pylist() for name in ("key", "value")), strict=True)
        ]


def test_all_stores_of_a_task_stand_at_the_same_batch(stage: Stage, servers: str) -> None:
    before = {spec.name: len(changelog(servers, spec)) for spec in (FIRST, LAST)}
    assert stage.run(1, [(0, b"b", b"1"), (1, b"c", b"2"), (0, b"a", b"3")], after=None) == [b"a", b"b", b"c"]
    assert stage.run(2, [(0, b"b", b"4")], after=1) == [b"b"]
    assert stage.stored(FIRST) == {b"a": b"3", b"b": b"1"}
    assert stage.stored(LAST) == {b"a": b"3", b"b": b"4"}
    for spec in (FIRST, LAST):  # also task 1, of which the second batch had no row
        assert [stage.stands(spec, task) for task in (0, 1)] == [(2, {"in-0@one": 2}), (2, {"in-1@one": 2})]
    assert sorted(changelog(servers, LAST)[before["last"] :]) == sorted(
        [(0, b"a", b"3"), (0, b"b", b"1"), (1, b"c", b"2"), (0, b"b", b"4")]
    )


def test_a_deleted_key_is_a_tombstone_and_the_untouched_store_moves_on(stage: Stage, servers: str) -> None:
    stage.run(1, [(0, b"a", b"1")], after=None)
    before = len(changelog(servers, FIRST))
    stage.run(2, [(0, b"a", b"-")], after=1)
    assert (stage.stored(FIRST), stage.stored(LAST)) == ({b"a": b"1"}, {})
    assert stage.stands(FIRST) == stage.stands(LAST) == (2, {"in-0@one": 2})
    assert len(changelog(servers, FIRST)) == before
    assert (0, b"a", None) in changelog(servers, LAST)
    assert stage.context is not None
    report = stage.context.report(0)
    assert (report.state_keys, report.state_updates, report.changelog_records) == (1, 1, 1)


def test_a_failure_at_one_store_prepares_none(stage: Stage) -> None:
    stage.run(1, [(0, b"a", b"1")], after=None)
    with pytest.raises(ZeroDivisionError):
        stage.run(2, [(0, b"a", b"2")], after=1, fails=True)
    assert stage.stands(FIRST) == stage.stands(LAST) == (1, {"in-0@one": 1})
    stage.run(3, [(0, b"b", b"3")], after=1)
    assert stage.stored(FIRST) == stage.stored(LAST) == {b"a": b"1", b"b": b"3"}


def test_a_batch_that_was_not_committed_is_undone_in_every_store(stage: Stage) -> None:
    stage.run(1, [(0, b"a", b"1")], after=None)
    stage.run(2, [(0, b"a", b"2"), (0, b"z", b"2")], after=1)
    stage.run(3, [(0, b"b", b"3")], after=1)
    assert stage.stored(FIRST) == stage.stored(LAST) == {b"a": b"1", b"b": b"3"}
