"""16 partitions of 100-byte values into Spark: our source beside Spark's own JVM Kafka connector, one run, one broker.

    python benchmarks/spark_source.py [--records 4000000] [--json] [--without-connector] [--broker kafka]

Every way reads the same records from the same broker, counts the values and sums up their lengths, with two cores:

  fetch            records become Arrow columns in Spark's Python workers and are counted there
  to_spark         the value column crosses to the JVM, and Spark SQL counts there
  connector        `spark.read.format("kafka")` of Spark 4.0.0 with its defaults, and Spark SQL counts there
  connector_tuned  the same with TUNED or your own `--connector-option`s

`to_spark` does what the connector does: rows that any SQL can go on with. `fetch` is what an application gets whose
steps need no Spark SQL. Each way reads everything once untimed; then the ways take turns. Figures are medians; the
machine is noisy, quote the ratio. The broker runs in a process of its own on the same cores: ours, Apache Kafka 4.3.1
with `--broker kafka`, or yours with `--bootstrap-server` (a topic is made there, and removed again).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

VALUE_BYTES, MASTER = 100, "local[2]"
# With the default of 500 ms each partition costs the connector half a second more: it waits at the end of the log.
TUNED = ("kafka.fetch.max.wait.ms=1", "kafka.max.poll.records=10000", "kafka.max.partition.fetch.bytes=8388608")
BROKERS = {"headrace": "Headrace's broker", "kafka": "Apache Kafka 4.3.1"}
Ranges = dict[tuple[str, int], tuple[int, int]]
Way = Callable[[], dict[str, Any]]  # one read: seconds, records, bytes


def serve(connection: Any) -> None:
    from headrace.broker.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        connection.send(broker.bootstrap_servers)
        connection.recv()


@contextmanager
def cluster(given: str | None, kind: str = "headrace") -> Iterator[str]:
    """Bootstrap servers: those given, else of a broker in its own process that lives as long as the context."""
    if given:
        yield given
        return
    if kind == "kafka":
        from tests.interop.kafka_broker import KafkaBroker

        with KafkaBroker() as kafka:
            yield kafka.bootstrap_servers
        return
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        here.send("end")
        process.join(10)


@contextmanager
def loaded(bootstrap: str, records: int, partitions: int) -> Iterator[Ranges]:
    """A new topic full of records for as long as the context lasts; the ranges to read."""
    from headrace.client.admin import Admin
    from headrace.client.network_client import NetworkClient
    from headrace.client.producer import Producer

    topic = f"headrace-benchmark-{secrets.token_hex(4)}"
    with NetworkClient(bootstrap) as client:
        admin = Admin(client)
        admin.create_topics({topic: partitions})
        try:
            producer = Producer(client)
            each = records // partitions
            random = np.random.default_rng(1)
            for partition in range(partitions):
                for start in range(0, each, 50_000):
                    values = random_values(random, min(50_000, each - start))
                    producer.send(topic, partition, None, values, timestamps_ms=int(time.time() * 1000))
                producer.flush()
            yield {(topic, partition): (0, each) for partition in range(partitions)}
        finally:
            admin.delete_topics([topic])


def random_values(random: np.random.Generator, count: int) -> pa.Array:
    body = random.integers(32, 127, count * VALUE_BYTES, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * VALUE_BYTES
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(body)])


class SumValues:
    """A last step in the worker: how many values, how many bytes in them; one row per slot."""

    def start(self, context: Any) -> SumValues:
        self._records = self._bytes = 0
        return self

    def push(self, table: pa.Table) -> Iterator[pa.Table]:
        values = table.column("value")
        self._records += len(values) - values.null_count
        self._bytes += pc.sum(pc.binary_length(values)).as_py() or 0
        return iter(())

    def finish(self) -> Iterator[pa.Table]:
        yield pa.table({"records": pa.array([self._records]), "bytes": pa.array([self._bytes])})


@contextmanager
def our_ways(bootstrap: str, ranges: Ranges) -> Iterator[dict[str, Way]]:
    """A session, and the ways to read in it."""
    from headrace.spark.formats.schemas import RAW
    from headrace.spark.runtime.batches.fetch_stage import FetchStep
    from headrace.spark.runtime.batches.plan import PLAN_PROPERTY
    from headrace.spark.runtime.batches.stages import PythonStage
    from headrace.spark.runtime.chains import PreparedPlan
    from headrace.spark.spark_session import session
    from headrace.spark.topology.nodes import TopicSource

    spark = session("spark-source", master=MASTER)
    slots = spark.sparkContext.defaultParallelism
    topic = next(topic for topic, _ in ranges)
    source = TopicSource(
        name="benchmark", topics=(topic,), value_format="raw", schema_json=RAW.json(), columns_needed=("value",)
    )
    fetch = FetchStep(source, (topic,), with_key=False, accounts=True)
    seeds = spark.range(0, slots, 1, slots)
    summing = PythonStage(name="fetch", slots=slots, steps=(SumValues(),), source=fetch, output=("records", "bytes"))
    crossing = PythonStage(name="fetch", slots=slots, steps=(), source=fetch, output=("value",))
    plans = {
        "fetch": PreparedPlan(lambda: seeds.mapInArrow(summing, "records bigint, bytes bigint")),
        "to_spark": PreparedPlan(
            lambda: seeds.mapInArrow(crossing, "value binary").selectExpr(
                "count(value) AS records", "sum(length(value)) AS bytes"
            )
        ),
    }

    def timed(plan: PreparedPlan) -> dict[str, Any]:
        frame = plan.dataframe()
        started = time.perf_counter()
        rows = frame.collect()
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "records": sum(r["records"] for r in rows), "bytes": sum(r["bytes"] for r in rows)}

    with tempfile.TemporaryDirectory(prefix="headrace-benchmark-") as directory:
        spark.sparkContext.setLocalProperty(PLAN_PROPERTY, one_batch(bootstrap, ranges, slots, directory))
        try:
            yield {name: (lambda plan=plan: timed(plan)) for name, plan in plans.items()}  # type: ignore[misc]
        finally:
            spark.stop()


def one_batch(bootstrap: str, ranges: Ranges, slots: int, directory: str) -> str:
    """Everything as one micro-batch, partitions dealt out over the slots."""
    from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan
    from headrace.spark.runtime.stores.store import BatchKey

    tasks = [
        TaskPlan(partition=p, ranges=(InputRange(topic=t, partition=p, start=start, end=end),))
        for (t, p), (start, end) in ranges.items()
    ]
    return MicroBatchPlan(
        subtopology_id="benchmark",
        batch=BatchKey(incarnation="benchmark", batch_id=0),
        member_id="",
        member_epoch=-1,
        bootstrap_servers=bootstrap,
        state_dir=directory,
        slots=tuple(
            SlotPlan(slot=slot, tasks=tuple(task for task in tasks if task.partition % slots == slot))
            for slot in range(slots)
        ),
        topic_ids={},
        ends_early=False,
    ).to_json()


def take_turns(ways: dict[str, Way], runs: int, records: int) -> dict[str, list[float]]:
    """Seconds of each way's runs. Every read is checked: all records, all bytes."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, read in ways.items():
            answer = read()
            if (answer["records"], answer["bytes"]) != (records, records * VALUE_BYTES):
                raise SystemExit(f"{name} read {answer}, not {records} records of {VALUE_BYTES} bytes")
            warming = "warming up" if run == 0 else f"run {run} of {runs}"
            print(f"{warming}: {name} {answer['seconds']:.2f} s", file=sys.stderr)
            if run:
                spent[name].append(answer["seconds"])
    return spent


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import pyspark
    from peers.spark_400 import SparkConnector

    records = options.records // options.partitions * options.partitions
    facts: dict[str, Any] = {
        "benchmark": "spark_source",
        "records": records,
        "partitions": options.partitions,
        "value_bytes": VALUE_BYTES,
        "runs": options.runs,
        "broker": options.bootstrap_server or BROKERS[options.broker],
        "master": MASTER,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "spark": {"headrace": pyspark.__version__},
    }
    with ExitStack() as stack:
        bootstrap = stack.enter_context(cluster(options.bootstrap_server, options.broker))
        print(f"loading {records:,} records …", file=sys.stderr)
        ranges = stack.enter_context(loaded(bootstrap, records, options.partitions))
        ways: dict[str, Way] = {}
        if not options.without_connector:
            topic = next(topic for topic, _ in ranges)
            wanted = {partition: span for (_, partition), span in ranges.items()}
            peer = stack.enter_context(SparkConnector(bootstrap, topic, wanted, master=MASTER))
            tuning = facts["connector_tuning"] = dict(x.split("=", 1) for x in options.connector_option or TUNED)
            ways["connector"] = lambda: peer.read({})
            ways["connector_tuned"] = lambda: peer.read(tuning)
            facts["spark"]["connector"] = peer.version
        ours = stack.enter_context(our_ways(bootstrap, ranges))
        spent = take_turns({**ours, **ways}, options.runs, records)
    return {**facts, "results": summed_up(spent, records)}


def summed_up(spent: dict[str, list[float]], records: int) -> dict[str, dict[str, float]]:
    """Rates by the median; ratios to the connector where it ran."""
    results = {}
    for name, seconds in spent.items():
        middle = statistics.median(seconds)
        results[name] = {
            "records_per_second": round(records / middle),
            "seconds": round(middle, 3),
            "seconds_fastest": round(min(seconds), 3),
            "seconds_slowest": round(max(seconds), 3),
        }
        for peer in spent.keys() & {"connector", "connector_tuned"}:
            results[name][f"ratio_to_{peer}"] = round(statistics.median(spent[peer]) / middle, 2)
    return results


def table(facts: dict[str, Any]) -> str:
    spark = facts["spark"]
    names = {
        "fetch": f"Headrace on Spark {spark['headrace']}, fetch: counted in the workers",
        "to_spark": f"Headrace on Spark {spark['headrace']}, to_spark: counted in the JVM",
        "connector": f"Spark {spark.get('connector')}, its Kafka connector: counted in the JVM",
        "connector_tuned": f"Spark {spark.get('connector')}, its Kafka connector, tuned",
    }
    peers = [name for name in ("connector", "connector_tuned") if name in facts["results"]]
    what = f"{facts['records']:,} values of {VALUE_BYTES} bytes, {facts['partitions']} partitions of {facts['broker']}"
    heads = "".join(f"{'× ' + peer:>19}" for peer in peers)
    lines = [
        f"{what}, {MASTER}; median of {facts['runs']} runs, alternating",
        f"{'':58}{'records/s':>11}{'seconds':>9}{'(min – max)':>16}{heads}",
    ]
    for name, row in facts["results"].items():
        spread = f"({row['seconds_fastest']:.2f} – {row['seconds_slowest']:.2f})"
        ratios = "".join(f"{row[f'ratio_to_{peer}']:>19.2f}" for peer in peers)
        lines.append(f"{names[name]:58}{row['records_per_second']:>11,}{row['seconds']:>9.2f}{spread:>16}{ratios}")
    if peers:
        lines.append("tuned: " + ", ".join(f"{name}={value}" for name, value in facts["connector_tuning"].items()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--without-connector", action="store_true", help="our side alone; nothing is downloaded")
    parser.add_argument("--connector-option", action="append", metavar="NAME=VALUE", help="tuned so")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--broker", choices=BROKERS, default="headrace")
    where.add_argument("--bootstrap-server", help="HOST:PORT of a broker that runs already")
    options = parser.parse_args()
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


if __name__ == "__main__":
    main()
