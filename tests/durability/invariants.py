"""Invariants of a broker after a start, checked against the ledger of a random history.

- A log is what it was when the broker ended. After a power loss it may be a prefix of that, at least as long as what
  had been flushed; nothing else, nothing twice, no hole. Where every acknowledgement waits for fsync it is not shorter
  than what was acknowledged.
- Every acknowledged record is at its offset; a record that was refused because the disk was full is nowhere.
- Committed offsets and epochs of groups have not gone back behind an acknowledgement.
- Topics, settings, ACLs, passwords and quotas are those that were acknowledged, under every flush policy.
- The records and offsets of a transaction are visible as a whole or not at all. No transaction stays open in a log that
  the coordinator does not know.
"""

from __future__ import annotations

from typing import Any

from tests.durability import requests as r
from tests.durability.access import Access
from tests.durability.ledger import GROUPS, KEPT, SESSION_SECONDS, STREAMS_GROUP, TABLE, Ledger, Partition, Violation
from tests.durability.simulated_broker import SimulatedBroker
from tests.durability.transactions import PARTITIONS, Transactions, visible_records

from headrace.coordinator.transactions.transitions import outcome_of_open
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import decode_records, iter_batch_headers

__all__ = ["Invariants", "read_values"]

RETENTION_BASE_MS = 10**10


def read_values(log: Any) -> dict[int, str]:
    """Return offset → value of everything in a log."""
    found: dict[int, str] = {}
    offset = log.log_start_offset
    while data := log.read(offset, 1 << 20, end_offset=log.log_end_offset):
        last = offset
        for record in decode_records(data, start_offset=offset):
            found[record.offset] = (record.value or b"").decode()
            last = record.offset
        offset = last + 1
    return found


class Invariants:
    """Checks of one broker against a ledger, which they bring up to date with what was found.

    Args:
        broker: The simulated broker, started.
        ledger: What must be found.
        access: The ledger of ACLs, passwords and quotas.
        transactions: The ledger of the transactional producer.
    """

    def __init__(self, broker: SimulatedBroker, ledger: Ledger, access: Access, transactions: Transactions) -> None:
        self._broker = broker
        self._ledger = ledger
        self._access = access
        self._transactions = transactions
        self._directory = broker.services.logs._directory

    def check_running(self) -> None:
        """Check what must hold at any time. Commits may be visible before they are durable, so none is recorded."""
        self._check_commits(may_lose=False, is_settled=False)

    def check_started(self, *, power_failed: bool, may_lose: bool) -> None:
        """Check everything after a start.

        Args:
            power_failed: Whether data that was not synced is gone.
            may_lose: Whether that may include acknowledged data: the power failed, and the flush policy is not
            "always".
        """
        self._broker.disk.capacity_bytes = None  # opening a log after a crash needs some space
        self._check_topics()
        for name, count in sorted(self._ledger.topics.items()):
            for index in range(0 if name.startswith("transactions") else count or 0):
                self._check_log((name, index), power_failed=power_failed, may_lose=may_lose)
        self._check_commits(may_lose=may_lose)
        self._check_transactions()
        self._check_no_hanging_transaction()
        if wrong := self._access.wrong(self._directory):
            raise Violation(wrong)
        self._check_streams_group(may_lose=may_lose)
        self._check_retention()

    def _check_retention(self) -> None:
        ledger = self._ledger
        topic = self._broker.services.metadata.topic(KEPT)
        found = int(topic.configs.get("retention.ms", RETENTION_BASE_MS)) - RETENTION_BASE_MS
        if not ledger.retention <= found <= ledger.requested_retention:
            raise Violation(f"setting {found} where {ledger.retention} was acknowledged")
        ledger.retention = found

    def _check_topics(self) -> None:
        ledger = self._ledger
        found = {topic.name: topic.partitions for topic in self._broker.services.metadata.topics()}
        for name in ledger.uncertain_topics:
            if name not in found or ledger.topics.get(name) != found[name]:
                ledger.forget_logs(name)
            ledger.topics[name] = found.get(name)
        ledger.uncertain_topics.clear()
        for name, count in ledger.topics.items():
            if found.get(name) != count:
                raise Violation(f"topic {name} has {found.get(name)} partitions, not {count}")

    # -- logs ------------------------------------------------------------------------------------------------

    def _check_log(self, partition: Partition, *, power_failed: bool, may_lose: bool) -> None:
        ledger = self._ledger
        log = self._directory.existing_log(*partition)
        found = {} if log is None else read_values(log)
        start, end = (0, 0) if log is None else (log.log_start_offset, log.log_end_offset)
        before = ledger.stored.get(partition, {})
        # 1. Nothing but what was sent, once, and nothing that was refused.
        if set(found.values()) - ledger.sent_values:
            raise Violation(f"{partition} holds records that no client sent")
        if duplicates := len(found) - len(set(found.values())):
            raise Violation(f"{partition} holds {duplicates} records twice")
        if refused := set(found.values()) & ledger.refused_values:
            raise Violation(f"{partition} holds refused records: {sorted(refused)}")
        # 2. What was flushed is there; without a power loss, everything is.
        if end < ledger.flushed.get(partition, 0):
            raise Violation(f"{partition} ends at {end}, it was flushed up to {ledger.flushed[partition]}")
        if partition[0] == TABLE:
            self._check_compacted(partition, found, before, end)
        else:
            self._check_prefix(partition, found, before, start, end)
        if not power_failed and before and end < max(before) + 1:
            raise Violation(f"{partition} ends at {end}, not at {max(before) + 1}")
        # 3. What was acknowledged is at its offset.
        if not may_lose:
            self._check_acknowledged(partition, found, start)
        acknowledged = ledger.acknowledged.get(partition, {})
        ledger.acknowledged[partition] = {offset: acknowledged[offset] for offset in acknowledged if offset < end}
        ledger.stored[partition] = found
        ledger.flushed.pop(partition, None)
        ledger.log_starts[partition] = start

    def _check_acknowledged(self, partition: Partition, found: dict[int, str], start: int) -> None:
        ledger = self._ledger
        first = ledger.log_starts.get(partition, 0)
        for offset, value in ledger.acknowledged.get(partition, {}).items():
            is_due = offset >= max(start, first) and partition[0] != TABLE
            if is_due and found.get(offset) != value:
                raise Violation(f"{partition}: acknowledged {value!r} at {offset} is {found.get(offset)!r}")
        if start > max(first, 0) and partition not in ledger.log_starts:
            raise Violation(f"{partition} begins at {start}")

    def _check_prefix(
        self, partition: Partition, found: dict[int, str], before: dict[int, str], start: int, end: int
    ) -> None:
        if list(found) != list(range(start, end)):
            raise Violation(f"{partition} has a hole: {start} to {end}, but {len(found)} records")
        expected = {offset: value for offset, value in before.items() if start <= offset < end}
        if any(found.get(offset) != value for offset, value in expected.items()):
            raise Violation(f"{partition} differs from what it was")

    def _check_compacted(self, partition: Partition, found: dict[int, str], before: dict[int, str], end: int) -> None:
        """The last record of each key is there, whatever compaction has removed."""
        if any(before.get(offset, value) != value for offset, value in found.items()):
            raise Violation(f"{partition} differs from what it was")
        history = {**self._ledger.acknowledged.get(partition, {}), **before}
        latest: dict[str, int] = {}
        for offset in sorted(offset for offset in history if offset < end):
            latest[history[offset].partition("=")[0]] = offset
        for key, offset in latest.items():
            has_newer = any(at > offset and value.startswith(f"{key}=") for at, value in found.items())
            if found.get(offset) != history[offset] and not has_newer:
                raise Violation(f"{partition}: {key} is lost, it was at {offset}")

    # -- groups ----------------------------------------------------------------------------------------------

    def _ask(self, api_key: ApiKey, request: Any, *, rounds: int = 5) -> Any:
        """Send a request and return the response; None if there is none."""
        answers: list[Any] = []
        self._broker.connect().ask(api_key, request, answers.append)
        self._broker.run(rounds)
        return answers[0] if answers else None

    def _topic_id(self, name: str) -> Any:
        topic = self._broker.services.metadata.topic(name)
        return None if topic is None else topic.topic_id

    def _check_commits(self, *, may_lose: bool, is_settled: bool = True) -> None:
        ledger = self._ledger
        for group in GROUPS:
            answer = self._ask(ApiKey.OFFSET_FETCH, r.fetch_offsets(group, KEPT, self._topic_id(KEPT), (0, 1)))
            if answer is None or answer.groups[0].error_code is not ErrorCode.none:
                raise Violation(f"the offsets of {group} cannot be fetched: {answer}")
            for part in answer.groups[0].topics[0].partitions:
                key = group, int(part.partition_index)
                acknowledged, requested = ledger.commits.get(key, -1), ledger.requested_commits.get(key, -1)
                lowest = -1 if may_lose else acknowledged
                if not lowest <= part.committed_offset <= requested:
                    raise Violation(f"{key} is at {part.committed_offset}, {acknowledged} was acknowledged")
                if is_settled:
                    ledger.commits[key] = int(part.committed_offset)

    def _check_streams_group(self, *, may_lose: bool) -> None:
        ledger = self._ledger
        answer = self._ask(ApiKey.STREAMS_GROUP_DESCRIBE, r.describe_streams_group(STREAMS_GROUP))
        group = answer.groups[0]
        exists = group.error_code is ErrorCode.none
        epoch = group.group_epoch if exists else 0
        if not may_lose and ledger.epochs and epoch < max(ledger.epochs.values()):
            raise Violation(f"the group is at epoch {epoch}, {ledger.epochs} were acknowledged")
        members = {member.member_id for member in group.members} if exists else set()
        session_began = self._broker.loop.time() - SESSION_SECONDS
        in_session = {member for member in ledger.epochs if ledger.last_heartbeats[member] > session_began}
        if not may_lose and not in_session <= members:
            raise Violation(f"members {sorted(members)} where {sorted(ledger.epochs)} were acknowledged")
        ledger.epochs = {name: at for name, at in ledger.epochs.items() if name in members and at <= epoch}

    # -- transactions ----------------------------------------------------------------------------------------

    def _check_transactions(self) -> None:
        """Committed transactions are visible to a read_committed consumer, others are not; none is visible in part."""
        transactions, topic = self._transactions, self._transactions.topic
        # A shard that could not be loaded at the start is loaded by the first request; what was decided before the
        # crash is then completed, with a second attempt if needed.
        self._ask(ApiKey.DESCRIBE_TRANSACTIONS, r.describe_transaction(topic), rounds=60)
        self._broker.pass_time(2)
        visible = [self._committed_numbers(topic, partition) for partition in range(PARTITIONS)]
        for number in range(1, max([0, *transactions.outcomes]) + 1):
            counts = [numbers.count(number) for numbers in visible]
            outcome = transactions.expected(number)
            allowed = {"committed": ([1, 1],), "doubtful": ([1, 1], [0, 0])}.get(outcome, ([0, 0],))
            if counts not in allowed:
                raise Violation(f"transaction {number} is {outcome}, and seen {counts} times")
        request = r.fetch_offsets(transactions.group, topic, self._topic_id(topic), (0,))
        answer = self._ask(ApiKey.OFFSET_FETCH, request)
        found = int(answer.groups[0].topics[0].partitions[0].committed_offset)
        if found not in transactions.allowed_offsets():
            allowed_offsets = sorted(transactions.allowed_offsets())
            raise Violation(f"the offset of {transactions.group} is {found}, it may be one of {allowed_offsets}")

    def _committed_numbers(self, topic: str, partition: int) -> list[int]:
        found: list[int] = []
        offset = 0
        while True:
            request = r.fetch(topic, self._topic_id(topic), partition, offset, committed=True)
            part = self._ask(ApiKey.FETCH, request).responses[0].partitions[0]
            headers = list(iter_batch_headers(part.records or b""))
            if not headers:
                return found
            records = visible_records(part.records, offset, part.aborted_transactions)
            found += [int(record.value) for record in records]
            offset = headers[-1].next_offset

    def _check_no_hanging_transaction(self) -> None:
        """A transaction that is open in a log is open for the coordinator, too, which will end it."""
        for partition in self._directory.partitions_on_disk():
            self._directory.log(*partition)
        self._broker.run(10)
        self._broker.pass_time(2)
        for partition, log in self._directory.open_logs().items():
            for producer_id, epoch, start in log.producers.open_transactions():
                holder = self._broker.services.transactions.holder(producer_id)
                fate = outcome_of_open(holder and holder[1], producer_id, epoch, partition)
                if fate != "known":
                    raise Violation(f"{partition}: the transaction of {producer_id} at {start} hangs ({fate})")
