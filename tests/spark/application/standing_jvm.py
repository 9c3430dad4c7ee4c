"""A JVM that outlives the drivers of an application, so that a driver's start costs no JVM's: for many starts in a row.

The next driver finds it by the environment, as PySpark foresees, and stops the Spark context that the dead one left
(`take_over`). Until then jobs of the dead driver run on and its workers write: worse than in earnest, where a guardian
kills JVM and workers at once. `python -m tests.spark.application.standing_jvm` holds it until standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["spare_the_jvm", "standing_jvm", "take_over"]

PID = "STANDING_JVM"


@contextlib.contextmanager
def standing_jvm(log: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """What goes into a driver's environment. `environment`: the JVM's, which Python workers inherit."""
    with log.open("wb") as told:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.application.standing_jvm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            start_new_session=True,
        )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        line = holder.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line)
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(60)


def take_over() -> None:
    """In a driver, first of all: what the one before left in the JVM ends."""
    if PID not in os.environ:
        return
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    left = jvm.SparkSession.getDefaultSession()
    if left.isDefined():
        left.get().sparkContext().stop()


def spare_the_jvm() -> None:
    """In a driver: its guardian is not told of the JVM, which it would kill."""
    if PID not in os.environ:
        return
    from headrace.client.guardian_link import GuardianLink

    spared, watch = int(os.environ[PID]), GuardianLink.watch_process

    def watch_others(link: GuardianLink, pid: int) -> None:
        if pid != spared:
            watch(link, pid)

    GuardianLink.watch_process = watch_others  # type: ignore[method-assign]


def _hold() -> None:
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    from headrace.spark.class_archive import archive_options
    from headrace.spark.spark_session import check_java

    settings = SparkConf().set("spark.driver.extraJavaOptions", archive_options(check_java()))
    gateway = launch_gateway(settings, popen_kwargs={"stdout": sys.stderr, "stderr": sys.stderr})
    known = {
        "PYSPARK_GATEWAY_PORT": str(gateway.java_parameters.port),
        "PYSPARK_GATEWAY_SECRET": gateway.java_parameters.auth_token,
        PID: str(gateway.proc.pid),
    }
    print(json.dumps(known), flush=True)
    sys.stdin.read()
    gateway.proc.kill()
    gateway.proc.wait()


if __name__ == "__main__":
    _hold()
