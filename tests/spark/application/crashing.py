"""kill -9 at one named point of the commit path, once, when the test asks for it: in the driver or in a Python worker.

The test writes names of points into a file, one per line; whoever comes to the first one takes the line away and dies.
What is wrapped here are functions of the runtime, which knows nothing of it. As `spark.python.daemon.module` this
module wraps the workers' functions before the daemon forks.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

DRIVER_POINTS = (
    "after the job, before TxnOffsetCommit",
    "after TxnOffsetCommit, before EndTxn",
    "after EndTxn, before the next plan",
    "driver, while opening",
    "driver, in undo",
    "after EndTxn, before the table is told",
    "in the table's commit",
)
DELTA_POINTS = (  # of a driver that publishes a roll of a Delta table
    "before the files of the roll have their names",
    "before the commit of the log",
    "behind the commit of the log",
    "behind the roll, before the journal",
)
ICEBERG_POINTS = (  # of a driver that publishes a roll of an Iceberg table
    "before the table is read",
    "before the append",
    "behind the append",
    "behind the append, before the journal",
)
DATABASE_POINTS = (  # of a driver that adds staged rows to a table of a database
    "before the rows are added",
    "behind the rows, before the commit of the database",
    "behind the commit of the database",
)
WORKER_POINTS = (
    "before the flush",
    "after the flush, before the job ends",
    "a store was prepared",
    "in the undo of a store",
    "worker, while opening",
    "a part of the table was written",
)


def _die_at(point: str) -> None:
    asked = Path(os.environ["CRASH_FILE"])
    try:
        seen = asked.stat()
        first, *others = asked.read_text().splitlines()
        if first != point:
            return
        # One of us gets it. The file itself is replaced in one step: the test takes a missing one for the last death.
        os.close(os.open(asked.with_suffix(f".{seen.st_ino}.{seen.st_mtime_ns}"), os.O_CREAT | os.O_EXCL))
        if others:
            aside = asked.with_suffix(".next")
            aside.write_text("\n".join(others))
            aside.rename(asked)
        else:
            asked.unlink()
    except (FileNotFoundError, FileExistsError, ValueError):
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _around(
    owner: type | ModuleType,
    method: Callable[..., Any],
    *,
    before: str = "",
    after: str = "",
    when: Callable[..., bool] | None = None,
) -> None:
    @functools.wraps(method)  # given as a method, not by its name, so that mypy sees it renamed
    def wrapped(*positional: Any, **named: Any) -> Any:
        hit = when is None or when(*positional, **named)
        if before and hit:
            _die_at(before)
        result = method(*positional, **named)
        if after and hit:
            _die_at(after)
        return result

    setattr(owner, method.__name__, wrapped)


def in_the_driver() -> None:
    from headrace.client.transactions import Transactions
    from headrace.spark.runtime.slots.slot_transactions import SlotTransactions
    from headrace.spark.runtime.stores.replicas import Replicas
    from headrace.spark.runtime.stores.store_restorer import StoreRestorer
    from headrace.spark.runtime.table_sinks import TableSinks
    from headrace.spark.sinks import delta_log, iceberg
    from headrace.spark.sinks.database import DatabaseSink
    from headrace.spark.sinks.delta import DeltaSink
    from headrace.spark.sinks.iceberg import IcebergSink
    from headrace.spark.sinks.parquet import ParquetSink

    def committing(*_: Any, commit: bool, **__: Any) -> bool:
        return commit

    catch_up = Replicas.catch_up

    def leaves_it_to_the_stage(*given: Any) -> Any:
        """As where no replica process runs, or it does not come to the end: else two points are never reached."""
        return catch_up(*given[:4])

    Replicas.catch_up = leaves_it_to_the_stage  # type: ignore[method-assign, assignment]
    _around(SlotTransactions, SlotTransactions.commit, before=DRIVER_POINTS[0])
    _around(Transactions, Transactions.end, before=DRIVER_POINTS[1], after=DRIVER_POINTS[2], when=committing)
    _around(StoreRestorer, StoreRestorer._run_job, before=DRIVER_POINTS[3])
    _around(SlotTransactions, SlotTransactions.renew, before=DRIVER_POINTS[4])
    _around(TableSinks, TableSinks.commit, before=DRIVER_POINTS[5], when=lambda _sinks, _plan, reports: bool(reports))
    _around(ParquetSink, ParquetSink._publish, before=DRIVER_POINTS[6])
    _around(DeltaSink, DeltaSink._publish, before=DELTA_POINTS[0], after=DELTA_POINTS[3])
    _around(delta_log, delta_log.add_files, before=DELTA_POINTS[1], after=DELTA_POINTS[2])
    _around(IcebergSink, IcebergSink._publish, before=ICEBERG_POINTS[0], after=ICEBERG_POINTS[3])
    _around(DatabaseSink, DatabaseSink._add_rows, before=DATABASE_POINTS[0], after=DATABASE_POINTS[1])
    _around(DatabaseSink, DatabaseSink.commit, after=DATABASE_POINTS[2])
    _around(iceberg, iceberg.commit_rows, before=ICEBERG_POINTS[1], after=ICEBERG_POINTS[2])


def in_a_worker() -> None:
    from headrace.spark.runtime.slots.slot_producer import SlotProducer
    from headrace.spark.runtime.stores.restore_stage import RestoreStep
    from headrace.spark.runtime.stores.store import TaskStore
    from headrace.spark.runtime.stores.store_transaction import StoreTransaction
    from headrace.spark.sinks.database import RowWriter
    from headrace.spark.sinks.parquet import PartWriter

    def undoing(store: TaskStore, _transaction: Any, committed: Any) -> bool:
        prepared = store.prepared()
        return prepared is not None and prepared.batch != committed

    _around(SlotProducer, SlotProducer.flush, before=WORKER_POINTS[0], after=WORKER_POINTS[1])
    _around(StoreTransaction, StoreTransaction.prepare, after=WORKER_POINTS[2])
    _around(TaskStore, TaskStore._resolve_prepared, after=WORKER_POINTS[3], when=undoing)
    _around(PartWriter, PartWriter.close, after=WORKER_POINTS[5])
    _around(RowWriter, RowWriter.close, after=WORKER_POINTS[5])
    _around(
        RestoreStep, RestoreStep.tables, before=WORKER_POINTS[4], when=lambda _step, context: bool(context.slot.tasks)
    )


if __name__ == "__main__":
    from headrace.spark.runtime import daemon

    daemon.preload()
    in_a_worker()
    daemon.main()
