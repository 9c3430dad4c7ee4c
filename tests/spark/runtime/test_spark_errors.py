"""What a failed Spark job says about the records: texts that Spark gave, cut to the lines that decide."""

import pytest

from headrace.spark.runtime.spark_errors import kind_of, reason_in

DAEMON_IS_GONE = """An error occurred while calling o1247.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 25.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 25.0 (TID 75) (localhost executor driver): java.io.IOException: Stream closed
\tat java.base/java.lang.ProcessBuilder$NullOutputStream.write(ProcessBuilder.java:445)
\tat java.base/java.io.DataOutputStream.flush(DataOutputStream.java:128)
\tat org.apache.spark.api.python.PythonWorkerFactory.$anonfun$stopWorker$2(PythonWorkerFactory.scala:527)
\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:637)"""
WORKER_DIED = """An error occurred while calling o1243.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 23.0 failed 1 times, most recent \
failure: Lost task 0.0: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."""
DAEMON_DIED_EARLY = """An error occurred while calling o800.count.
: org.apache.spark.SparkException: EOFException occurred while reading the port number from daemon's stdout.
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:382)"""
CANCELLED = "org.apache.spark.SparkException: Job 7 cancelled part of cancelled job group headrace-flights-by-origin"
BAD_CAST = """[CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be cast to "BIGINT": it is malformed.
\tat org.apache.spark.api.python.BasePythonRunner$WriterIterator.next(PythonRunner.scala:500)"""
USERS_UDF = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "app.py", line 3, in f
OSError: Broken pipe"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (DAEMON_IS_GONE, "worker-lost"),
        (DAEMON_DIED_EARLY, "worker-lost"),
        (WORKER_DIED, "worker-lost"),
        (CANCELLED, "cancelled"),
        (BAD_CAST, "sql"),
        (USERS_UDF, "sql"),
    ],
    ids=["daemon", "starting daemon", "worker", "cancelled", "cast", "udf"],
)
def test_errors_of_spark_have_the_right_kind(text: str, kind: str) -> None:
    assert kind_of(Exception(text)) == kind


def test_the_reason_is_that_of_the_task_on_the_executor() -> None:
    no_python = """An error occurred while calling o1246.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 0) (127.0.0.1 executor 0): java.io.IOException: Cannot run program \
"./env/bin/python": error=13, Permission denied
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)"""
    assert reason_in(no_python) == (
        'java.io.IOException: Cannot run program "./env/bin/python": error=13, Permission denied'
    )
    assert reason_in(BAD_CAST).startswith("[CAST_INVALID_INPUT]")
