"""Cost of records that Spark SQL cannot process: jobs, time, and throughput beside an input without any.

    python benchmarks/bad_records.py [--records 200000] [--bad-per-mille 1] [--query cast|udf] [--json]

One application, exactly once, `on_error="skip"`, `cast(text as int)` under ANSI (or a Python UDF that raises) between
two topics with two partitions, on the embedded broker, two cores. Two inputs of the same size are processed one after
the other by fresh applications of one warm session: all records good, then the given share of them bad. Printed for
each: seconds, CPU seconds (driver, broker, JVM, workers), records/s, Spark jobs and how many of them failed, and Python
daemons that are left behind the run. The goal: with one bad record per thousand at least half of the throughput
without, and a number of jobs that does not grow with the number of bad records.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PARTITIONS = 2


def texts(records: int, per_mille: int, partition: int) -> list[str]:
    every = 1000 // per_mille if per_mille else 0
    return [
        json.dumps({"text": "bad" if every and number % every == every // 2 else str(number)})
        for number in range(partition, records, PARTITIONS)
    ]


def jobs_of(spark: Any, known: set[int]) -> tuple[int, int]:
    """(jobs since the last call, how many of them failed), from the status store of Spark's UI."""
    store = spark.sparkContext._jsc.sc().statusStore()
    rows = store.jobsList(None)
    found = {rows.apply(index).jobId(): rows.apply(index).status().toString() for index in range(rows.size())}
    fresh = {job: status for job, status in found.items() if job not in known}
    known.update(fresh)
    return len(fresh), sum(status == "FAILED" for status in fresh.values())


def daemons(spark: Any) -> int:
    """Python processes right below the JVM."""
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            count += parent == jvm and b"daemon" in (process / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
    return count


def cpu_seconds() -> float:
    """CPU time of this process and of all below it: driver, broker, JVM and Python workers, also those that ended."""
    parents, spent = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(process.name)] = int(fields[1])
        spent[int(process.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    mine, grown = {os.getpid()}, True
    while grown:
        found = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine, grown = mine | found, bool(found)
    return sum(spent.get(pid, 0.0) for pid in mine)


def measure(spark: Any, broker: Any, name: str, options: argparse.Namespace, per_mille: int) -> dict[str, Any]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType

    from headrace import StreamsApp

    source, sink = f"{name}-in", f"{name}-out"
    broker.create_topics({source: PARTITIONS, sink: PARTITIONS})
    for partition in range(PARTITIONS):
        broker.produce(source, texts(options.records, per_mille, partition), partition=partition)
    wanted = sum(
        "bad" not in text for partition in range(PARTITIONS) for text in texts(options.records, per_mille, partition)
    )

    @F.udf(IntegerType())
    def number_of(text: str) -> int:
        return int(text)

    directory = tempfile.TemporaryDirectory(prefix=f"{name}-")
    app = StreamsApp(
        name,
        spark=spark,
        bootstrap_servers=broker.bootstrap_servers,
        state_dir=directory.name,
        processing_guarantee="exactly_once_v2",
    )
    rows = app.stream(source, schema="text string", on_error="skip")
    if options.query == "udf":
        rows = rows.select(number_of("text").alias("number"))
    else:
        rows = rows.selectExpr("cast(text as int) AS number")
    rows.to_topic(sink, partitions=PARTITIONS)
    known: set[int] = set()
    jobs_of(spark, known)
    with app.start() as running:
        began = time.monotonic()
        settled = threading.Event()
        first: list[float] = []

        def watch() -> None:
            while not settled.wait(0.05):
                if running.lastProgress is not None:
                    first.append(time.monotonic() - began)
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        running.wait_until("running", timeout=120)
        began, cpu = time.monotonic(), cpu_seconds()
        running.wait_until("caught-up", timeout=1200)
        took, cpu = time.monotonic() - began, cpu_seconds() - cpu
        settled.set()
        watcher.join()
        jobs, failed = jobs_of(spark, known)
        batches = len(running.recentProgress)
    directory.cleanup()
    written = len(broker.records(sink))
    assert written == wanted, f"{written} records written, {wanted} expected"
    return {
        "bad": options.records - wanted,
        "seconds": round(took, 2),
        "cpu_s": round(cpu, 2),
        "records_per_s": round(options.records / took),
        "jobs": jobs,
        "failed_jobs": failed,
        "batches": batches,
        "first_progress_s": round(first[0], 2) if first else None,
        "daemons": daemons(spark),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--bad-per-mille", type=int, default=1)
    parser.add_argument("--query", choices=("cast", "udf"), default="cast")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)

    from headrace.broker.embedded import EmbeddedBroker
    from headrace.spark.spark_session import session

    spark = session("bad-records", master="local[2]")
    found = []
    with EmbeddedBroker({}, config={"group.streams.initial.rebalance.delay.ms": 0}) as broker:
        warm = argparse.Namespace(**{**vars(options), "records": 2000})
        measure(spark, broker, "warm-up", warm, 0)
        for turn in range(options.rounds):
            good = measure(spark, broker, f"good-{turn}", options, 0)
            bad = measure(spark, broker, f"bad-{turn}", options, options.bad_per_mille)
            ratio = round(bad["records_per_s"] / good["records_per_s"], 2)
            by_cpu = round(good["cpu_s"] / bad["cpu_s"], 2)
            found.append({"good": good, "bad": bad, "ratio": ratio, "cpu_ratio": by_cpu})
    spark.stop()
    for row in found:
        print(json.dumps(row) if options.json else _table(row))
    return 0


def _table(row: dict[str, Any]) -> str:
    names = list(row["good"])
    lines = ["input   " + "  ".join(f"{name:>16}" for name in names)]
    lines += [f"{side:<8}" + "  ".join(f"{row[side][name]!s:>16}" for name in names) for side in ("good", "bad")]
    return "\n".join(
        [*lines, f"throughput with bad records: {row['ratio']} of that without, {row['cpu_ratio']} by CPU time"]
    )


if __name__ == "__main__":
    sys.exit(main())
