"""A stateful count per key, topic to topic: `groupBy("key").count()` of a whole application. Prints JSON.

    python benchmarks/stateful_count.py [--records N] [--keys N] [--partitions N] [--repartition]

The records lie in the topic before the application starts; the time runs from the first task opened to the last offset
committed, so it holds fetch, decode (JSON), count, store, changelog, sink and commits; the first micro-batch of a
session is slower and left out of the second rate. `--repartition` groups by a
column that is not the record's key: every row then goes through an internal topic.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
from spark_source import cluster

TOPIC = "counted"


def load(bootstrap: str, options: Any) -> None:
    """Records `{"key": "k000123", "n": 7}` with the key as the record's key."""
    from penstock.client.admin import Admin
    from penstock.client.network_client import NetworkClient
    from penstock.client.producer import Producer

    random = np.random.default_rng(1)
    with NetworkClient(bootstrap) as client:
        Admin(client).create_topics({TOPIC: options.partitions})
        producer = Producer(client)
        for start in range(0, options.records, 50_000):
            numbers = random.integers(0, options.keys, min(50_000, options.records - start))
            keys = pa.array([f"k{number:06}" for number in numbers])
            values = pa.array([f'{{"key": "k{number:06}", "n": {number}, "pad": "{"x" * 60}"}}' for number in numbers])
            now = int(time.time() * 1000)
            producer.send(TOPIC, None, keys.cast(pa.binary()), values.cast(pa.binary()), timestamps_ms=now)
        producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--batch-records", type=int, default=40_000, help="per task")
    parser.add_argument("--repartition", action="store_true")
    parser.add_argument("--guarantee", choices=("exactly_once_v2", "at_least_once"), default="exactly_once_v2")
    parser.add_argument("--bootstrap-server")
    options = parser.parse_args()
    with cluster(options.bootstrap_server) as bootstrap:
        load(bootstrap, options)
        result = run(bootstrap, options)
    json.dump(vars(options) | result, sys.stdout, indent=2)
    print()


def run(bootstrap: str, options: Any) -> dict[str, Any]:
    """Count everything once; rates and where the time of a micro-batch went."""
    from penstock.spark.streams_app import StreamsApp

    app = StreamsApp(
        "stateful-count",
        bootstrap_servers=bootstrap,
        state_dir=tempfile.mkdtemp(prefix="penstock-bench-"),
        processing_guarantee=options.guarantee,
        config={"penstock.batch.max.records": options.batch_records},
    )
    rows = app.stream(TOPIC, schema="key string, n bigint", key=None if options.repartition else "key")
    rows.groupBy("key").count().to_topic("counts", partitions=options.partitions)
    with app.start() as running:
        running.wait_until("running", timeout=120)
        started = time.perf_counter()
        running.wait_until("caught-up", timeout=600)
        spent = time.perf_counter() - started
        progress = running.recentProgress
    warm = progress[1:]
    stages: dict[str, int] = {}
    for row in warm:
        for name, milliseconds in row["durationMs"].items():
            stages[name] = stages.get(name, 0) + milliseconds
    return {
        "seconds": round(spent, 2),
        "records_per_second": round(options.records / spent),
        "micro_batches": len(progress),
        "records_per_second_after_the_first": round(
            1000 * sum(r["numInputRows"] for r in warm) / max(1, sum(r["durationMs"]["triggerExecution"] for r in warm))
        ),
        "slowest_slot_ms": stages,
    }


if __name__ == "__main__":
    main()
