"""Queries into the state of a running application: lookups per second and their latency, ranges, and scans.

One application counts by key; `--keys` keys are in its store. Clients are processes of their own with one connection
each. `--write` keeps records coming meanwhile, so that a micro-batch is prepared and not committed most of the time.

Usage: `python benchmarks/state_queries.py --keys 1000000 --clients 2 --write`
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import EmbeddedBroker, StateQuery, StreamsApp
from headrace.spark import session

GROUP, STORE = "queried", "by-key"


def send(broker: EmbeddedBroker, numbers: range) -> None:
    broker.produce("in", [json.dumps({"key": f"key-{number:08d}"}) for number in numbers])


def look_up(servers: str, keys: int, seconds: float, results: Any) -> None:
    """Look up random keys one after another; send milliseconds of each."""
    spent = []
    with StateQuery(servers, GROUP, store=STORE) as query:
        query.get("key-00000000")
        end = time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            assert query.get(f"key-{random.randrange(keys):08d}").row is not None
            spent.append((time.perf_counter() - started) * 1000)
    results.put(spent)


def measure_lookups(servers: str, keys: int, clients: int, seconds: float) -> None:
    spawning = multiprocessing.get_context("spawn")
    results = spawning.Queue()
    processes = [spawning.Process(target=look_up, args=(servers, keys, seconds, results)) for _ in range(clients)]
    for process in processes:
        process.start()
    spent = np.concatenate([results.get() for _ in processes])
    for process in processes:
        process.join()
    p50, p99 = np.percentile(spent, [50, 99])
    print(f"lookups, {clients} clients: {len(spent) / seconds:,.0f}/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms")


def measure_rows(servers: str, keys: int) -> None:
    with StateQuery(servers, GROUP, store=STORE, timeout_ms=120_000) as query:
        for rows in (100, 10_000):
            started = time.perf_counter()
            found = query.range(f"key-{keys // 2:08d}", limit=rows)
            spent = time.perf_counter() - started
            print(f"range of {len(found.rows):,} rows of {len(found.states)} tasks: {spent * 1000:.1f} ms")
        started = time.perf_counter()
        table = query.scan()
        spent = time.perf_counter() - started
        print(f"scan: {table.num_rows:,} rows, {table.num_rows / spent:,.0f} rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker({"in": options.partitions}) as broker:
        app = StreamsApp(
            GROUP,
            spark=session("queries", master="local[2]"),
            bootstrap_servers=broker.bootstrap_servers,
            state_dir=directory,
            config={"application.server": "127.0.0.1:0"},
        )
        rows = app.stream("in", schema="key string").groupBy("key")
        rows.agg(F.count("*").alias("rows"), name=STORE).to_topic("counts", partitions=1)
        for first in range(0, options.keys, 50_000):
            send(broker, range(first, min(options.keys, first + 50_000)))
        over = threading.Event()

        def write() -> None:
            while not over.wait(0.05):
                first = random.randrange(options.keys)
                send(broker, range(first, min(options.keys, first + 1_000)))

        with app.start() as running:
            running.wait_until("caught-up", timeout=600)
            writer = threading.Thread(target=write)
            if options.write:
                writer.start()
            measure_lookups(broker.bootstrap_servers, options.keys, 1, options.seconds)
            measure_lookups(broker.bootstrap_servers, options.keys, options.clients, options.seconds)
            measure_rows(broker.bootstrap_servers, options.keys)
            over.set()
            if options.write:
                writer.join()


if __name__ == "__main__":
    main()
