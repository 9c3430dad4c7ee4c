"""A topic of JSON records with keys, and what the benchmarks of whole applications ask about topics and processes.

`{"key": "k000123", "n": 123, "pad": "xx…"}`, about 100 bytes, with the key as the record's key; keys are drawn evenly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "big_endian_counts",
    "cpu_seconds",
    "descendants",
    "fill",
    "json_counts",
    "load",
    "newest_by_key",
    "offsets_behind",
    "one_for_each",
    "rows_of",
    "whole",
]

TICKS = os.sysconf("SC_CLK_TCK")
CHUNK, PAD = 100_000, "x" * 60


def load(bootstrap: str, topic: str, *, records: int, keys: int, partitions: int) -> int:
    """Make the topic and fill it; how many records have an even `n`."""
    from headrace.client.admin import Admin
    from headrace.client.network_client import NetworkClient

    with NetworkClient(bootstrap) as client:
        Admin(client).create_topics({topic: partitions})
    return fill(bootstrap, topic, records=records, keys=keys)


def fill(bootstrap: str, topic: str, *, records: int, keys: int) -> int:
    """Write to a topic that is there; how many records have an even `n`."""
    from headrace.client.network_client import NetworkClient
    from headrace.client.producer import Producer

    random = np.random.default_rng(1)
    with NetworkClient(bootstrap) as client:
        producer, even = Producer(client), 0
        for start in range(0, records, CHUNK):
            drawn = random.integers(0, keys, min(CHUNK, records - start))
            even += int(np.count_nonzero(drawn % 2 == 0))
            names, values = rows_of(drawn)
            producer.send(topic, None, names, values, timestamps_ms=int(time.time() * 1000))
        producer.flush()
    return even


def rows_of(numbers: Any) -> tuple[pa.Array, pa.Array]:
    """Keys and values of the records with these `n`."""
    texts = pa.array(numbers).cast(pa.string())
    names = pc.binary_join_element_wise("k", pc.utf8_lpad(texts, 7, "0"), "")
    parts = ('{"key": "', names, '", "n": ', texts, f', "pad": "{PAD}"}}', "")
    return names.cast(pa.binary()), pc.binary_join_element_wise(*parts).cast(pa.binary())


def one_for_each(bootstrap: str, topic: str) -> Callable[[], None]:
    """A function that writes one record to every partition, with a key that belongs there, in one request."""
    from headrace.client.network_client import NetworkClient
    from headrace.client.producer import Producer
    from headrace.protocol.arrow_batches import murmur2_partitions

    client = NetworkClient(bootstrap)
    producer, partitions = Producer(client), len(client.known_topics([topic]).topics[topic].partitions)
    numbers = np.arange(partitions * 50)
    _, first = np.unique(murmur2_partitions(rows_of(numbers)[0], partitions), return_index=True)
    names, values = rows_of(numbers[first])

    def write() -> None:
        producer.send(topic, None, names, values)
        producer.flush()

    return write


def offsets_behind(bootstrap: str, topic: str) -> dict[tuple[str, int], int]:
    """Return the end of each partition for a reader of committed records."""
    from headrace.client.admin import Admin
    from headrace.client.network_client import NetworkClient

    with NetworkClient(bootstrap) as client:
        partitions = client.known_topics([topic]).topics[topic].partitions
        wanted = {(topic, int(partition)): "latest" for partition in partitions}
        found = Admin(client).list_offsets(wanted, isolation_level="read_committed")
    return {where: entry.offset for where, entry in found.items()}


def newest_by_key(bootstrap: str, topic: str) -> pa.Table:
    """Each key's newest record."""
    table = whole(bootstrap, topic)
    numbered = table.append_column("at", pa.array(np.arange(table.num_rows)))
    newest = numbered.group_by("key", use_threads=False).aggregate([("at", "max")])
    return table.take(newest.column("at_max"))


def whole(bootstrap: str, topic: str) -> pa.Table:
    """All committed records of a topic: key and value, partition by partition in order."""
    from headrace.client.fetcher import Fetcher
    from headrace.client.network_client import NetworkClient

    ranges = {where: (0, end) for where, end in offsets_behind(bootstrap, topic).items() if end}
    with NetworkClient(bootstrap) as client:
        fetched = [f.table for f in Fetcher(client).fetch_ranges(ranges, columns=("key", "value"))]
    kind = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    return pa.Table.from_batches([pa.record_batch(batch.columns, schema=kind) for batch in fetched], schema=kind)


def json_counts(values: Any) -> int:
    """The sum of the numbers behind the last colon of each value."""
    texts = pc.utf8_rtrim(values.cast(pa.string()), "}")
    return int(pc.sum(pc.replace_substring_regex(texts, r"^.*:\s*", "").cast(pa.int64())).as_py() or 0)


def big_endian_counts(values: Any) -> int:
    """The sum of 8-byte numbers as Java writes them."""
    joined = b"".join(values.to_pylist())
    return int(np.frombuffer(joined, ">i8").sum())


def descendants(root: int) -> set[int]:
    """A process and all that stem from it."""
    found = {int(p.name): _stat(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    mine = {root}
    while more := {pid for pid, stat in found.items() if stat and int(stat[1]) in mine} - mine:
        mine |= more
    return mine


def cpu_seconds(pids: set[int]) -> float:
    """Return the CPU seconds of these processes, with children that ended and were waited for."""
    stats = [_stat(Path("/proc") / str(pid)) for pid in pids]
    return sum(sum(map(int, stat[11:15])) for stat in stats if stat) / TICKS


def _stat(directory: Path) -> list[str]:
    try:
        return (directory / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
