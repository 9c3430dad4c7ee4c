"""A random history of one broker: clients at work, faults of the disk, kills, power losses; and what must hold.

The ledger knows what was asked, what was acknowledged, and what the logs held when a life ended. After each start:

- a log is what it was when the last life ended, or after a power loss (unless every acknowledgement waits for fsync) a
  beginning of that, at least as long as what had been flushed; nothing else, nothing twice, no hole;
- every acknowledged record is at its offset; what was refused for want of room is nowhere;
- an idempotent producer that repeats what it does not know the fate of is answered, and nothing is there twice;
- committed offsets and epochs of groups have not gone back behind an acknowledgement;
- topics, settings, access rules, passwords and quotas are those that were acknowledged, and no producer id is given out
  a second time;
- what a transaction wrote, records and offsets, is seen as a whole or not at all; after any loss, under each policy, no
  transaction stays open in a log that the coordinator does not know.

"Unless" means: under the policies never and interval after a power loss. Topics, settings and producer ids survive that
under every policy.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.durability import requests as r
from tests.durability.access import Access
from tests.durability.simulated_broker import SimulatedBroker, Wire
from tests.durability.transactions import PARTITIONS, Transactions, visible_records
from tests.storage.faulty_file_system import NOTHING_FAILS, error

from headrace.coordinator.transactions.hanging import fate_of_open
from headrace.errors import HeadraceError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch, iter_batch_headers

__all__ = ["History", "Violation"]

Partition = tuple[str, int]
KEPT, TABLE = "kept", "table"
GROUPS = ("g0", "g1", "g2")
STREAMS_GROUP = "streams"
SESSION_SECONDS = 40
CHANGES = ("open", "write", "truncate", "sync", "rename", "remove", "remove_tree", "make_directory", "sync_directory")


class Violation(AssertionError):
    """The promise was broken."""


class DyingDisk:
    """From the n-th change on nothing works any more, or only that one does not (`once`)."""

    def __init__(self, number: int, *, once: bool) -> None:
        self._left, self._once = number, once
        self.is_dead = False

    def __call__(self, operation: str, path: Path) -> OSError | None:
        if operation in CHANGES:
            self._left -= 1
            if self._left < 0:
                struck = not self.is_dead
                self.is_dead = True
                if struck or not self._once:
                    return error(errno.EIO, path)
        return error(errno.EIO, path) if self.is_dead and not self._once else None


@dataclass(slots=True, kw_only=True)
class Sent:
    """One batch on its way. `places`: offset → value, once it is acknowledged."""

    partition: Partition
    values: tuple[str, ...]
    acks: int
    records: bytes
    topic_id: Any = None


@dataclass(slots=True, kw_only=True)
class IdempotentProducer:
    """One batch at a time; one whose fate is unknown is sent again before anything else."""

    producer_id: int = -1
    next_sequence: dict[Partition, int] = field(default_factory=dict)
    in_doubt: Sent | None = None
    in_flight: bool = False
    in_doubt_since_loss: bool = False


class History:
    """Mutable: one broker, its clients, the ledger."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.policy = self.chance.choice(("always", "always", "interval", "never"))
        self.broker = SimulatedBroker(self._settings())
        self.counter = 0
        self.content: dict[Partition, dict[int, str]] = {}
        self.flushed: dict[Partition, int] = {}
        self.begin: dict[Partition, int] = {}
        self.acknowledged: dict[Partition, dict[int, str]] = {}
        self.asked_values: set[str] = set()
        self.refused_values: set[str] = set()
        self.topics: dict[str, int | None] = {}
        self.doubtful_topics: set[str] = set()
        self.commits: dict[tuple[str, int], int] = {}
        self.asked_commits: dict[tuple[str, int], int] = {}
        self.epochs: dict[str, int] = {}
        self.heard_at: dict[str, float] = {}
        self.config_value = self.asked_config_value = 0
        self.producer_ids: set[int] = set()
        self.producers = [IdempotentProducer() for _ in range(2)]
        self.wires: list[Wire] = []
        self.lives = 0
        self.transactions = Transactions(self.chance, 0)
        self.access = Access(self.chance)
        self.acknowledgements = 0
        self.begin_life()

    def _settings(self) -> dict[str, object]:
        return {
            "headrace.flush.policy": self.policy,
            "log.flush.interval.ms": 200,
            "log.segment.bytes": self.chance.choice((500, 2_000, 100_000)),
            "log.index.interval.bytes": self.chance.choice((0, 200, 4096)),
            "offsets.topic.segment.bytes": self.chance.choice((1_000, 100_000)),
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.num.partitions": 2,
            "log.cleaner.backoff.ms": self.chance.choice((300, 15_000)),
            "log.cleaner.min.cleanable.ratio": 0.1,
            "group.streams.initial.rebalance.delay.ms": 0,
            "group.streams.assignment.interval.ms": 0,
            "authorizer.class.name": "on",
            "allow.everyone.if.no.acl.found": "true",
        }

    # -- one life ------------------------------------------------------------------------------------------------

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.end_life(self.chance.choice((self.kill, self.stop)))
        self.broker.close()

    def step(self) -> None:
        choice = self.chance.random()
        for _ in range(self.chance.randint(1, 4)):
            self.chance.choice(
                (
                    *(self.send, self.send, self.send, self.send_idempotent, self.send_idempotent),
                    *(self.commit, self.commit, self.change_topics, self.heartbeat, self.change_settings),
                    *(self.new_producer, self.delete_records, self.transact, self.transact, self.transact),
                    self.change_access,
                )
            )()
        if choice < 0.70:
            self.broker.run(self.chance.randint(1, 12))
        elif choice < 0.80:
            self.broker.run(30)
            self.broker.pass_time(self.chance.choice((0.3, 1, 6, 16)))
        elif choice < 0.84:
            self.fill_the_disk()
        elif choice < 0.87:
            self.broker.disk.failures = DyingDisk(self.chance.randint(0, 8), once=True)
        elif choice < 0.90:
            self.broker.disk.failures = DyingDisk(self.chance.randint(0, 25), once=False)
        elif choice < 0.95:
            self.broker.run(self.chance.randint(0, 8))
            self.end_life(self.chance.choice((self.kill, self.lose_power, self.lose_power)))
        elif choice < 0.97:
            self.broker.run(60)
            self.end_life(self.stop)
        else:
            self.broker.run(60)
            self.look()

    def wire(self) -> Wire:
        self.wires = [wire for wire in self.wires if wire.is_open]
        idle = [wire for wire in self.wires if wire.is_idle]
        if idle and (len(self.wires) > 8 or self.chance.random() < 0.8):
            return self.chance.choice(idle)
        self.wires.append(self.broker.connect())
        return self.wires[-1]

    def topic_id(self, name: str) -> Any:
        topic = self.broker.services.metadata.topic(name)
        return None if topic is None else topic.topic_id

    # -- what clients do -----------------------------------------------------------------------------------------

    def partition(self) -> Partition:
        names = sorted(
            name
            for name, count in self.topics.items()
            if count is not None and self.topic_id(name) and not name.startswith("transactions")
        )
        name = self.chance.choice(names) if names else KEPT
        return name, self.chance.randrange(self.topics.get(name) or 1)

    def batch(self, partition: Partition, **how: Any) -> tuple[bytes, tuple[str, ...]]:
        records, values = [], []
        for _ in range(self.chance.randint(1, 3)):
            self.counter += 1
            key = f"key-{self.chance.randrange(4)}" if partition[0] == TABLE else None
            values.append(f"{key}={self.counter}" + "." * self.chance.choice((0, 10, 120)))
            key_bytes = None if key is None else key.encode()
            records.append(PlainRecord(key=key_bytes, value=values[-1].encode(), timestamp_ms=self.broker.now_ms()))
        self.asked_values.update(values)
        return encode_batch(records, **how), tuple(values)

    def send(self) -> None:
        partition = self.partition()
        records, values = self.batch(partition)
        sent = Sent(partition=partition, values=values, acks=self.chance.choice((0, 1, -1, -1)), records=records)
        if (topic_id := self.topic_id(partition[0])) is None:
            return
        if sent.acks == 0:
            self.wires.append(Wire(self.broker))  # nothing comes back on it
            self.wires.pop().ask(
                ApiKey.PRODUCE, r.produce(partition[0], topic_id, partition[1], records, acks=0), print
            )
            return
        self._ask_produce(sent, topic_id, self._produced)

    def _ask_produce(self, sent: Sent, topic_id: Any, answered: Any) -> None:
        request = r.produce(sent.partition[0], topic_id, sent.partition[1], sent.records, acks=sent.acks)
        sent.topic_id = topic_id

        def hear(answer: Any) -> None:
            part = answer.responses[0].partition_responses[0]
            answered(sent, part.error_code, part.base_offset, part.error_message or "")

        self.wire().ask(ApiKey.PRODUCE, request, hear)

    def _produced(self, sent: Sent, code: ErrorCode, base_offset: int, message: str) -> None:
        if code is ErrorCode.none and self.topic_id(sent.partition[0]) == sent.topic_id:  # else it was deleted since
            self.acknowledgements += 1
            places = self.acknowledged.setdefault(sent.partition, {})
            for at, value in enumerate(sent.values):
                if places.setdefault(base_offset + at, value) != value:
                    raise Violation(f"{sent.partition}: offset {base_offset + at} was given to two records")
        elif "No space left" in message and "flushed" not in message:
            self.refused_values.update(sent.values)

    def send_idempotent(self) -> None:
        producer = self.chance.choice(self.producers)
        if producer.producer_id < 0 or producer.in_flight:
            return
        if producer.in_doubt is None:
            partition = KEPT, self.chance.randrange(2)
            sequence = producer.next_sequence.get(partition, 0)
            how = {"producer_id": producer.producer_id, "producer_epoch": 0, "base_sequence": sequence}
            records, values = self.batch(partition, **how)
            producer.in_doubt = Sent(partition=partition, values=values, acks=-1, records=records)
        topic_id = self.topic_id(KEPT)
        if topic_id is None:
            return
        producer.in_flight = True

        def answered(sent: Sent, code: ErrorCode, base_offset: int, message: str) -> None:
            producer.in_flight = False
            if code is ErrorCode.none:
                self._produced(sent, code, base_offset, message)
                before = producer.next_sequence.get(sent.partition, 0)
                producer.next_sequence[sent.partition] = before + len(sent.values)
                producer.in_doubt = None
            elif code is not ErrorCode.kafka_storage_error:
                if not producer.in_doubt_since_loss:
                    raise Violation(f"an idempotent producer was refused: {code.name} {message}")
                self.forget_producer(producer)

        self._ask_produce(producer.in_doubt, topic_id, answered)

    def forget_producer(self, producer: IdempotentProducer) -> None:
        """It begins anew with another id."""
        self.producers[self.producers.index(producer)] = IdempotentProducer()

    def new_producer(self) -> None:
        idle = [each for each in self.producers if each.producer_id < 0 and not each.in_flight]
        if not idle:
            return
        producer = idle[0]
        producer.in_flight = True

        def answered(answer: Any) -> None:
            producer.in_flight = False
            if answer.error_code is ErrorCode.none:
                if answer.producer_id in self.producer_ids:
                    raise Violation(f"producer id {answer.producer_id} was given out twice")
                self.producer_ids.add(answer.producer_id)
                producer.producer_id = answer.producer_id

        self.wire().ask(ApiKey.INIT_PRODUCER_ID, r.init_producer(), answered)

    def commit(self) -> None:
        topic_id = self.topic_id(KEPT)
        if topic_id is None:
            return
        key = self.chance.choice(GROUPS), self.chance.randrange(2)
        offset = self.asked_commits[key] = self.asked_commits.get(key, 0) + self.chance.randint(1, 5)

        def answered(answer: Any) -> None:
            if answer.topics[0].partitions[0].error_code is ErrorCode.none:
                self.acknowledgements += 1
                self.commits[key] = max(self.commits.get(key, -1), offset)

        self.wire().ask(ApiKey.OFFSET_COMMIT, r.commit(key[0], KEPT, topic_id, key[1], offset), answered)

    def heartbeat(self) -> None:
        member = self.chance.choice(("m1", "m2"))

        def answered(answer: Any) -> None:
            if answer.error_code is ErrorCode.none:
                self.epochs[member] = max(self.epochs.get(member, 0), answer.member_epoch)
                self.heard_at[member] = self.broker.loop.time()
            elif answer.error_code in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
                self.epochs.pop(member, None)

        request = r.streams_heartbeat(STREAMS_GROUP, member, self.epochs.get(member, 0), KEPT)
        self.wire().ask(ApiKey.STREAMS_GROUP_HEARTBEAT, request, answered)

    def change_topics(self) -> None:
        self.counter += 1
        deletable = [name for name, count in self.topics.items() if count is not None and name[1:].isdigit()]
        deletable = sorted(set(deletable) - {TABLE} - self.doubtful_topics)
        if deletable and self.chance.random() < 0.5:
            name = self.chance.choice(deletable)
            self.doubtful_topics.add(name)
            self.wire().ask(ApiKey.DELETE_TOPICS, r.delete_topic(name), lambda answer: self._deleted(name, answer))
            return
        gone = [name for name, count in self.topics.items() if count is None and name not in self.doubtful_topics]
        gone = sorted(name for name in gone if not name.startswith("transactions"))
        name = self.chance.choice([f"t{self.counter}", *gone[:3]])  # names come again
        count = self.chance.randint(1, 3)
        self.doubtful_topics.add(name)
        self.wire().ask(
            ApiKey.CREATE_TOPICS, r.create_topic(name, count), lambda answer: self._created(name, count, answer)
        )

    def _created(self, name: str, count: int, answer: Any) -> None:
        code = answer.topics[0].error_code
        if code is ErrorCode.none:
            self.acknowledgements += 1
            self.topics[name] = count
            self.doubtful_topics.discard(name)

    def _deleted(self, name: str, answer: Any) -> None:
        if answer.responses[0].error_code is ErrorCode.none:
            self.topics[name] = None
            self.doubtful_topics.discard(name)
            self._forget_logs(name)

    def _forget_logs(self, name: str) -> None:
        for known in (self.content, self.acknowledged, self.flushed, self.begin):
            for partition in [partition for partition in known if partition[0] == name]:
                del known[partition]

    def change_settings(self) -> None:
        if self.topic_id(KEPT) is None:
            return
        value = self.asked_config_value = self.asked_config_value + 1

        def answered(answer: Any) -> None:
            if answer.responses[0].error_code is ErrorCode.none:
                self.acknowledgements += 1
                self.config_value = max(self.config_value, value)

        request = r.alter_topic_config(KEPT, "retention.ms", str(10**10 + value))
        self.wire().ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, answered)

    def delete_records(self) -> None:
        partition = self.partition()
        ends = self.acknowledged.get(partition)
        if partition[0] == TABLE or not ends or self.chance.random() < 0.5:
            return
        request = r.delete_records(*partition, self.chance.choice(sorted(ends)))
        self.wire().ask(ApiKey.DELETE_RECORDS, request, lambda _answer: None)

    def transact(self) -> None:
        if (topic_id := self.topic_id(self.transactions.topic)) is not None:
            self.transactions.step(self.wire().ask, topic_id, self.broker.now_ms())

    def change_access(self) -> None:
        self.access.step(self.wire().ask)

    def fill_the_disk(self) -> None:
        disk = self.broker.disk
        disk.capacity_bytes = disk.used() + self.chance.choice((0, 50, 300, 2_000))
        for _ in range(self.chance.randint(1, 6)):
            self.chance.choice(
                (self.send, self.send_idempotent, self.commit, self.change_topics, self.transact, self.change_access)
            )()
            self.broker.run(10)
        if self.chance.random() < 0.3:
            self.end_life(self.chance.choice((self.kill, self.stop, self.lose_power)))
        disk.capacity_bytes = None

    # -- ends and beginnings -------------------------------------------------------------------------------------

    def end_life(self, how: Any) -> None:
        if self.broker.faults:
            raise Violation("a request met an error nobody foresaw") from self.broker.faults[0]
        self.note_logs()
        power = how()
        loses = power and self.policy != "always"
        self.wires.clear()
        self.transactions.lost_track()
        for producer in self.producers:
            producer.in_flight = False
            producer.in_doubt_since_loss |= loses
        self.lives += 1
        if loses:
            self.transactions = Transactions(self.chance, self.lives)
        self.begin_life()
        self.check(power=power, loses=loses)

    def kill(self) -> bool:
        self.broker.kill()
        return False

    def lose_power(self) -> bool:
        """Sometimes in the middle of a graceful stop."""
        if self.chance.random() < 0.2:
            self.broker.disk.failures = DyingDisk(self.chance.randint(0, 12), once=False)
            self.stop()
        self.broker.power_fails(self.chance)
        return True

    def stop(self) -> bool:
        self.broker.disk.failures = self.broker.disk.failures if self.chance.random() < 0.5 else NOTHING_FAILS
        try:
            self.broker.stop()
        except (OSError, HeadraceError):
            self.broker.kill()
        self.broker.disk.killed()
        return False

    def begin_life(self) -> None:
        """With a crash in the middle of it now and then. What a topic needs is there at the end."""
        for _ in range(20):
            self.broker.disk.failures = NOTHING_FAILS
            if self.chance.random() < 0.15:
                self.broker.disk.failures = DyingDisk(self.chance.randint(0, 12), once=False)
            try:
                self.broker.start()
            except (OSError, HeadraceError) as failure:
                if self.broker.disk.failures is NOTHING_FAILS and self.broker.disk.capacity_bytes is None:
                    raise Violation(f"the broker does not start: {failure}") from failure
                self.broker.disk.capacity_bytes = None
                self.broker.kill()
                continue
            self.broker.disk.failures = NOTHING_FAILS
            break
        for name, count in ((KEPT, 2), (TABLE, 1), (self.transactions.topic, PARTITIONS)):
            self._make_sure(name, count)

    def _make_sure(self, name: str, count: int) -> None:
        if self.topics.get(name) is not None:
            return
        self.broker.disk.capacity_bytes = None
        if self.topic_id(name) is None:
            configs = {"cleanup.policy": "compact"} if name == TABLE else {}
            self.broker.connect().ask(
                ApiKey.CREATE_TOPICS,
                r.create_topic(name, count, configs),
                lambda answer: self._created(name, count, answer),
            )
            self.broker.run(20)
        self.topics[name] = count

    def note_logs(self) -> None:
        """What the open logs hold, and how much of it was flushed, as the life ends."""
        if self.broker.server is None:
            return
        self.broker.disk.failures = NOTHING_FAILS
        directory = self.broker.services.logs._directory
        for partition, log in directory.open_logs().items():
            if partition[0].startswith(("__", "transactions")):
                continue
            self.content[partition] = self._read(log)
            self.flushed[partition] = log.recovery_point
            self.begin[partition] = log.log_start_offset

    def _read(self, log: Any) -> dict[int, str]:
        found: dict[int, str] = {}
        offset = log.log_start_offset
        while data := log.read(offset, 1 << 20, end_offset=log.log_end_offset):
            last = offset
            for record in decode_records(data, start_offset=offset):
                found[record.offset] = (record.value or b"").decode()
                last = record.offset
            offset = last + 1
        return found

    # -- what must hold ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Between two steps of one life."""
        self._check_commits(loses=False, settled=False)  # what is seen may not be on the disk yet

    def check(self, *, power: bool, loses: bool) -> None:
        """`power`: what nobody was told of may be lost. `loses`: what was acknowledged, too."""
        self.broker.disk.capacity_bytes = None  # a log that is opened after a crash needs some room
        self._check_topics()
        for name, count in sorted(self.topics.items()):
            for index in range(0 if name.startswith("transactions") else count or 0):
                self._check_log((name, index), power=power, loses=loses)
        self._check_commits(loses=loses)
        self._check_transactions()
        self._check_nothing_hangs()
        if wrong := self.access.wrong(self.broker.services.logs._directory):
            raise Violation(wrong)
        self._check_group(loses=loses)
        topic = self.broker.services.metadata.topic(KEPT)
        value = int(topic.configs.get("retention.ms", 10**10)) - 10**10
        if not self.config_value <= value <= self.asked_config_value:
            raise Violation(f"setting {value} where {self.config_value} was acknowledged")
        self.config_value = value

    def _check_topics(self) -> None:
        found = {topic.name: topic.partitions for topic in self.broker.services.metadata.topics()}
        for name in self.doubtful_topics:
            if name not in found or self.topics.get(name) != found[name]:
                self._forget_logs(name)
            self.topics[name] = found.get(name)
        self.doubtful_topics.clear()
        for name, count in self.topics.items():
            if found.get(name) != count:
                raise Violation(f"topic {name} has {found.get(name)} partitions, not {count}")

    def _check_log(self, partition: Partition, *, power: bool, loses: bool) -> None:
        directory = self.broker.services.logs._directory
        log = directory.existing_log(*partition)
        found = {} if log is None else self._read(log)
        start, end = (0, 0) if log is None else (log.log_start_offset, log.log_end_offset)
        before = self.content.get(partition, {})
        if set(found.values()) - self.asked_values:
            raise Violation(f"{partition} holds what nobody sent")
        if doubled := len(found) - len(set(found.values())):
            raise Violation(f"{partition} holds {doubled} records twice")
        if wrong := set(found.values()) & self.refused_values:
            raise Violation(f"{partition} holds what was refused: {sorted(wrong)}")
        if end < self.flushed.get(partition, 0):
            raise Violation(f"{partition} ends at {end}, it was flushed up to {self.flushed[partition]}")
        if partition[0] == TABLE:
            self._check_table(partition, found, before, end)
        else:
            self._check_beginning(partition, found, before, start, end)
        if not power and before and end < max(before) + 1:
            raise Violation(f"{partition} ends at {end}, not at {max(before) + 1}")
        if not loses:
            first = self.begin.get(partition, 0)
            for offset, value in self.acknowledged.get(partition, {}).items():
                is_due = offset >= max(start, first) and partition[0] != TABLE
                if is_due and found.get(offset) != value:
                    raise Violation(f"{partition}: acknowledged {value!r} at {offset} is {found.get(offset)!r}")
            if start > max(first, 0) and partition not in self.begin:
                raise Violation(f"{partition} begins at {start}")
        acknowledged = self.acknowledged.get(partition, {})
        self.acknowledged[partition] = {offset: acknowledged[offset] for offset in acknowledged if offset < end}
        self.content[partition] = found
        self.flushed.pop(partition, None)
        self.begin[partition] = start

    def _check_beginning(
        self, partition: Partition, found: dict[int, str], before: dict[int, str], start: int, end: int
    ) -> None:
        if list(found) != list(range(start, end)):
            raise Violation(f"{partition} has a hole: {start} to {end}, but {len(found)} records")
        expected = {offset: value for offset, value in before.items() if start <= offset < end}
        if any(found.get(offset) != value for offset, value in expected.items()):
            raise Violation(f"{partition} is not what it was")

    def _check_table(self, partition: Partition, found: dict[int, str], before: dict[int, str], end: int) -> None:
        """The last record of each key is there, whatever compaction has taken."""
        if any(before.get(offset, value) != value for offset, value in found.items()):
            raise Violation(f"{partition} is not what it was")
        history = {**self.acknowledged.get(partition, {}), **before}
        latest: dict[str, int] = {}
        for offset in sorted(offset for offset in history if offset < end):
            latest[history[offset].partition("=")[0]] = offset
        for key, offset in latest.items():
            newer = any(at > offset and value.startswith(f"{key}=") for at, value in found.items())
            if found.get(offset) != history[offset] and not newer:
                raise Violation(f"{partition}: {key} is lost, it was at {offset}")

    def _check_commits(self, *, loses: bool, settled: bool = True) -> None:
        for group in GROUPS:
            answers: list[Any] = []
            request = r.fetch_offsets(group, KEPT, self.topic_id(KEPT), (0, 1))
            self.broker.connect().ask(ApiKey.OFFSET_FETCH, request, answers.append)
            self.broker.run(5)
            if not answers or answers[0].groups[0].error_code is not ErrorCode.none:
                raise Violation(f"the offsets of {group} cannot be fetched: {answers}")
            for part in answers[0].groups[0].topics[0].partitions:
                key = group, int(part.partition_index)
                acknowledged, asked = self.commits.get(key, -1), self.asked_commits.get(key, -1)
                lowest = -1 if loses else acknowledged
                if not lowest <= part.committed_offset <= asked:
                    raise Violation(f"{key} is at {part.committed_offset}, {acknowledged} was acknowledged")
                if settled:
                    self.commits[key] = int(part.committed_offset)

    def _check_transactions(self) -> None:
        """Committed ones are seen by a reader of committed records, others are not; halves never."""
        asked: list[Any] = []  # a shard that could not be read at the start is read when somebody asks
        request = r.describe_transaction(self.transactions.topic)
        self.broker.connect().ask(ApiKey.DESCRIBE_TRANSACTIONS, request, asked.append)
        self.broker.run(60)
        self.broker.pass_time(2)  # what was decided before the crash is completed, if need be with a second try
        outcomes, topic = self.transactions, self.transactions.topic
        seen = [self._committed_numbers(topic, partition) for partition in range(PARTITIONS)]
        for number in range(1, max([0, *outcomes.outcomes]) + 1):
            there = [numbers.count(number) for numbers in seen]
            allowed = {"committed": ([1, 1],), "doubtful": ([1, 1], [0, 0])}.get(outcomes.expected(number), ([0, 0],))
            if there not in allowed:
                raise Violation(f"transaction {number} is {outcomes.expected(number)}, and seen {there} times")

        self._check_transactional_offset()

    def _check_transactional_offset(self) -> None:
        answers: list[Any] = []
        topic = self.transactions.topic
        request = r.fetch_offsets(self.transactions.group, topic, self.topic_id(topic), (0,))
        self.broker.connect().ask(ApiKey.OFFSET_FETCH, request, answers.append)
        self.broker.run(5)
        found = int(answers[0].groups[0].topics[0].partitions[0].committed_offset)
        if found not in self.transactions.allowed_offsets():
            allowed = sorted(self.transactions.allowed_offsets())
            raise Violation(f"the offset of {self.transactions.group} is {found}, it may be one of {allowed}")

    def _check_nothing_hangs(self) -> None:
        """What is open in a log is open for the coordinator, too: somebody will end it."""
        directory = self.broker.services.logs._directory
        for partition in directory.partitions_on_disk():
            directory.log(*partition)
        self.broker.run(10)
        self.broker.pass_time(2)
        for partition, log in directory.open_logs().items():
            for producer_id, epoch, start in log.producers.open_transactions():
                holder = self.broker.services.transactions.holder(producer_id)
                fate = fate_of_open(holder and holder[1], producer_id, epoch, partition)
                if fate != "known":
                    raise Violation(f"{partition}: the transaction of {producer_id} at {start} hangs ({fate})")

    def _committed_numbers(self, topic: str, partition: int) -> list[int]:
        found: list[int] = []
        offset = 0
        while True:
            answers: list[Any] = []
            request = r.fetch(topic, self.topic_id(topic), partition, offset, committed=True)
            self.broker.connect().ask(ApiKey.FETCH, request, answers.append)
            self.broker.run(5)
            part = answers[0].responses[0].partitions[0]
            headers = list(iter_batch_headers(part.records or b""))
            if not headers:
                return found
            records = visible_records(part.records, offset, part.aborted_transactions)
            found += [int(record.value) for record in records]
            offset = headers[-1].next_offset

    def _check_group(self, *, loses: bool) -> None:
        answers: list[Any] = []
        self.broker.connect().ask(
            ApiKey.STREAMS_GROUP_DESCRIBE, r.describe_streams_group(STREAMS_GROUP), answers.append
        )
        self.broker.run(5)
        group = answers[0].groups[0]
        there = group.error_code is ErrorCode.none
        epoch = group.group_epoch if there else 0
        if not loses and self.epochs and epoch < max(self.epochs.values()):
            raise Violation(f"the group is at epoch {epoch}, {self.epochs} were acknowledged")
        members = {member.member_id for member in group.members} if there else set()
        recently = self.broker.loop.time() - SESSION_SECONDS
        if not loses and not {member for member in self.epochs if self.heard_at[member] > recently} <= members:
            raise Violation(f"members {sorted(members)} where {sorted(self.epochs)} were acknowledged")
        self.epochs = {name: at for name, at in self.epochs.items() if name in members and at <= epoch}
