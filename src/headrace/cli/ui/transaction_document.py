"""Document about transactions: those in progress, and partitions whose readers an open transaction holds back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.client.admin_transactions import TransactionDescription, list_open_transactions
from headrace.client.transaction_markers import OpenTransaction, find_open_transaction

if TYPE_CHECKING:
    from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot
    from headrace.client.admin import Admin

__all__ = ["HangingTransactions", "held_partitions", "transactions_document"]

TopicPartition = tuple[str, int]
MOST_SHOWN = 200
MOST_PARTITIONS = 20
MOST_HELD = 20
# Markers are written behind the end of a transaction. A transaction that its coordinator does not know as open is
# called hanging only when it still is after so long.
SETTLING_MS = 10_000


class HangingTransactions:
    """Open transactions that no coordinator will end, and since when they were seen. Mutable."""

    def __init__(self) -> None:
        self._seen_ms: dict[tuple[str, int, int], int] = {}

    def update(self, found: Mapping[TopicPartition, OpenTransaction], now_ms: int) -> frozenset[TopicPartition]:
        """Return the partitions whose open transaction hangs for `SETTLING_MS` at least.

        Args:
            found: The oldest open transaction by partition.
            now_ms: Any time that only goes forward.
        """
        seen = {(*key, each.start_offset): key for key, each in found.items() if each.hangs}
        self._seen_ms = {name: self._seen_ms.get(name, now_ms) for name in seen}
        return frozenset(seen[name] for name, since in self._seen_ms.items() if now_ms - since >= SETTLING_MS)


def held_partitions(snapshot: ClusterSnapshot) -> list[tuple[TopicPartition, int]]:
    """Return the partitions with records behind the last stable offset, and how many, most first."""
    held = [
        (key, log.end - log.stable_end)
        for key, log in snapshot.partitions.items()
        if log.end is not None and log.stable_end is not None and log.stable_end < log.end
    ]
    return sorted(held, key=lambda each: (-each[1], each[0]))


def transactions_document(
    admin: Admin, snapshot: ClusterSnapshot, hanging: HangingTransactions, *, now_ms: int, wall_clock_ms: int
) -> dict[str, Any]:
    """Return the document; it sends requests to the cluster.

    Args:
        admin: The cluster.
        snapshot: The last snapshot, for last stable offsets.
        hanging: Transactions that hung before.
        now_ms: Any time that only goes forward.
        wall_clock_ms: The time that the ages of transactions count from.

    Raises:
        BrokerError: `unsupported-api`, `not-authorized`.
        CannotConnect: No broker answers.
    """
    found = list_open_transactions(admin.client)
    held = held_partitions(snapshot)
    causes = {key: find_open_transaction(admin.client, *key) for key, _ in held[:MOST_HELD]}
    known = {key: cause for key, cause in causes.items() if cause is not None}
    hangs = hanging.update(known, now_ms)
    return {
        "transactions": [_transaction(each, wall_clock_ms) for each in found[:MOST_SHOWN]],
        "count": len(found),
        # A partition whose transaction ended since the snapshot is not held back any more.
        "held": [_held(key, records, known[key], key in hangs) for key, records in held[:MOST_HELD] if key in known],
        "held_count": len(held),
    }


def _transaction(each: TransactionDescription, wall_clock_ms: int) -> dict[str, Any]:
    age_ms = None if each.begun_ms is None else max(0, wall_clock_ms - each.begun_ms)
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "age_ms": age_ms,
        "timeout_ms": each.timeout_ms,
        # Coordinators look for expired transactions every 10 s.
        "is_overdue": age_ms is not None and age_ms > each.timeout_ms + 2 * SETTLING_MS,
        "partitions": [{"topic": topic, "partition": number} for topic, number in each.partitions[:MOST_PARTITIONS]],
        "partitions_count": len(each.partitions),
    }


def _held(key: TopicPartition, records: int, cause: OpenTransaction, hangs: bool) -> dict[str, Any]:
    return {
        "topic": key[0],
        "partition": key[1],
        "records": records,
        "start_offset": cause.start_offset,
        "producer_id": cause.producer_id,
        "transactional_id": cause.transactional_id,
        "state": cause.state,
        "hangs": hangs,
        "do": cause.how_to_end() if hangs or not cause.hangs else "Its markers are being written.",
    }
