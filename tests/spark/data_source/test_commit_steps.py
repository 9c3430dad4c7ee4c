"""Rules of exactly-once commits: single cases, and random histories of runs that die between any two requests."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.longer import LONG
from tests.spark.data_source.sink_queries import QUERY, record

from headrace.errors import Fenced, HeadraceError, SinkError
from headrace.spark.data_source.commit_record import (
    CommitRecord,
    TaskTransaction,
    is_leftover,
    transactional_id_of,
)
from headrace.spark.data_source.commit_steps import (
    AbortLeftovers,
    Batch,
    Effect,
    EndTransactions,
    FindOpen,
    ReadRecord,
    TakeLock,
    TaskReport,
    WriteRecord,
    abort_batch,
    commit_batch,
    plan_task,
)

# Histories of each kind.
HISTORIES = 20_000 if LONG else 400


def batch(number: int, *, run: str = "run1", rewrite: int | None = None) -> Batch:
    return Batch(query_id=QUERY, run_id=run, batch_id=number, rewrite=rewrite)


def test_tasks_write_what_is_not_decided() -> None:
    assert plan_task(None, batch(0)) == ("write", 0)
    assert plan_task(record(4), batch(5)) == ("write", 3)
    assert plan_task(record(4), batch(5, run="run2")) == ("write", 4)
    assert plan_task(record(5), batch(5, run="run2")) == ("skip", 4)


def test_a_batch_without_records_of_earlier_ones_is_refused_unless_it_is_named() -> None:
    with pytest.raises(SinkError, match=r"offsets\.retention\.minutes") as caught:
        plan_task(None, batch(5))
    assert 'rewriteBatchId", "5"' in caught.value.fix
    with pytest.raises(SinkError, match=r"offsets\.retention\.minutes"):
        plan_task(None, batch(5, rewrite=4))
    assert plan_task(None, batch(5, rewrite=5)) == ("write", 0)


def test_a_batch_is_rewritten_once() -> None:
    again = batch(5, run="run2", rewrite=5)
    assert plan_task(record(5), again) == ("write", 4)
    assert plan_task(record(5, is_rewrite=True), again) == ("skip", 4)


def test_a_run_behind_the_record_is_refused() -> None:
    with pytest.raises(Fenced, match="batch 6 is committed already"):
        plan_task(record(6), batch(5))
    with pytest.raises(Fenced, match="without this task attempt"):
        plan_task(record(5), batch(5))


# A cluster and runs of a query as far as the rules see them.


class Crash(Exception):
    """The process died."""


@dataclass
class Transaction:
    number: int
    epoch: int = -1
    is_open: bool = False
    was_committed: bool = False
    rows: list[Any] = field(default_factory=list)


@dataclass
class Cluster:
    """Transactions as of transaction.version 2: each end raises the epoch, and may be repeated."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    visible: list[Any] = field(default_factory=list)
    record: CommitRecord | None = None
    lock: int = 0
    timeouts: int = 0

    def begin(self, tid: str) -> tuple[int, int]:
        each = self.transactions.setdefault(tid, Transaction(len(self.transactions)))
        if each.is_open:
            self.finish(each, commit=False)
        each.epoch += 1
        each.was_committed = False
        return each.number, each.epoch

    def produce(self, tid: str, epoch: int, rows: Sequence[Any]) -> None:
        each = self.transactions[tid]
        if each.epoch != epoch:
            raise Fenced("producer-fenced", "fenced")
        each.is_open = True
        each.rows += rows

    def end(self, tid: str, epoch: int, *, commit: bool) -> bool:
        each = self.transactions[tid]
        if each.is_open and each.epoch == epoch:
            self.finish(each, commit=commit)
            return commit
        if each.epoch != epoch + 1:
            raise Fenced("query-replaced", "used since")
        return each.was_committed

    def finish(self, each: Transaction, *, commit: bool) -> None:
        if commit:
            self.visible += each.rows
        each.rows, each.is_open, each.was_committed = [], False, commit
        each.epoch += 1

    def expire(self, tid: str) -> None:
        if self.transactions[tid].is_open:
            self.finish(self.transactions[tid], commit=False)
            self.timeouts += 1


Life = Generator[None, None, None]


class Run:
    """One start of the query. `live` yields before each request, where it may be killed or overtaken."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.lock = -1
        self.error: HeadraceError | None = None

    def live(self) -> Life:
        world = self.world
        while world.finished + 1 < world.batches:
            now = batch(world.finished + 1, run=self.name)
            reports: list[TaskReport] = []
            try:
                # The rows of a batch are fixed, their order and their tasks are not.
                rows = [(now.batch_id, n) for n in range(world.rows[now.batch_id])]
                world.chance.shuffle(rows)
                tasks = world.chance.randint(1, 4)
                for number in range(tasks):
                    yield from self.attempt(now, number, rows[number::tasks], reports)
                yield from self.steps(now, commit_batch(now, reports))
            except HeadraceError as error:
                self.error = error
                with contextlib.suppress(HeadraceError):
                    yield from self.steps(now, abort_batch(now, reports))
                return
            yield
            # Spark's commit log. A run that was replaced may still write it.
            world.finished = max(world.finished, now.batch_id)

    def attempt(self, now: Batch, number: int, rows: list[Any], reports: list[TaskReport]) -> Life:
        """One task: attempts that die, then one whose report Spark takes, then perhaps a speculative one that lives."""
        chance, cluster = self.world.chance, self.world.cluster
        dying = chance.choice([0, 0, 0, 1, 2])
        late = chance.random() < 0.1
        for at in range(dying + 1 + late):
            if not rows:
                reports.append(TaskReport(batch=now))
                return
            yield
            try:
                step, incarnation = plan_task(cluster.record, now)
            except HeadraceError:
                if at > dying:
                    return
                raise
            if step == "skip":
                reports.append(TaskReport(batch=now, incarnation=incarnation, skipped=True))
                return
            mine = TaskTransaction(task=number, attempt=at, producer_id=0, producer_epoch=0)
            tid = transactional_id_of(QUERY, incarnation, self.name, mine)
            yield
            producer, epoch = cluster.begin(tid)
            for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                yield
                cluster.produce(tid, epoch, part)
            if at == dying:
                done = TaskTransaction(task=number, attempt=at, producer_id=producer, producer_epoch=epoch)
                reports.append(TaskReport(batch=now, incarnation=incarnation, transaction=done, records=len(rows)))

    def steps(self, now: Batch, steps: Generator[Effect, Any, None]) -> Life:
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                return
            yield from self.pause(effect)
            answer = yield from self.apply(now, effect)

    def pause(self, effect: Effect) -> Life:
        yield

    def apply(self, now: Batch, effect: Effect) -> Generator[None, None, Any]:
        cluster = self.world.cluster
        match effect:
            case ReadRecord():
                return cluster.record
            case TakeLock():
                cluster.lock += 1
                self.lock = cluster.lock
            case WriteRecord(written):
                if self.lock != cluster.lock:
                    raise Fenced("producer-fenced", "the lock is another run's")
                cluster.record = CommitRecord.parse(written.to_metadata())
                if self.world.chance.random() < 0.1:  # written, but the answer was lost
                    raise SinkError("sink-failed", "no answer")
            case FindOpen(incarnation, run, tasks):
                return frozenset(
                    each
                    for each in tasks
                    if (found := cluster.transactions[transactional_id_of(QUERY, incarnation, run, each)]).is_open
                    and found.epoch == each.producer_epoch
                )
            case EndTransactions(incarnation, run, tasks, commit):
                ended = {}
                for each in tasks:
                    yield
                    tid = transactional_id_of(QUERY, incarnation, run, each)
                    ended[each] = cluster.end(tid, each.producer_epoch, commit=commit)
                return ended
            case AbortLeftovers(incarnation, only, but):
                listed = [tid for tid, each in cluster.transactions.items() if each.is_open]
                for tid in listed:
                    yield
                    if is_leftover(tid, QUERY, incarnation, only_run=only, except_run=but):
                        cluster.begin(tid)
        return None


class World:
    def __init__(self, seed: int, *, expiring: bool, concurrent: bool) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster()
        self.batches = self.chance.randint(1, 4)
        self.rows = [self.chance.choice([0, 1, 3, 6]) for _ in range(self.batches)]
        self.finished = -1
        self.expiring, self.concurrent = expiring, concurrent
        self.runs = 0

    def start(self) -> tuple[Run, Life]:
        self.runs += 1
        run = Run(self, f"run{self.runs}")
        return run, run.live()

    def play(self) -> HeadraceError | None:
        """Runs that die, overtake each other and come back, then one that is left alone. Return its last error."""
        alive = [self.start()[1]]
        for _ in range(self.chance.randint(5, 120)):
            if not alive or (self.concurrent and self.chance.random() < 0.03):
                alive.append(self.start()[1])
            at = self.chance.randrange(len(alive))
            if next(alive[at], Crash) is Crash or self.chance.random() < 0.05:
                alive.pop(at)
            if self.expiring and self.chance.random() < 0.05:
                self.expire()
            self.check()
        error: HeadraceError | None = None
        for _ in range(12):
            run, life = self.start()
            for _ in life:
                self.check()
            error = run.error
            if self.finished + 1 == self.batches:
                return None
        return error

    def expire(self) -> None:
        is_open = sorted(tid for tid, each in self.cluster.transactions.items() if each.is_open)
        if is_open:
            self.cluster.expire(self.chance.choice(is_open))

    def check(self) -> None:
        twice = [row for row, count in Counter(self.cluster.visible).items() if count > 1]
        assert not twice, f"written twice: {twice}"
        expected = {(number, n) for number in range(self.finished + 1) for n in range(self.rows[number])}
        assert not (missing := expected - set(self.cluster.visible)), f"lost: {missing}"


def test_each_row_is_committed_once_whoever_dies() -> None:
    for seed in range(HISTORIES):
        world = World(seed, expiring=False, concurrent=False)
        error = world.play()
        # Without time-outs every history ends well.
        assert error is None, f"seed {seed}: {error}"
        world.check()
        # Readers of committed records wait for nothing that earlier runs left open.
        last = world.cluster.record
        left = [tid for tid, each in world.cluster.transactions.items() if each.is_open]
        assert not last or not [t for t in left if is_leftover(t, QUERY, last.incarnation, except_run=last.run_id)], (
            left
        )


def test_runs_that_overtake_each_other_commit_each_row_once() -> None:
    for seed in range(HISTORIES):
        world = World(seed, expiring=False, concurrent=True)
        error = world.play()
        assert error is None or error.code in ("query-replaced", "batch-undecided"), f"seed {seed}: {error}"
        world.check()


def test_time_outs_end_in_whole_batches_or_in_a_refusal() -> None:
    endings: Counter[str] = Counter()
    for seed in range(HISTORIES):
        world = World(seed, expiring=True, concurrent=seed % 2 == 0)
        error = world.play()
        endings["" if error is None else error.code] += 1
        assert error is None or error.code == "batch-undecided", f"seed {seed}: {error}"
        world.check()
    # The refusal is reached, and it is rare.
    assert 0 < endings["batch-undecided"] < HISTORIES / 10
