"""Steps by which tasks write a batch and the driver commits it, exactly once. Pure: effects are yielded.

Every function that talks to the cluster is a generator. It yields an effect and is sent the result, so that the same
code runs against Kafka (`sink_transactions`) and against a model that crashes between any two effects (the tests).

1. A task reads the record (`plan_task`). If the batch was decided by an earlier run, it writes nothing.
2. The driver takes the lock, which fences every other driver of the query, and reads the record again (`commit_batch`).
3. It records the decision in a transaction of the lock. A driver that was fenced in between cannot.
4. It ends the transactions of the tasks. Killed between 3 and 4, the next run does it (`_finish`).

Step 4 can fail for one reason only: the transactions timed out because no run came back in time. If all of them did,
nothing of the batch is in the topic and the decision is taken back; if some did, the batch is refused from then on, as
neither leaving the rest out nor writing everything again would be exactly once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from headrace.errors import Fenced, SinkError
from headrace.spark.data_source.commit_record import CommitRecord, TaskTransaction, name_tasks

__all__ = [
    "AbortLeftovers",
    "Batch",
    "EndTransactions",
    "FindOpen",
    "ReadRecord",
    "TakeLock",
    "TaskReport",
    "WriteRecord",
    "abort_batch",
    "commit_batch",
    "commit_once",
    "plan_task",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that Spark asks for.

    Attributes:
        query_id: Spark's id of the query, which is kept in the checkpoint.
        run_id: Spark's id of this start of the query.
        batch_id: Number of the batch, from 0.
        rewrite: The option `rewriteBatchId`.
        is_recorded: Whether the decision is recorded: not for a batch query, which nothing runs again.
    """

    query_id: str
    run_id: str
    batch_id: int
    rewrite: int | None = None
    is_recorded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Result of one task.

    Attributes:
        batch: The batch.
        incarnation: The number of the run, as the task read it.
        transaction: None if it wrote nothing.
        skipped: The batch was decided by an earlier run.
        topics: Topics that it wrote.
        records: How many records it wrote.
    """

    batch: Batch
    incarnation: int = 0
    transaction: TaskTransaction | None = None
    skipped: bool = False
    topics: tuple[str, ...] = ()
    records: int = 0


# Effects. The result of each is what the runner sends back.


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the newest record; `CommitRecord` or None. Waits for a transaction that writes it."""


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Become the only driver that may write the record; None."""


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write the record under the lock; None. Raises Fenced if another driver has taken the lock."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class FindOpen:
    """Return those of the transactions that are open under their own identity, as a frozenset."""

    incarnation: int
    run_id: str
    tasks: tuple[TaskTransaction, ...]


@dataclass(frozen=True, slots=True)
class EndTransactions:
    """Commit or abort; a mapping transaction → whether it is committed. Raises if an outcome is unknown."""

    incarnation: int
    run_id: str
    tasks: tuple[TaskTransaction, ...]
    commit: bool


@dataclass(frozen=True, slots=True)
class AbortLeftovers:
    """Abort open transactions for which `is_leftover` is true; None. Best effort."""

    incarnation: int
    only_run: str = ""
    except_run: str = ""


Effect = ReadRecord | TakeLock | WriteRecord | FindOpen | EndTransactions | AbortLeftovers
Steps = Generator[Effect, Any, None]
TaskStep = Literal["write", "skip"]
_RESTART: Final = "Start the query again from its checkpoint."


def plan_task(record: CommitRecord | None, batch: Batch) -> tuple[TaskStep, int]:
    """Return what a task of the batch does, and the incarnation of its run.

    Raises:
        SinkError: `batch-undecided`: whether the batch is in the topic is unknown.
        Fenced: `query-replaced`: another run is ahead of this one, or has decided.
    """
    incarnation = _incarnation(record, batch)
    if _writes_again(record, batch):
        return "write", incarnation
    if record is None:
        if batch.batch_id > 0:
            raise _missing_record(batch)
        return "write", incarnation
    if record.batch_id > batch.batch_id:
        raise _behind(record, batch)
    if record.batch_id < batch.batch_id:
        return "write", incarnation
    if record.run_id == batch.run_id:
        # A speculative or forgotten attempt that starts when the batch is over.
        raise _replaced(batch, "the batch has been decided without this task attempt")
    return "skip", incarnation


def commit_batch(batch: Batch, reports: Sequence[TaskReport]) -> Steps:
    """Commit a batch whose tasks have all reported.

    Args:
        batch: The batch.
        reports: One per task.

    Raises:
        SinkError: `batch-undecided`, `sink-refused`.
        Fenced: `query-replaced`.
    """
    written = [each for each in reports if each.transaction is not None]
    tasks = tuple(sorted(each.transaction for each in reports if each.transaction is not None))
    record: CommitRecord | None = yield ReadRecord()
    if not written and record is not None and record.batch_id < batch.batch_id:
        return  # no rows: running the batch again would write none either
    # From here on no other driver can change the record.
    yield TakeLock()
    record = yield ReadRecord()
    step, incarnation = plan_task(record, batch)
    if step == "skip":
        if written:
            raise _replaced(batch, "another run has decided the batch while this one wrote it")
        assert record is not None
        yield from _finish(batch, record)
        return
    if any(each.skipped for each in reports) or any(each.incarnation != incarnation for each in written):
        raise _replaced(batch, "the record of the query changed while the batch was written")
    # The last look before the decision: a transaction that timed out, or whose attempt was replaced, must not be named.
    found = yield FindOpen(incarnation, batch.run_id, tasks)
    if lost := [each for each in tasks if each not in found]:
        raise _timed_out(f"Batch {batch.batch_id} is not committed", lost)
    decided = CommitRecord(
        batch_id=batch.batch_id,
        run_id=batch.run_id,
        incarnation=incarnation,
        tasks=tasks,
        is_rewrite=batch.rewrite == batch.batch_id,
    )
    yield WriteRecord(decided)
    ended: Mapping[TaskTransaction, bool] = yield EndTransactions(incarnation, batch.run_id, tasks, commit=True)
    if not all(ended.values()):
        raise _partly(batch, decided, ended)
    yield AbortLeftovers(incarnation)


def commit_once(batch: Batch, reports: Sequence[TaskReport]) -> Steps:
    """Commit what a batch query has written: nothing is recorded, as nothing runs the query again.

    Args:
        batch: The write.
        reports: One per task.

    Raises:
        SinkError: `sink-failed`, `batch-undecided`.
    """
    tasks = tuple(sorted(each.transaction for each in reports if each.transaction is not None))
    if not tasks:
        return
    found = yield FindOpen(0, batch.run_id, tasks)
    if lost := [each for each in tasks if each not in found]:
        raise _timed_out("The write is not committed", lost)
    ended: Mapping[TaskTransaction, bool] = yield EndTransactions(0, batch.run_id, tasks, commit=True)
    if not all(ended.values()):
        lost = [task for task, committed in ended.items() if not committed]
        raise SinkError(
            "batch-undecided",
            f"The write is committed in part: the transactions of task {name_tasks(lost)} timed out.",
            "Write the rows of these Spark partitions again. Raise kafka.transaction.timeout.ms.",
        )
    yield AbortLeftovers(0, only_run=batch.run_id)


def abort_batch(batch: Batch, reports: Iterable[TaskReport]) -> Steps:
    """Abort the transactions of a batch that failed. Spark calls this after a failed commit too: a decision stays.

    Args:
        batch: The batch.
        reports: Those of the tasks that succeeded.
    """
    written = [each for each in reports if each.transaction is not None]
    if not batch.is_recorded:
        tasks = tuple(sorted(each.transaction for each in reports if each.transaction is not None))
        yield EndTransactions(0, batch.run_id, tasks, commit=False)
        # Tasks without a report may have written as well.
        yield AbortLeftovers(0, only_run=batch.run_id)
        return
    if written:
        # 1. With the lock, a decision of this run either is in the record or can no longer be written.
        yield TakeLock()
        record: CommitRecord | None = yield ReadRecord()
        # 2. Decided: the next run ends the transactions.
        if record is not None and (record.batch_id, record.run_id) == (batch.batch_id, batch.run_id):
            return
    # 3. Tasks read the record one after another, and it may have changed in between.
    for incarnation in sorted({each.incarnation for each in written}):
        found = (each.transaction for each in written if each.incarnation == incarnation)
        mine = tuple(sorted(each for each in found if each is not None))
        yield EndTransactions(incarnation, batch.run_id, mine, commit=False)
        yield AbortLeftovers(incarnation, only_run=batch.run_id)


def _finish(batch: Batch, record: CommitRecord) -> Steps:
    """End what an earlier run has decided; the tasks of this run have written nothing."""
    ended: Mapping[TaskTransaction, bool] = yield EndTransactions(
        record.incarnation, record.run_id, record.tasks, commit=True
    )
    if all(ended.values()):
        yield AbortLeftovers(record.incarnation, except_run=record.run_id)
        return
    if any(ended.values()):
        raise _partly(batch, record, ended)
    # Nothing of the batch is in the topic. The rows of this run are gone already, so the next run writes them.
    yield WriteRecord(
        replace(
            record,
            batch_id=batch.batch_id - 1,
            run_id=batch.run_id,
            incarnation=_incarnation(record, batch),
            tasks=(),
            is_rewrite=False,
        )
    )
    raise SinkError(
        "sink-failed",
        f"Batch {batch.batch_id} was decided, but its transactions timed out before they were committed. No row of it "
        "is in the topic.",
        f"{_RESTART} It writes the batch. To have more time for a restart, raise kafka.transaction.timeout.ms.",
        batch_id=batch.batch_id,
    )


def _timed_out(what: str, lost: Iterable[TaskTransaction]) -> SinkError:
    return SinkError(
        "sink-failed",
        f"{what}: the transactions of task {name_tasks(lost)} are not open any more. They time out after "
        "kafka.transaction.timeout.ms.",
        "Raise kafka.transaction.timeout.ms above the time of a batch, or make batches smaller.",
    )


def _incarnation(record: CommitRecord | None, batch: Batch) -> int:
    if record is None:
        return 0
    return record.incarnation + (record.run_id != batch.run_id)


def _writes_again(record: CommitRecord | None, batch: Batch) -> bool:
    """Return whether the option allows to write the batch whatever the record has."""
    if batch.rewrite != batch.batch_id:
        return False
    # Once only: the option is still set when the query is started again.
    return record is None or record.batch_id < batch.batch_id or not record.is_rewrite


def _missing_record(batch: Batch) -> SinkError:
    return SinkError(
        "batch-undecided",
        f"Whether batch {batch.batch_id} of query {batch.query_id} is in the topic is unknown: Kafka has no record of "
        "earlier batches. They were written by another sink, or the record expired (offsets.retention.minutes after "
        "the last batch).",
        f'Check whether the last rows of the topic belong to the batch. To write it: .option("rewriteBatchId", '
        f'"{batch.batch_id}"). If it is there, start with a new checkpointLocation behind it.',
        batch_id=batch.batch_id,
    )


def _behind(record: CommitRecord, batch: Batch) -> Fenced:
    return Fenced(
        "query-replaced",
        f"Batch {batch.batch_id} of query {batch.query_id} is not written: batch {record.batch_id} is committed "
        "already. Another run of the query is ahead, or the checkpoint was set back.",
        "Stop the other run. A checkpoint that was set back cannot be used: start with a new checkpointLocation.",
        batch_id=batch.batch_id,
    )


def _replaced(batch: Batch, why: str) -> Fenced:
    return Fenced(
        "query-replaced",
        f"Batch {batch.batch_id} of query {batch.query_id} is not committed by this run: {why}.",
        f"Stop other runs of the query, if there are any. {_RESTART}",
        batch_id=batch.batch_id,
    )


def _partly(batch: Batch, record: CommitRecord, ended: Mapping[TaskTransaction, bool]) -> SinkError:
    lost = [task for task, committed in ended.items() if not committed]
    return SinkError(
        "batch-undecided",
        f"Batch {batch.batch_id} of query {batch.query_id} is committed in part: {len(record.tasks) - len(lost)} of "
        f"{len(record.tasks)} transactions. Those of task {name_tasks(lost)} timed out before a run came back to end "
        "them.",
        f'To write the whole batch, with the committed rows twice: .option("rewriteBatchId", "{batch.batch_id}"). '
        "Raise kafka.transaction.timeout.ms above the longest time that the query may be down.",
        batch_id=batch.batch_id,
    )
