"""What must be there after the last life of the broker in the crash test, held against what the clients know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tests.durability import requests as r
from tests.durability.access import found_access
from tests.durability.crash_client import Violation
from tests.durability.transactions import visible_records
from tests.harness.wire import WireClient

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import iter_batch_headers

if TYPE_CHECKING:
    from tests.durability.crash import Crash

__all__ = ["FOREIGN", "OWN", "PARTITIONS", "TABLE", "TRANSACTIONAL_GROUP", "TRANSACTIONS", "Verification", "offset_of"]

OWN, FOREIGN, TABLE, TRANSACTIONS = "own", "foreign", "table", "transactions"
TRANSACTIONAL_GROUP = "offsets-in-transactions"
PARTITIONS = 2


def offset_of(topic_ids: Mapping[str, Any], group_id: str, topic: str, ask: Callable[[ApiKey, Any], Any]) -> int | None:
    """-1 when nothing is committed; None when the broker cannot say it now."""
    request = r.fetch_offsets(group_id, topic, topic_ids[topic], (0,))
    group = ask(ApiKey.OFFSET_FETCH, request).groups[0]
    if group.error_code is not ErrorCode.none:
        return None
    return int(group.topics[0].partitions[0].committed_offset) if group.topics else -1


class Verification:
    """One look at everything. `failures` grows."""

    def __init__(self, run: Crash) -> None:
        self._run = run
        self.failures: list[str] = []

    def verify(self) -> list[str]:
        """What is wrong."""
        wire = WireClient(self._run.broker.port)
        for partition, values in self._run.own.items():
            found = [record.value for record in self._read(wire, OWN, partition)]
            if found[: len(values)] != values or len(found) > len(values) + 3:
                self.failures.append(f"{OWN}-{partition} holds {len(found)} records, {len(values)} were acknowledged")
        found_foreign = {
            (partition, record.offset): record.value
            for partition in range(PARTITIONS)
            for record in self._read(wire, FOREIGN, partition)
        }
        lost = [place for place, value in self._run.foreign.items() if found_foreign.get(place) != value]
        if lost:
            self.failures.append(f"{len(lost)} of {len(self._run.foreign)} acknowledged records are lost: {lost[:5]}")
        idempotent = [value for value in found_foreign.values() if value.startswith(b"idempotent")]
        if len(idempotent) != len(set(idempotent)):
            self.failures.append("records of an idempotent producer are there twice")
        self._verify_order(wire)
        self._verify_table(wire)
        self._verify_transactions(wire)
        wrong = self._run.access.wrong(found_access(wire.call))
        self.failures += [wrong] if wrong is not None else []
        wire.close()
        return self.failures

    def _verify_order(self, wire: WireClient) -> None:
        for partition in range(PARTITIONS):
            values = [record.value for record in self._read(wire, FOREIGN, partition)]
            numbers = [int(value.split()[1]) for value in values if value.startswith(b"idempotent")]
            if numbers != sorted(numbers):
                self.failures.append(f"the idempotent producer's records in partition {partition} are out of order")

    def _verify_table(self, wire: WireClient) -> None:
        latest = {record.key.decode(): (record.offset, record.value) for record in self._read(wire, TABLE, 0)}
        for key, (offset, value) in self._run.table.items():
            if latest.get(key, (-1, b""))[0] < offset or (latest[key][0] == offset and latest[key][1] != value):
                self.failures.append(f"{key} is {latest.get(key)}, {(offset, value)} was acknowledged")

    def _verify_transactions(self, wire: WireClient) -> None:
        outcome = {name: set(numbers) for name, numbers in self._run.transactions.items()}
        seen = self._verify_outcomes(wire, TRANSACTIONS, outcome)
        offset = offset_of(self._run.topic_ids, TRANSACTIONAL_GROUP, TRANSACTIONS, wire.call)
        if offset != max(seen & self._run.with_offset, default=-1):
            last = max(seen & self._run.with_offset, default=-1)
            self.failures.append(f"transaction {last} is the last visible one with an offset, {offset} is committed")
        ledger = self._run.own_transactions
        ledger.lost_track()
        outcome = {
            name: {number for number, each in ledger.outcomes.items() if each in expected}
            for name, expected in {"committed": ("committed",), "aborted": ("aborted", "open")}.items()
        }
        seen = self._verify_outcomes(wire, ledger.topic, outcome)
        offset, last = (
            offset_of(self._run.topic_ids, ledger.group, ledger.topic, wire.call),
            max(seen & set(ledger.offsets), default=-1),
        )
        if offset != last or offset not in ledger.allowed_offsets():
            self.failures.append(
                f"{ledger.group} is at {offset}, the last visible transaction with an offset is {last}"
            )

    def _verify_outcomes(self, wire: WireClient, topic: str, outcome: Mapping[str, set[int]]) -> set[int]:
        """Notes what contradicts them; the numbers of transactions that are visible."""
        seen = []
        for partition in range(PARTITIONS):
            numbers = [int(record.value) for record in self._read(wire, topic, partition, committed=True)]
            if len(numbers) != len(set(numbers)):
                self.failures.append(f"a transaction's record is twice in {topic}-{partition}")
            seen.append(set(numbers))
            if missing := outcome["committed"] - seen[-1]:
                self.failures.append(f"committed, but not in {topic}-{partition}: {sorted(missing)[:5]}")
            if wrong := outcome["aborted"] & seen[-1]:
                self.failures.append(f"aborted, but visible in {topic}-{partition}: {sorted(wrong)[:5]}")
        if halves := seen[0] ^ seen[1]:
            self.failures.append(f"half of a transaction is visible in {topic}: {sorted(halves)[:5]}")
        return seen[0]

    def _read(self, wire: WireClient, topic: str, partition: int, *, committed: bool = False) -> list[Any]:
        f = m.fetch_request
        found: list[Any] = []
        offset = 0
        while True:
            part = f.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 22, current_leader_epoch=-1
            )
            request = f.FetchRequest(
                topics=(f.FetchTopic(topic=topic, topic_id=self._run.topic_ids[topic], partitions=(part,)),),
                max_wait=r.from_ms(0),
                min_bytes=1,
                isolation_level=1 if committed else 0,
            )
            answer = wire.call(ApiKey.FETCH, request).responses[0].partitions[0]
            end = answer.last_stable_offset if committed else answer.high_watermark
            data = answer.records or b""
            if answer.error_code is not ErrorCode.none:
                raise Violation(f"{topic}-{partition} cannot be read at {offset}: {answer.error_code.name}")
            headers = list(iter_batch_headers(data))
            if not headers:
                if offset < end:
                    raise Violation(f"{topic}-{partition} ends at {offset}, not at {end}")
                return found
            found += visible_records(data, offset, answer.aborted_transactions if committed else None)
            offset = headers[-1].next_offset
