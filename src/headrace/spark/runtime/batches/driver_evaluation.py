"""Evaluation of a Spark SQL plan on given rows in the driver's JVM, row by row, without a Spark job.

A Spark task that meets one bad row fails its whole job and names no row. The iterator of the same physical plan, walked
in the driver, raises at the row instead and goes on behind it when it is asked again, so that one pass finds all bad
rows: about a microsecond a row and 20 for each bad one.

1. The rows stand in an RDD of one partition under the plan. Spark's scan of it counts the rows it hands on
   (`numOutputRows`): after an exception that count names the row that was being processed.
2. That holds for the operators of `_ROW_BY_ROW`. Others read ahead (those with Python UDFs), and a Python worker does
   not survive an exception. Plans with such operators are tried in slices, a partition each, which are divided by eight
   until they hold one row; a row that was found fails alone.
3. The count must end at the number of rows, or the plan is tried in slices as well: a good row is never blamed.

The rows are those that `suspect_rows` picks out where it can, else all. Rejected: halving by Spark jobs (117 failed
jobs for 11 records in 8,000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.spark.runtime.spark_errors import reason_in, reason_of
from headrace.spark.spark_internals import (
    activate,
    class_of,
    collect_rows,
    compile_script,
    frame_of_rows,
    java_list,
    query_execution,
    task_context,
)

__all__ = ["DriverRows", "failing_rows"]

SLICES = 8
_ROW_BY_ROW = frozenset(
    {
        "BroadcastHashJoinExec",
        "BroadcastNestedLoopJoinExec",
        "FilterExec",
        "GenerateExec",
        "InputAdapter",
        "ProjectExec",
        "RDDScanExec",
        "WholeStageCodegenExec",
    }
)
_WALK_PARAMETERS = {
    "rows": "scala.collection.Iterator",
    "read": "org.apache.spark.util.AccumulatorV2",  # counts the rows that were read
    "most": "java.lang.Integer",
}
# `rows.next()` raises at a bad row and continues behind it at the next call. The count of rows read names the row; one
# that raises twice is listed once. The result is one string, because each object would be a round trip of py4j.
_WALK = r"""
java.util.ArrayList found = new java.util.ArrayList();
long last = -1;
while (found.size() < most) {
    try {
        while (rows.hasNext()) rows.next();
        break;
    } catch (Throwable error) {
        long row = ((Long) read.value()).longValue() - 1;
        String message = error.getMessage() == null ? error.getClass().getName() : error.getMessage();
        if (row != last) found.add(row + " " + message.replace('\0', ' '));
        last = row;
    }
}
return String.join("\0", found);
"""


class DriverRows:
    """Rows of a DataFrame in the driver's JVM, in the order of its partitions."""

    def __init__(self, session: SparkSession, frame: DataFrame) -> None:
        """Run `frame` as one Spark job and keep its rows. `session`: plans over the rows are made in it."""
        self._session = session
        self.names = frame.columns
        self._rows, self.count, self._schema = collect_rows(frame)

    def integers(self, rows: Sequence[int], columns: Sequence[str]) -> list[list[int]]:
        """Return the values of columns of non-negative integers in these rows (ascending), a list for each row.

        All rows are printed by one call: a value at a time costs nine round trips of py4j a row, a fifth of a search.
        An UnsafeRow prints its 8-byte words in hexadecimal: a bitmap of nulls, one word per column, then what is long.
        """
        # Word 0 and following are the bitmap of nulls, one bit per column.
        words = [(len(self.names) + 63) // 64 + self.names.index(name) for name in columns]
        printed = str(self._chosen(rows).toString()).strip("[]").split("], [") if rows else []
        found = [text.split(",") for text in printed]
        return [[int(row[word], 16) for word in words] for row in found]

    def _chosen(self, rows: Sequence[int] | None) -> Any:
        """These rows (None: all) as a Java list."""
        if rows is None:
            return self._rows
        chosen = java_list(self._session)
        for start, end in _runs(rows):
            chosen.addAll(self._rows.subList(start, end))
        return chosen

    def frame(self, rows: Sequence[int] | None, partitions: int) -> DataFrame:
        """These rows (None: all) as a DataFrame of so many partitions."""
        return frame_of_rows(self._session, self._chosen(rows), self._schema, partitions)


def failing_rows(
    rows: DriverRows, build: Callable[[DataFrame], DataFrame], *, most: int, tick: Callable[[], None] = lambda: None
) -> list[tuple[int, str]]:
    """Return the first `most` rows on which the plan made by `build` fails, in order, each with Spark's reason."""
    if not rows.count:
        return []
    plan = _Plan(rows, build, None, 1)
    found = plan.failures(most) if plan.can_resume else None
    return found if found is not None else _by_slices(rows, build, most, tick)


def _by_slices(
    rows: DriverRows, build: Callable[[DataFrame], DataFrame], most: int, tick: Callable[[], None]
) -> list[tuple[int, str]]:
    """Find failing rows by slices, for plans that read ahead. All slices that fail are divided at once, one plan per
    level.
    """
    waiting: list[int] = list(range(rows.count))
    # 1. Start with a few slices: with few bad rows most of them succeed, and their rows are done.
    slices = min(len(waiting), SLICES)
    while waiting:
        plan = _Plan(rows, build, waiting, slices)
        failed: list[Sequence[int]] = []
        reasons: list[str] = []
        for place in range(slices):
            tick()
            reason = plan.reason(place)
            if reason is not None:
                # As ParallelCollectionRDD cuts its rows into partitions.
                failed.append(waiting[place * len(waiting) // slices : (place + 1) * len(waiting) // slices])
                reasons.append(reason)
                # 2. Rows behind the first `most` failing slices are not needed: each slice holds at least one bad row.
                if len(failed) >= most:
                    break
        # 3. Every failing slice is a single row.
        if all(len(found) == 1 for found in failed):
            return [(found[0], reason) for found, reason in zip(failed, reasons, strict=True)]
        # 4. Divide all failing slices in one plan, because planning costs more than the rows.
        waiting = [row for found in failed for row in found]
        slices = min(len(waiting), SLICES * len(failed))
    return []


class _Plan:
    """The user's SQL over chosen rows, planned, its partitions to be walked in the driver."""

    def __init__(
        self, rows: DriverRows, build: Callable[[DataFrame], DataFrame], chosen: Sequence[int] | None, partitions: int
    ) -> None:
        self._rows, self._session = rows, rows._session
        # Operators take the active session of the thread when they are made; without this, the settings of another
        # session would apply.
        activate(self._session)
        execution = query_execution(build(rows.frame(chosen, partitions)))
        self._plan = execution.executedPlan()
        self._rdd = execution.toRdd()
        self._partitions = self._rdd.partitions()

    @property
    def can_resume(self) -> bool:
        """Whether the plan's operators process each row before they read the next one."""
        streamed = self._plan
        while True:
            if class_of(streamed) not in _ROW_BY_ROW:
                return False
            children = streamed.children()
            if children.isEmpty():
                return class_of(streamed) == "RDDScanExec"
            streamed = children.apply(0)  # a join has the stream on its left

    def failures(self, most: int) -> list[tuple[int, str]] | None:
        """The rows at which the only partition fails, and why; None when the count of rows cannot be relied on."""
        # 1. The metric of the scan, the leaf on the stream's side.
        read = self._plan.collectLeaves().apply(0).metrics().apply("numOutputRows")
        # 2. Operators require a TaskContext for their memory; a driver's thread has none.
        with task_context(self._session) as task:
            rows = self._rdd.iterator(self._partitions[0], task)
            raised = _walk(self._session, rows, read, most)
            # 3. Read to the end, and fewer rows were counted than there are: an operator read ahead or stopped early,
            #    and no row can be named.
            if len(raised) < most and int(read.value()) != self._rows.count:
                return None
        places = [row for row, _ in raised]
        # 4. Rows out of order, repeated or outside: the count is not what it was taken for in this release of Spark.
        if places != sorted(set(places)) or any(not 0 <= row < self._rows.count for row in places):
            return None
        return [(row, reason_in(message)) for row, message in raised]

    def reason(self, partition: int) -> str | None:
        """Process a whole partition. Return Spark's message if that fails, else None."""
        with task_context(self._session) as task:
            try:
                self._rdd.iterator(self._partitions[partition], task).size()
            except (PySparkException, Py4JJavaError) as error:
                return reason_of(error)
        return None


def _walk(session: SparkSession, rows: Any, read: Any, most: int) -> list[tuple[int, str]]:
    """Walk all rows of an iterator: (index of the row that was being processed, message) of up to `most` exceptions.

    In Java, because each exception would take five round trips of py4j and half a millisecond.
    """
    raised = compile_script(session, _WALK, _WALK_PARAMETERS)(rows, read, most)
    pairs = [text.split(" ", 1) for text in raised.split("\0")] if raised else []
    return [(int(row), message) for row, message in pairs]


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return ascending rows as ranges [start, end)."""
    start = previous = rows[0]
    for row in rows[1:]:
        if row != previous + 1:
            yield start, previous + 1
            start = row
        previous = row
    yield start, previous + 1
