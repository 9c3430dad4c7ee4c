"""The writer of a batch query: its rows become visible when Spark has written all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.data_source.commit_steps import Batch, TaskReport, abort_batch, commit_once
from headrace.spark.data_source.log_positions import open_client
from headrace.spark.data_source.sink_options import SinkOptions
from headrace.spark.data_source.task_message import TaskMessage, read_reports

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TopicsWriter"]

KILL_S: Final = 1.0


class TopicsWriter(DataSourceArrowWriter):
    """One write. Spark sends it to the executors, and back into the driver for `commit`."""

    def __init__(self, options: SinkOptions, *, write_id: str) -> None:
        """Args:
        options: Of the query.
        write_id: Unique id, part of transactional ids.
        """
        self._options = options
        self._batch = Batch(query_id=write_id, run_id=write_id, batch_id=0, is_recorded=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of one task in a transaction, which stays open.

        Raises:
            ConfigError: `not-supported-here`: a second task has rows.
            HeadraceError: See `write_task`.
        """
        from headrace.spark.data_source.row_writer import write_task

        context = TaskContext.get()
        assert context is not None
        batches = (each for each in iterator if each.num_rows)
        if self._options.atomic and context.partitionId() > 0 and next(batches, None) is not None:
            raise _too_many()
        report = write_task(
            batches, self._options, self._batch, task=context.partitionId(), attempt=context.attemptNumber()
        )
        return TaskMessage(report)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the transactions of all tasks.

        Raises:
            SinkError: `sink-failed`: nothing is committed. `batch-undecided`: a part is.
        """
        reports = read_reports(messages)
        if len(reports) < len(messages):
            raise HeadraceError("runtime-failed", "Spark commits a write without the reports of all its tasks")
        self._run(reports, commit=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions of all tasks. Nothing runs after this that could."""
        reports = read_reports(messages)
        self._run(reports, commit=False)
        # Spark kills the tasks of a failed job without waiting for them, and one may just have begun.
        time.sleep(KILL_S)
        self._run(reports, commit=False)

    def _run(self, reports: list[TaskReport], *, commit: bool) -> None:
        from headrace.spark.data_source.sink_transactions import SinkTransactions

        if commit and not any(each.transaction for each in reports):
            return
        topics = {topic for each in reports for topic in each.topics}
        with open_client(self._options.client) as client:
            cluster = SinkTransactions(client, self._options, self._batch, topics)
            cluster.run(commit_once(self._batch, reports) if commit else abort_batch(self._batch, reports))


def _too_many() -> ConfigError:
    return ConfigError(
        "not-supported-here",
        "The DataFrame has more than one partition, and Kafka cannot commit what several tasks write in one step.",
        'Add .coalesce(1) before write; or .option("atomic", "false"): all partitions are committed at the end, and '
        "only a part of them if the application dies within that step.",
    )
