"""All records of a topic, and the codecs."""

from __future__ import annotations

from typing import Any

from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.network_client import NetworkClient


def everything(client: NetworkClient, topic: str, **options: Any) -> list[dict[str, Any]]:
    """All records of a topic as dictionaries, by partition and offset."""
    partitions = client.known_topics([topic]).topics[topic].partitions
    ends = Admin(client).list_offsets({(topic, p): "latest" for p in partitions})
    rows: list[dict[str, Any]] = []
    for batch in Fetcher(client, **options).fetch_ranges({key: (0, end.offset) for key, end in ends.items()}):
        rows += [{"partition": batch.partition, **row} for row in batch.table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
