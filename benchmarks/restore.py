"""Restoring stores from their changelogs: records per second and per CPU second of the replica process. Prints JSON.

    python benchmarks/restore.py [--records N] [--keys N] [--value-bytes N] [--partitions N] [--bootstrap-server S]

The changelogs are written before, then a replica process brings the stores of all partitions near, from nothing. Keys
come in random order; `--keys` equal to `--records` is the worst case, each key once. No peer beside it yet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))
from spark_source import cluster

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.spark.runtime.stores.replicas import Replicas
from headrace.spark.runtime.stores.store_records import boot_id

SUBTOPOLOGY, STORE = "counts", "by-key"
PEER = Path(__file__).parent / "peers" / "restore" / "RestoreOnce.java"
BUILD = Path(__file__).parent.parent / ".build" / "peers" / "restore"


def load(bootstrap: str, topic: str, options: Any) -> None:
    random = np.random.default_rng(1)
    numbers = (
        random.permutation(options.keys)
        if options.keys == options.records
        else random.integers(0, options.keys, options.records)
    )
    with NetworkClient(bootstrap) as client:
        Admin(client).create_topics({topic: options.partitions}, configs={topic: {"cleanup.policy": "compact"}})
        producer = Producer(client)
        for start in range(0, options.records, 50_000):
            piece = numbers[start : start + 50_000]
            keys = pa.array([b"key-%010d" % number for number in piece], pa.binary())
            values = pa.array([b"%0*d" % (options.value_bytes, number) for number in piece], pa.binary())
            producer.send(topic, None, keys, values, timestamps_ms=int(time.time() * 1000))
        producer.flush()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ours(bootstrap: str, topic: str, options: Any, directory: Path) -> dict[str, Any]:
    store = {"name": STORE, "changelog_topic": topic, "schema_hash": "benchmark", "source_topics": [topic]}
    replicas = Replicas(
        {
            "bootstrap_servers": bootstrap,
            "client_id": "restore",
            "state_dir": str(directory),
            "boot_id": boot_id(),
            "stores": {SUBTOPOLOGY: [store]},
        }
    )
    try:
        replicas.find([])  # it has started, and its kernels are compiled
        before, started = cpu_seconds(replicas.pid), time.monotonic()
        tasks: dict[int, dict[str, int]] = {partition: {} for partition in range(options.partitions)}
        records = replicas.catch_up(SUBTOPOLOGY, tasks, lambda: False).records
        seconds, cpu = time.monotonic() - started, cpu_seconds(replicas.pid) - before
    finally:
        replicas.close()
    return {
        "records": records,
        "seconds": round(seconds, 2),
        "records_per_second": round(records / seconds),
        "records_per_cpu_second": round(records / cpu),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=60)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--bootstrap-server")
    options = parser.parse_args()
    with cluster(options.bootstrap_server) as bootstrap, tempfile.TemporaryDirectory(prefix="restore-") as scratch:
        topic = f"restore-{uuid.uuid4().hex[:8]}-changelog"
        load(bootstrap, topic, options)
        result = {"ours": ours(bootstrap, topic, options, Path(scratch) / "ours")}
    print(json.dumps({**vars(options), **result}, indent=2))


if __name__ == "__main__":
    main()
