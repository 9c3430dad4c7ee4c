"""Writing in a transaction, and reading what was committed."""

from __future__ import annotations

from typing import Any

from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.sender import Sender
from headrace.protocol.record_batches import PlainRecord, encode_batch


def write(client, transactions, identity, rows, **queue):
    """Rows by (topic, partition), as one who got the identity told would write them."""
    register = None
    if not transactions.renews_identities:
        register = lambda partitions: transactions.add_partitions(identity, partitions)  # noqa: E731
    produced = Sender(client, identity=identity, register=register, **queue)
    for (topic, partition), values in rows.items():
        produced.add(topic, partition, encode_batch([PlainRecord(value=value.encode()) for value in values]))
    produced.flush()
    return produced


def read(client, *wheres):
    """What a reader of committed records gets up to the last stable offset, and where that is."""
    with Admin(client) as admin:
        ends = admin.list_offsets(dict.fromkeys(wheres, "latest"), isolation_level="read_committed")
    found: dict[Any, Any] = {where: [] for where in wheres}
    for batch in Fetcher(client).fetch_ranges({where: (0, end.offset) for where, end in ends.items()}):
        found[batch.topic, batch.partition] += [v.decode() for v in batch.table.column("value").to_pylist()]
    return found
