"""The writer of a streaming query. Spark calls `write` in executors, and `commit` or `abort` in the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.errors import HeadraceError
from headrace.spark.data_source.commit_steps import Batch, TaskReport, abort_batch, commit_batch
from headrace.spark.data_source.log_positions import open_client
from headrace.spark.data_source.sink_options import SinkOptions
from headrace.spark.data_source.task_message import TaskMessage, read_reports

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TopicsStreamWriter"]

# Local properties that Spark sets for the jobs of a micro-batch (`StreamExecution`, `MicroBatchExecution`). The job
# group of a streaming query is the id of its run.
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"
BATCH_ID = "streaming.sql.batchId"


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches of a query, each written exactly once."""

    def __init__(self, options: SinkOptions) -> None:
        """Args:
        options: Of the query.
        """
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of one task in a transaction, which stays open.

        Raises:
            HeadraceError: See `write_task`.
        """
        # Imported here: the process in the driver needs no encoder.
        from headrace.spark.data_source.row_writer import write_task

        context = TaskContext.get()
        assert context is not None
        report = write_task(
            iterator,
            self._options,
            _batch_of(context, self._options),
            task=context.partitionId(),
            attempt=context.attemptNumber(),
        )
        return TaskMessage(report)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the transactions of all tasks, or find them committed.

        Raises:
            SinkError: `batch-undecided`, `sink-failed`, `sink-refused`.
            Fenced: `query-replaced`.
        """
        reports = read_reports(messages)
        batch = reports[0].batch if reports else None
        if len(reports) < len(messages) or batch is None or batch.batch_id != batchId:
            raise HeadraceError("runtime-failed", f"Spark commits batch {batchId} without the reports of all its tasks")
        self._run(batch, reports, commit=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the transactions of the tasks that succeeded, unless the batch is decided."""
        reports = read_reports(messages)
        # Without a report the id of the query is not known here. Tasks abort their own transactions when they fail;
        # those of executors that died are aborted by the next commit.
        batch = reports[0].batch if reports else None
        if batch is not None:
            self._run(batch, reports, commit=False)

    def _run(self, batch: Batch, reports: list[TaskReport], *, commit: bool) -> None:
        # Imported here: workers of the executors need neither.
        from headrace.spark.data_source.sink_transactions import SinkTransactions

        topics = {topic for each in reports for topic in each.topics}
        with open_client(self._options.client) as client:
            cluster = SinkTransactions(client, self._options, batch, topics)
            cluster.run(commit_batch(batch, reports) if commit else abort_batch(batch, reports))


def _batch_of(context: TaskContext, options: SinkOptions) -> Batch:
    found = [context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID)]
    query_id, run_id, batch_id = found
    if query_id is None or run_id is None or batch_id is None:
        raise HeadraceError(
            "not-supported-here",
            f"Spark does not name the micro-batch of the task: {QUERY_ID}, {RUN_ID} and {BATCH_ID} are {found}.",
            "Write with a trigger of micro-batches, such as processingTime or availableNow.",
        )
    return Batch(query_id=query_id, run_id=run_id, batch_id=int(batch_id), rewrite=options.rewrite_batch_id)
