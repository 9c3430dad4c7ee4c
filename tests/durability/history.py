"""Random history of one broker: clients send requests, the disk fails, the broker is killed or loses power.

`History(seed).play(steps)` depends on the seed alone. After each start `invariants` compares the broker with the
`ledger` of what was acknowledged. Two rules are checked while the history runs: an idempotent producer that repeats a
batch of unknown outcome gets an answer, and no producer id is handed out twice.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.durability import requests as r
from tests.durability.access import Access
from tests.durability.invariants import RETENTION_BASE_MS, Invariants, read_values
from tests.durability.ledger import (
    GROUPS,
    KEPT,
    STREAMS_GROUP,
    TABLE,
    IdempotentProducer,
    Ledger,
    Partition,
    SentBatch,
    Violation,
)
from tests.durability.simulated_broker import SimulatedBroker, Wire
from tests.durability.transactions import PARTITIONS, Transactions
from tests.storage.faulty_file_system import NOTHING_FAILS, error

from headrace.errors import HeadraceError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, encode_batch

__all__ = ["History", "Violation"]

CHANGING_OPERATIONS = (
    *("open", "write", "truncate", "sync", "rename", "remove", "remove_tree", "make_directory", "sync_directory"),
)
MAX_STARTS = 20


class FailingDisk:
    """Fault injector: the n-th changing operation fails with EIO, and with `once=False` everything after it.

    Args:
        number: How many changing operations succeed before.
        once: Whether only one operation fails.
    """

    def __init__(self, number: int, *, once: bool) -> None:
        self._remaining, self._once = number, once
        self._has_failed = False

    def __call__(self, operation: str, path: Path) -> OSError | None:
        if operation in CHANGING_OPERATIONS:
            self._remaining -= 1
            if self._remaining < 0:
                is_first = not self._has_failed
                self._has_failed = True
                if is_first or not self._once:
                    return error(errno.EIO, path)
        return error(errno.EIO, path) if self._has_failed and not self._once else None


class History:
    """One broker, its clients and the ledger. Mutable.

    Attributes:
        lives: How often the broker ended.
        acknowledgements: How many requests were acknowledged.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._flush_policy = self._random.choice(("always", "always", "interval", "never"))
        self._broker = SimulatedBroker(self._settings())
        self._ledger = Ledger()
        self._counter = 0  # makes record values and topic names unique
        self._producers = [IdempotentProducer() for _ in range(2)]
        self._wires: list[Wire] = []
        self.lives = 0
        self._transactions = Transactions(self._random, 0)
        self._access = Access(self._random)
        self._start_broker()

    @property
    def acknowledgements(self) -> int:
        return self._ledger.acknowledgements

    def _settings(self) -> dict[str, object]:
        return {
            "headrace.flush.policy": self._flush_policy,
            "log.flush.interval.ms": 200,
            "log.segment.bytes": self._random.choice((500, 2_000, 100_000)),
            "log.index.interval.bytes": self._random.choice((0, 200, 4096)),
            "offsets.topic.segment.bytes": self._random.choice((1_000, 100_000)),
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.num.partitions": 2,
            "log.cleaner.backoff.ms": self._random.choice((300, 15_000)),
            "log.cleaner.min.cleanable.ratio": 0.1,
            "group.streams.initial.rebalance.delay.ms": 0,
            "group.streams.assignment.interval.ms": 0,
            "authorizer.class.name": "on",
            "allow.everyone.if.no.acl.found": "true",
        }

    def play(self, steps: int) -> None:
        """Run so many steps, end the broker and check it a last time. Raises Violation."""
        for _ in range(steps):
            self._step()
        self._end_broker(self._random.choice((self._kill, self._stop)))
        self._broker.close()

    def _step(self) -> None:
        """Send a few requests, then let time pass, inject a fault or end the broker."""
        choice = self._random.random()
        for _ in range(self._random.randint(1, 4)):
            self._random.choice(
                (
                    *(self._produce, self._produce, self._produce, self._produce_idempotent, self._produce_idempotent),
                    *(self._commit_offset, self._commit_offset, self._change_topics, self._heartbeat),
                    *(self._alter_retention, self._init_producer, self._delete_records),
                    *(self._step_transaction, self._step_transaction, self._step_transaction, self._change_access),
                )
            )()
        if choice < 0.70:
            self._broker.run(self._random.randint(1, 12))
        elif choice < 0.80:
            self._broker.run(30)
            self._broker.pass_time(self._random.choice((0.3, 1, 6, 16)))
        elif choice < 0.84:
            self._fill_disk()
        elif choice < 0.87:
            self._broker.disk.failures = FailingDisk(self._random.randint(0, 8), once=True)
        elif choice < 0.90:
            self._broker.disk.failures = FailingDisk(self._random.randint(0, 25), once=False)
        elif choice < 0.95:
            self._broker.run(self._random.randint(0, 8))
            self._end_broker(self._random.choice((self._kill, self._lose_power, self._lose_power)))
        elif choice < 0.97:
            self._broker.run(60)
            self._end_broker(self._stop)
        else:
            self._broker.run(60)
            self._invariants().check_running()

    def _invariants(self) -> Invariants:
        return Invariants(self._broker, self._ledger, self._access, self._transactions)

    def _wire(self) -> Wire:
        """Return an idle connection, or a new one."""
        self._wires = [wire for wire in self._wires if wire.is_open]
        idle = [wire for wire in self._wires if wire.is_idle]
        if idle and (len(self._wires) > 8 or self._random.random() < 0.8):
            return self._random.choice(idle)
        self._wires.append(self._broker.connect())
        return self._wires[-1]

    def _topic_id(self, name: str) -> Any:
        topic = self._broker.services.metadata.topic(name)
        return None if topic is None else topic.topic_id

    # -- producers -------------------------------------------------------------------------------------------

    def _choose_partition(self) -> Partition:
        names = sorted(
            name
            for name, count in self._ledger.topics.items()
            if count is not None and self._topic_id(name) and not name.startswith("transactions")
        )
        name = self._random.choice(names) if names else KEPT
        return name, self._random.randrange(self._ledger.topics.get(name) or 1)

    def _make_batch(self, partition: Partition, **how: Any) -> tuple[bytes, tuple[str, ...]]:
        records, values = [], []
        for _ in range(self._random.randint(1, 3)):
            self._counter += 1
            key = f"key-{self._random.randrange(4)}" if partition[0] == TABLE else None
            values.append(f"{key}={self._counter}" + "." * self._random.choice((0, 10, 120)))
            key_bytes = None if key is None else key.encode()
            records.append(PlainRecord(key=key_bytes, value=values[-1].encode(), timestamp_ms=self._broker.now_ms()))
        self._ledger.sent_values.update(values)
        return encode_batch(records, **how), tuple(values)

    def _produce(self) -> None:
        partition = self._choose_partition()
        records, values = self._make_batch(partition)
        acks = self._random.choice((0, 1, -1, -1))
        if (topic_id := self._topic_id(partition[0])) is None:
            return
        if acks == 0:
            # There is no response, so the connection is not kept with those that wait for one.
            request = r.produce(partition[0], topic_id, partition[1], records, acks=0)
            Wire(self._broker).ask(ApiKey.PRODUCE, request, print)
            return
        sent = SentBatch(partition=partition, values=values, acks=acks, records=records)
        self._send_produce(sent, topic_id, self._on_produced)

    def _send_produce(
        self, sent: SentBatch, topic_id: Any, on_answer: Callable[[SentBatch, ErrorCode, int, str], None]
    ) -> None:
        request = r.produce(sent.partition[0], topic_id, sent.partition[1], sent.records, acks=sent.acks)
        sent.topic_id = topic_id

        def answered(answer: Any) -> None:
            part = answer.responses[0].partition_responses[0]
            on_answer(sent, part.error_code, part.base_offset, part.error_message or "")

        self._wire().ask(ApiKey.PRODUCE, request, answered)

    def _on_produced(self, sent: SentBatch, code: ErrorCode, base_offset: int, message: str) -> None:
        if code is ErrorCode.none and self._topic_id(sent.partition[0]) == sent.topic_id:  # else deleted since
            self._ledger.acknowledge_records(sent, base_offset)
        elif "No space left" in message and "flushed" not in message:
            self._ledger.refused_values.update(sent.values)

    def _produce_idempotent(self) -> None:
        producer = self._random.choice(self._producers)
        if producer.producer_id < 0 or producer.in_flight:
            return
        if producer.unresolved is None:
            partition = KEPT, self._random.randrange(2)
            sequence = producer.next_sequence.get(partition, 0)
            how = {"producer_id": producer.producer_id, "producer_epoch": 0, "base_sequence": sequence}
            records, values = self._make_batch(partition, **how)
            producer.unresolved = SentBatch(partition=partition, values=values, acks=-1, records=records)
        topic_id = self._topic_id(KEPT)
        if topic_id is None:
            return
        producer.in_flight = True

        def answered(sent: SentBatch, code: ErrorCode, base_offset: int, message: str) -> None:
            producer.in_flight = False
            if code is ErrorCode.none:
                self._on_produced(sent, code, base_offset, message)
                before = producer.next_sequence.get(sent.partition, 0)
                producer.next_sequence[sent.partition] = before + len(sent.values)
                producer.unresolved = None
            elif code is not ErrorCode.kafka_storage_error:
                if not producer.lost_since_sent:
                    raise Violation(f"an idempotent producer was refused: {code.name} {message}")
                # Its last batches are gone. Like a real client it starts again with another id.
                self._producers[self._producers.index(producer)] = IdempotentProducer()

        self._send_produce(producer.unresolved, topic_id, answered)

    def _init_producer(self) -> None:
        idle = [each for each in self._producers if each.producer_id < 0 and not each.in_flight]
        if not idle:
            return
        producer = idle[0]
        producer.in_flight = True

        def answered(answer: Any) -> None:
            producer.in_flight = False
            if answer.error_code is ErrorCode.none:
                if answer.producer_id in self._ledger.producer_ids:
                    raise Violation(f"producer id {answer.producer_id} was handed out twice")
                self._ledger.producer_ids.add(answer.producer_id)
                producer.producer_id = answer.producer_id

        self._wire().ask(ApiKey.INIT_PRODUCER_ID, r.init_producer(), answered)

    def _step_transaction(self) -> None:
        if (topic_id := self._topic_id(self._transactions.topic)) is not None:
            self._transactions.step(self._wire().ask, topic_id, self._broker.now_ms())

    # -- groups ----------------------------------------------------------------------------------------------

    def _commit_offset(self) -> None:
        topic_id = self._topic_id(KEPT)
        if topic_id is None:
            return
        ledger = self._ledger
        key = self._random.choice(GROUPS), self._random.randrange(2)
        offset = ledger.requested_commits.get(key, 0) + self._random.randint(1, 5)
        ledger.requested_commits[key] = offset

        def answered(answer: Any) -> None:
            if answer.topics[0].partitions[0].error_code is ErrorCode.none:
                ledger.acknowledgements += 1
                ledger.commits[key] = max(ledger.commits.get(key, -1), offset)

        self._wire().ask(ApiKey.OFFSET_COMMIT, r.commit(key[0], KEPT, topic_id, key[1], offset), answered)

    def _heartbeat(self) -> None:
        ledger = self._ledger
        member = self._random.choice(("m1", "m2"))

        def answered(answer: Any) -> None:
            if answer.error_code is ErrorCode.none:
                ledger.epochs[member] = max(ledger.epochs.get(member, 0), answer.member_epoch)
                ledger.last_heartbeats[member] = self._broker.loop.time()
            elif answer.error_code in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
                ledger.epochs.pop(member, None)

        request = r.streams_heartbeat(STREAMS_GROUP, member, ledger.epochs.get(member, 0), KEPT)
        self._wire().ask(ApiKey.STREAMS_GROUP_HEARTBEAT, request, answered)

    # -- topics and settings ---------------------------------------------------------------------------------

    def _change_topics(self) -> None:
        """Create a topic, sometimes one of a deleted name, or delete one."""
        ledger = self._ledger
        self._counter += 1
        deletable = [name for name, count in ledger.topics.items() if count is not None and name[1:].isdigit()]
        deletable = sorted(set(deletable) - {TABLE} - ledger.uncertain_topics)
        if deletable and self._random.random() < 0.5:
            name = self._random.choice(deletable)
            ledger.uncertain_topics.add(name)
            self._wire().ask(ApiKey.DELETE_TOPICS, r.delete_topic(name), lambda answer: self._on_deleted(name, answer))
            return
        deleted = [name for name, count in ledger.topics.items() if count is None]
        deleted = [name for name in deleted if name not in ledger.uncertain_topics]
        deleted = sorted(name for name in deleted if not name.startswith("transactions"))
        name = self._random.choice([f"t{self._counter}", *deleted[:3]])
        count = self._random.randint(1, 3)
        ledger.uncertain_topics.add(name)
        self._wire().ask(
            ApiKey.CREATE_TOPICS, r.create_topic(name, count), lambda answer: self._on_created(name, count, answer)
        )

    def _on_created(self, name: str, count: int, answer: Any) -> None:
        if answer.topics[0].error_code is ErrorCode.none:
            self._ledger.acknowledgements += 1
            self._ledger.acknowledge_topic(name, count)

    def _on_deleted(self, name: str, answer: Any) -> None:
        if answer.responses[0].error_code is ErrorCode.none:
            self._ledger.acknowledge_topic(name, None)
            self._ledger.forget_logs(name)

    def _alter_retention(self) -> None:
        if self._topic_id(KEPT) is None:
            return
        ledger = self._ledger
        ledger.requested_retention += 1
        value = ledger.requested_retention

        def answered(answer: Any) -> None:
            if answer.responses[0].error_code is ErrorCode.none:
                ledger.acknowledgements += 1
                ledger.retention = max(ledger.retention, value)

        request = r.alter_topic_config(KEPT, "retention.ms", str(RETENTION_BASE_MS + value))
        self._wire().ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, answered)

    def _delete_records(self) -> None:
        partition = self._choose_partition()
        acknowledged = self._ledger.acknowledged.get(partition)
        if partition[0] == TABLE or not acknowledged or self._random.random() < 0.5:
            return
        request = r.delete_records(*partition, self._random.choice(sorted(acknowledged)))
        self._wire().ask(ApiKey.DELETE_RECORDS, request, lambda _answer: None)

    def _change_access(self) -> None:
        self._access.step(self._wire().ask)

    def _fill_disk(self) -> None:
        """Send requests to a broker whose disk is (nearly) full; sometimes end it like this."""
        disk = self._broker.disk
        disk.capacity_bytes = disk.used() + self._random.choice((0, 50, 300, 2_000))
        for _ in range(self._random.randint(1, 6)):
            self._random.choice(
                (
                    *(self._produce, self._produce_idempotent, self._commit_offset),
                    *(self._change_topics, self._step_transaction, self._change_access),
                )
            )()
            self._broker.run(10)
        if self._random.random() < 0.3:
            self._end_broker(self._random.choice((self._kill, self._stop, self._lose_power)))
        disk.capacity_bytes = None

    # -- ends and starts of the broker -----------------------------------------------------------------------

    def _end_broker(self, end: Callable[[], bool]) -> None:
        """End the broker, start it again and check the invariants. `end` returns whether the power failed."""
        if self._broker.faults:
            raise Violation("a request met an unexpected error") from self._broker.faults[0]
        self._record_logs()
        power_failed = end()
        may_lose = power_failed and self._flush_policy != "always"
        self._wires.clear()
        self._transactions.lost_track()
        for producer in self._producers:
            producer.in_flight = False
            producer.lost_since_sent |= may_lose
        self.lives += 1
        if may_lose:
            # Logs may have gone back to different moments: outcomes of earlier transactions are unknown.
            self._transactions = Transactions(self._random, self.lives)
        self._start_broker()
        self._invariants().check_started(power_failed=power_failed, may_lose=may_lose)

    def _kill(self) -> bool:
        self._broker.kill()
        return False

    def _lose_power(self) -> bool:
        """Lose what was not synced; sometimes in the middle of a graceful stop."""
        if self._random.random() < 0.2:
            self._broker.disk.failures = FailingDisk(self._random.randint(0, 12), once=False)
            self._stop()
        self._broker.power_fails(self._random)
        return True

    def _stop(self) -> bool:
        keep_failures = self._random.random() < 0.5
        self._broker.disk.failures = self._broker.disk.failures if keep_failures else NOTHING_FAILS
        try:
            self._broker.stop()
        except (OSError, HeadraceError):
            self._broker.kill()
        self._broker.disk.killed()
        return False

    def _start_broker(self) -> None:
        """Start the broker; sometimes its disk fails in the middle of a start, which is then repeated."""
        for _ in range(MAX_STARTS):
            self._broker.disk.failures = NOTHING_FAILS
            if self._random.random() < 0.15:
                self._broker.disk.failures = FailingDisk(self._random.randint(0, 12), once=False)
            try:
                self._broker.start()
            except (OSError, HeadraceError) as failure:
                if self._broker.disk.failures is NOTHING_FAILS and self._broker.disk.capacity_bytes is None:
                    raise Violation(f"the broker does not start: {failure}") from failure
                self._broker.disk.capacity_bytes = None
                self._broker.kill()
                continue
            self._broker.disk.failures = NOTHING_FAILS
            break
        for name, count in ((KEPT, 2), (TABLE, 1), (self._transactions.topic, PARTITIONS)):
            self._ensure_topic(name, count)

    def _ensure_topic(self, name: str, count: int) -> None:
        if self._ledger.topics.get(name) is not None:
            return
        self._broker.disk.capacity_bytes = None
        if self._topic_id(name) is None:
            configs = {"cleanup.policy": "compact"} if name == TABLE else {}
            self._broker.connect().ask(
                ApiKey.CREATE_TOPICS,
                r.create_topic(name, count, configs),
                lambda answer: self._on_created(name, count, answer),
            )
            self._broker.run(20)
        self._ledger.topics[name] = count

    def _record_logs(self) -> None:
        """Record what the open logs hold, and how much of it was flushed, before the broker ends."""
        if self._broker.server is None:
            return
        self._broker.disk.failures = NOTHING_FAILS
        directory = self._broker.services.logs._directory
        for partition, log in directory.open_logs().items():
            if partition[0].startswith(("__", "transactions")):
                continue
            self._ledger.stored[partition] = read_values(log)
            self._ledger.flushed[partition] = log.recovery_point
            self._ledger.log_starts[partition] = log.log_start_offset
