"""The schemas that an application's changelogs were written with, compared with those of the program.

The first record of a changelog's partition 0 decides. It is published before the first row: every instance that opens
tasks makes sure that it is there, also one that only writes repartition topics. Where two versions of a program start
at once in a new group both may publish; the log's order makes one of them the first, and the other is refused before it
has written a row. `row_schema` has the rules; this module reads and writes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.errors import StateError
from headrace.spark.runtime.rows.row_schema import StoredSchema, judge_changelog, schemas_by_changelog
from headrace.spark.topology.nodes import CompiledTopology

__all__ = ["StoredSchemas", "first_rows", "publish_schema"]

FETCH_BYTES = 64 * 1024

Row = tuple[bytes | None, bytes | None]


class StoredSchemas:
    """Mutable: which changelogs were compared already. Its methods may be called from any thread."""

    def __init__(self, group_id: str, compiled: CompiledTopology) -> None:
        self._group_id = group_id
        self._program = schemas_by_changelog(compiled)
        self._agreed: dict[str, object] = {}  # changelog → topic id
        self._lock = threading.Lock()

    def check(self, client: NetworkClient) -> list[str]:
        """Compare with the changelogs that exist, and write nothing; the names of those that hold the program's rows.

        Raises StateError("state-schema-changed").
        """
        known = client.metadata(sorted(self._program), refresh=True).topics if self._program else {}
        there = [topic for topic in self._program if topic in known]
        empty = self._judged_empty(client, there)
        return [topic for topic in there if topic not in empty]

    def agree(self, client: NetworkClient) -> None:
        """Publish the program's schemas where none are; all changelogs exist. Raises StateError as `check`."""
        with self._lock:
            topics = client.known_topics(sorted(self._program)).topics if self._program else {}
            # 1. Topics that were not compared yet under their present id.
            left = [topic for topic in self._program if self._agreed.get(topic) != topics[topic].topic_id]
            # 2. Publish where nothing is. Another instance may do the same at this moment.
            for topic in self._judged_empty(client, left):
                publish_schema(client, topic, self._program[topic])
            # Log order decides: the first record counts, whichever instance wrote it.
            if empty := self._judged_empty(client, left):
                raise StateError("state-unusable", f"the schema written to {empty[0]} cannot be read from there")
            self._agreed.update({topic: topics[topic].topic_id for topic in left})

    def _judged_empty(self, client: NetworkClient, topics: list[str]) -> list[str]:
        """Those of the changelogs that hold nothing yet; what the others hold is the program's."""
        found = first_rows(client, topics)
        for topic, first in found.items():
            judge_changelog(topic, first, self._program[topic], self._group_id)
        return [topic for topic, first in found.items() if first is None]


def publish_schema(client: NetworkClient, changelog: str, schema: StoredSchema) -> None:
    """Append the schema's record. Returns when it is stored."""
    produce(client, changelog, [PlainRecord(key=schema.key, value=schema.value)], partition=0)


def first_rows(client: NetworkClient, changelogs: Iterable[str]) -> dict[str, Row | None]:
    """Return the first committed record in partition 0 of each changelog; None for an empty one."""
    from headrace.client.fetcher import Fetcher  # Arrow, which `headrace check` may lack

    wanted = [(topic, 0) for topic in changelogs]
    found: dict[str, Row | None] = {topic: None for topic, _ in wanted}
    if not wanted:
        return found
    admin = Admin(client)
    first = admin.list_offsets(dict.fromkeys(wanted, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level="read_committed")
    for where in wanted:
        # The end is that of committed records: a first record inside of an open transaction decides nothing.
        if first[where].offset >= ends[where].offset:
            continue
        fetcher = Fetcher(client, max_partition_bytes=FETCH_BYTES)
        ranges = {where: (first[where].offset, ends[where].offset)}
        for batch in fetcher.fetch_ranges(ranges, columns=("key", "value")):
            if batch.table.num_rows:
                key, value = (batch.table.column(name)[0].as_py() for name in ("key", "value"))
                found[where[0]] = (key, value)
                break
    return found
