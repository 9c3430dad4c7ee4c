"""Reports of tasks on their way through Spark to the driver."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.datasource import WriterCommitMessage

from headrace.spark.data_source.commit_steps import TaskReport

__all__ = ["TaskMessage", "read_reports"]


class TaskMessage(WriterCommitMessage):
    """The report of one task."""

    def __init__(self, report: TaskReport) -> None:
        """Args:
        report: Of the task.
        """
        self.report = report


def read_reports(messages: Iterable[WriterCommitMessage | None]) -> list[TaskReport]:
    """Return the reports; a task that failed has none."""
    return [each.report for each in messages if isinstance(each, TaskMessage)]
