"""4 million records of 100 bytes from 16 partitions into Spark, through the runtime's fetch stage. Prints JSON.

    python benchmarks/spark_source.py [--records 4000000] [--bootstrap-server HOST:PORT]

Without a server an embedded broker runs in a process of its own beside Spark, on the same cores. Three ways are timed:
`fetch` (records become Arrow columns in the workers, counted there), `to_spark` (the columns cross to the JVM, counted
there) and `select` (a Spark SQL projection between). Ratios are against `fetch`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

TOPIC, VALUE_BYTES = "benchmark", 100


def serve(connection: Any) -> None:
    from penstock.broker.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        connection.send(broker.bootstrap_servers)
        connection.recv()


@contextmanager
def cluster(given: str | None) -> Iterator[str]:
    if given:
        yield given
        return
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        here.send("end")
        process.join(10)


def load(bootstrap: str, records: int, partitions: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Fill the topic; the ranges to read."""
    from penstock.client.admin import Admin
    from penstock.client.network_client import NetworkClient
    from penstock.client.producer import Producer

    with NetworkClient(bootstrap) as client:
        admin = Admin(client)
        admin.create_topics({TOPIC: partitions}, exist_ok=True)
        producer = Producer(client)
        each = records // partitions
        random = np.random.default_rng(1)
        for partition in range(partitions):
            for start in range(0, each, 50_000):
                count = min(50_000, each - start)
                body = random.integers(32, 127, count * VALUE_BYTES, dtype=np.uint8)
                offsets = np.arange(count + 1, dtype=np.int32) * VALUE_BYTES
                values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(body)])
                producer.send(TOPIC, partition, None, values, timestamps_ms=int(time.time() * 1000))
            producer.flush()
        wanted = [(TOPIC, partition) for partition in range(partitions)]
        ends = admin.list_offsets(dict.fromkeys(wanted, "latest"))
        return {where: (ends[where].offset - each, ends[where].offset) for where in wanted}


class CountRows:
    """A last step that only counts."""

    def start(self, context: Any) -> CountRows:
        self._context = context
        return self

    def push(self, table: pa.Table) -> Iterator[pa.Table]:
        from penstock.spark.topology.nodes import TASK_COLUMN

        self._context.report(table.column(TASK_COLUMN)[0].as_py()).records_out += table.num_rows
        return iter(())

    def finish(self) -> Iterator[pa.Table]:
        return iter(())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with cluster(options.bootstrap_server) as bootstrap:
        ranges = load(bootstrap, options.records, options.partitions)
        rows = measure(bootstrap, ranges, options.repeat)
    fastest = rows["fetch"]
    result = {
        name: {"records_per_second": round(rate), "ratio": round(rate / fastest, 2)} for name, rate in rows.items()
    }
    json.dump({"records": options.records, "partitions": options.partitions, "results": result}, sys.stdout, indent=2)
    print()


def measure(bootstrap: str, ranges: dict[tuple[str, int], tuple[int, int]], repeat: int) -> dict[str, float]:
    """Records per second of each way, the best of `repeat` runs."""
    from penstock.spark.formats.schemas import RAW
    from penstock.spark.runtime.chains import PreparedPlan
    from penstock.spark.runtime.fetch_stage import FetchStep
    from penstock.spark.runtime.plan import PLAN_PROPERTY, InputRange, MicroBatchPlan, SlotPlan, TaskPlan
    from penstock.spark.runtime.stages import REPORT_SCHEMA, PythonStage
    from penstock.spark.runtime.store import BatchKey
    from penstock.spark.spark_session import session
    from penstock.spark.topology.nodes import TASK_COLUMN, TopicSource

    spark = session("spark-source")
    slots = spark.sparkContext.defaultParallelism
    source = TopicSource(
        name=TOPIC, topics=(TOPIC,), value_format="raw", schema_json=RAW.json(), columns_needed=("value",)
    )
    fetch = FetchStep(source, (TOPIC,), with_key=False)
    seeds = spark.range(0, slots, 1, slots)
    counting = PythonStage(name="fetch", slots=slots, steps=(CountRows(),), source=fetch)
    crossing = PythonStage(name="fetch", slots=slots, steps=(), source=fetch, output=("value", TASK_COLUMN))
    crossed = seeds.mapInArrow(crossing, f"value binary, {TASK_COLUMN} int")
    ways = {
        "fetch": PreparedPlan(lambda: seeds.mapInArrow(counting, REPORT_SCHEMA)),
        "to_spark": PreparedPlan(lambda: crossed),
        "select": PreparedPlan(lambda: crossed.selectExpr("upper(hex(value)) AS text")),
    }
    tasks = [
        TaskPlan(partition=p, ranges=(InputRange(topic=t, partition=p, start=start, end=end),))
        for (t, p), (start, end) in ranges.items()
    ]
    plan = MicroBatchPlan(
        subtopology_id="benchmark",
        batch=BatchKey(incarnation="benchmark", batch_id=0),
        member_id="",
        member_epoch=-1,
        bootstrap_servers=bootstrap,
        state_dir=tempfile.mkdtemp(prefix="penstock-benchmark-"),
        slots=tuple(
            SlotPlan(slot=slot, tasks=tuple(task for task in tasks if task.partition % slots == slot))
            for slot in range(slots)
        ),
        topic_ids={},
        ends_early=False,
    )
    spark.sparkContext.setLocalProperty(PLAN_PROPERTY, plan.to_json())
    records = sum(end - start for start, end in ranges.values())
    rates: dict[str, float] = {}
    for name, prepared in ways.items():
        spent = []
        for _ in range(repeat):
            started = time.perf_counter()
            prepared.run()
            spent.append(time.perf_counter() - started)
        rates[name] = records / min(spent)
    spark.stop()
    return rates


if __name__ == "__main__":
    main()
