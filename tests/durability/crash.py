"""kill -9 of a real broker under load, again and again, with clients that know what was acknowledged.

`python -m tests.durability.crash --cycles 5000`. A cycle is one life of the broker: it is started on the data of the
one before, works for a moment and is killed: under load, or while it starts and recovers, or in the middle of a
graceful stop. Segments are small, so that many rolls, flushes, compactions and checkpoints are under way.

The clients live through all of it. Each of our own is the only writer of its partition and sends a batch again, with
its sequence, until it is acknowledged, so every acknowledged offset must be the next one: a record that was lost or
written twice shows with the next answer. Access rules and SCRAM users are changed, and looked at in each life.
confluent-kafka's idempotent and transactional producers are held against what the topics contain at the end; half of
the transactions commit their number as a group's offset, which may never be ahead of or behind what is visible.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.durability import requests as r
from tests.durability.access import Access, found_access
from tests.durability.crash_client import Client, Violation
from tests.durability.crash_verification import (
    FOREIGN,
    OWN,
    PARTITIONS,
    TABLE,
    TRANSACTIONAL_GROUP,
    TRANSACTIONS,
    Verification,
    offset_of,
)
from tests.durability.forked_broker import ForkedBroker
from tests.durability.transactions import Transactions
from tests.harness.wire import WireClient

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, encode_batch

SETTINGS: dict[str, object] = {
    "log.segment.bytes": 60_000,
    "log.index.interval.bytes": 500,
    "offsets.topic.segment.bytes": 20_000,
    "offsets.topic.num.partitions": 2,
    "log.cleaner.backoff.ms": 40,
    "log.cleaner.min.cleanable.ratio": 0.05,
    "authorizer.class.name": "on",
    "super.users": "User:ANONYMOUS",
}
PATIENCE_SECONDS = 60
CALL_SECONDS = 5
"""What librdkafka's transactional calls get as their timeout."""


class Crash:
    """One run. `failures` says what was broken."""

    def __init__(self, directory: Path, seed: int, slower: float = 1.0) -> None:
        """`slower`: lives are so many times as long, for a machine that is busy with other work."""
        self.chance = Random(seed)
        self._slower = slower
        self.broker = ForkedBroker(directory / "data", SETTINGS)
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self.acknowledged = 0
        self.committed = 0
        self.asked_commit = 0
        self.own: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self.table: dict[str, tuple[int, bytes]] = {}
        self.foreign: dict[tuple[int, int], bytes] = {}
        self.transactions: dict[str, set[int]] = {"committed": set(), "aborted": set(), "doubtful": set()}
        self.with_offset: set[int] = set()  # numbers of transactions that were to commit themselves as an offset
        self.own_transactions = Transactions(Random(13), 0)
        self.access = Access(Random(5), kinds=("password", "rule"))
        self.starts: list[float] = []
        self.topic_ids: dict[str, Any] = {}
        self.calls_without_end = 0
        self._abandoned: list[Any] = []  # kept: to end them would be to wait for the call
        self._producers: list[Any] = []
        self._consumers: list[Any] = []
        self._threads: list[threading.Thread] = []

    # -- the broker's lives --------------------------------------------------------------------------------------

    def run(self, cycles: int) -> None:
        self.broker.begin()
        self.starts.append(self.broker.await_ready())
        self._prepare()
        for thread in self._threads:
            thread.start()
        for _ in range(cycles):
            self.cycle()
            if self.failures:
                break
        self.stopping.set()
        for thread in self._threads:
            thread.join(4 * PATIENCE_SECONDS)
            if thread.is_alive():
                self.failures.append(f"{thread.name} does not come to an end")
        for producer in self._producers:
            if left := producer.flush(PATIENCE_SECONDS):
                self.failures.append(f"{left} records are neither acknowledged nor refused")
        for consumer in self._consumers:
            consumer.close()
        if not self.failures:
            self.failures += Verification(self).verify()

    def cycle(self) -> None:
        chance = self.chance.random()
        # librdkafka's transactional client needs a moment to find its way back; now and then it gets one.
        life = self.chance.uniform(0.02, 0.22) if self.chance.random() < 0.92 else self.chance.uniform(0.5, 1.5)
        time.sleep(life * self._slower)
        if chance < 0.1:
            self.broker.stop(kill_after_seconds=self.chance.uniform(0, 0.05))
        elif chance < 0.12:
            self.broker.stop()
        else:
            self.broker.kill()
        self.broker.begin()
        while self.chance.random() < 0.2:  # killed while it starts, recovers, loads its groups
            time.sleep(self.chance.uniform(0, 0.03))
            self.broker.kill()
            self.broker.begin()
        self.starts.append(self.broker.await_ready())

    # -- the clients ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        wire = WireClient(self.broker.port)
        topics = {OWN: {}, FOREIGN: {}, TABLE: {"cleanup.policy": "compact"}, TRANSACTIONS: {}}
        for name, configs in (topics | {self.own_transactions.topic: {}}).items():
            answer = wire.call(ApiKey.CREATE_TOPICS, r.create_topic(name, PARTITIONS, configs)).topics[0]
            if answer.error_code is not ErrorCode.none:
                raise Violation(f"{name} was not created: {answer.error_message}")
            self.topic_ids[name] = answer.topic_id
        works = [self._own_producer(wire, partition) for partition in range(PARTITIONS)]
        works += [
            self._committer(),
            self._table_writer(),
            self._access_changer(),
            self._own_transactions(),
            self._offset_watcher(),
        ]
        self._threads = [Client(self, f"client {n}", work).thread for n, work in enumerate(works)]
        foreign = [self._foreign_producer(idempotent=True), self._foreign_producer(idempotent=False)]
        transactional = self._transactional_producer()
        foreign += [transactional] if transactional is not None else []
        self._threads += [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in foreign]
        wire.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        while not self.stopping.is_set():
            try:
                work()
            except Exception:
                self.failures.append(traceback.format_exc())
                return

    def _own_producer(self, wire: WireClient, partition: int) -> Callable[[Client], None]:
        producer_id = wire.call(ApiKey.INIT_PRODUCER_ID, r.init_producer()).producer_id
        chance, done = Random(partition), self.own[partition]

        def work(client: Client) -> None:
            values = [b"%d/%d " % (partition, len(done) + i) + b"x" * chance.randint(0, 300) for i in range(3)]
            how = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": len(done)}
            records = encode_batch([PlainRecord(value=v, timestamp_ms=int(time.time() * 1000)) for v in values], **how)
            request = r.produce(OWN, self.topic_ids[OWN], partition, records)
            answer = client.insist(ApiKey.PRODUCE, request).responses[0].partition_responses[0]
            if answer.error_code is not ErrorCode.none:
                raise Violation(f"{OWN}-{partition} answered {answer.error_code.name}: {answer.error_message}")
            if answer.base_offset != len(done):
                raise Violation(f"{OWN}-{partition} answered offset {answer.base_offset}, {len(done)} was next")
            done.extend(values)
            self.acknowledged += len(values)

        return work

    def _committer(self) -> Callable[[Client], None]:
        """Never two at a time, so what is fetched lies between the last that was acknowledged and the last asked."""

        def work(client: Client) -> None:
            request = r.fetch_offsets("committer", OWN, self.topic_ids[OWN], (0,))
            group = client.insist(ApiKey.OFFSET_FETCH, request).groups[0]
            found = group.topics[0].partitions[0].committed_offset if group.topics else -1
            if group.error_code is ErrorCode.none and not self.committed <= max(found, 0) <= self.asked_commit:
                raise Violation(f"offset {found} where {self.committed} was acknowledged, {self.asked_commit} asked")
            self.asked_commit += 1
            request = r.commit("committer", OWN, self.topic_ids[OWN], 0, self.asked_commit)
            answer = client.call(ApiKey.OFFSET_COMMIT, request)
            if answer is not None and answer.topics[0].partitions[0].error_code is ErrorCode.none:
                self.committed = self.asked_commit
                self.acknowledged += 1

        return work

    def _table_writer(self) -> Callable[[Client], None]:
        counter, chance = [0], Random(7)

        def work(client: Client) -> None:
            counter[0] += 1
            key, value = f"key-{chance.randrange(20)}", b"%d" % counter[0]
            record = PlainRecord(key=key.encode(), value=value, timestamp_ms=int(time.time() * 1000))
            answer = client.call(ApiKey.PRODUCE, r.produce(TABLE, self.topic_ids[TABLE], 0, encode_batch([record])))
            if answer is not None and answer.responses[0].partition_responses[0].error_code is ErrorCode.none:
                self.table[key] = answer.responses[0].partition_responses[0].base_offset, value
                self.acknowledged += 1

        return work

    def _access_changer(self) -> Callable[[Client], None]:
        """The ledger is held against what the broker says at the beginning of each of its lives, and at the end."""
        looked_at = [0]

        def work(client: Client) -> None:
            if client.lives != looked_at[0]:
                wrong = self.access.wrong(found_access(client.insist))
                if wrong is not None:
                    raise Violation(wrong)
                looked_at[0] = client.lives
            before = self.access.acknowledgements
            self.access.step(client.ask)
            self.acknowledged += self.access.acknowledgements - before
            time.sleep(0.02)

        return work

    def _own_transactions(self) -> Callable[[Client], None]:
        """Transactions by hand: some commit their number as an offset (TxnOffsetCommit), which is looked at in each
        life of the broker."""
        ledger, looked_at = self.own_transactions, [0]

        def work(client: Client) -> None:
            if client.lives != looked_at[0]:
                ledger.lost_track()
                found = offset_of(self.topic_ids, ledger.group, ledger.topic, client.insist)
                if found is not None and found not in ledger.allowed_offsets():
                    raise Violation(f"{ledger.group} is at {found}, allowed are {sorted(ledger.allowed_offsets())}")
                looked_at[0] = client.lives
            ledger.step(client.ask, self.topic_ids[ledger.topic], int(time.time() * 1000))

        return work

    def _offset_watcher(self) -> Callable[[Client], None]:
        """What a reader of committed offsets sees while transactions commit theirs: never one that goes back."""
        latest = [-1]

        def work(client: Client) -> None:
            acknowledged = max(self.transactions["committed"] & self.with_offset, default=-1)
            found = offset_of(self.topic_ids, TRANSACTIONAL_GROUP, TRANSACTIONS, client.insist)
            if found is not None:
                if found < max(acknowledged, latest[0]):
                    raise Violation(
                        f"offset {found} where {max(acknowledged, latest[0])} was committed in a transaction"
                    )
                latest[0] = found
            time.sleep(0.01)

        return work

    def _foreign_producer(self, *, idempotent: bool) -> Callable[[], None]:
        from confluent_kafka import Producer

        settings = {"enable.idempotence": True} if idempotent else {"acks": 1, "compression.type": "gzip"}
        producer = Producer(self._foreign_settings() | {"linger.ms": 1} | settings)
        self._producers.append(producer)
        counter = [0]
        name = b"idempotent" if idempotent else b"plain"

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.foreign[message.partition(), message.offset()] = message.value()
                self.acknowledged += 1

        def work() -> None:
            counter[0] += 1
            if len(producer) < 2000:
                producer.produce(
                    FOREIGN, b"%s %d" % (name, counter[0]), partition=counter[0] % 2, on_delivery=delivered
                )
            producer.poll(0.002)

        return work

    def _foreign_settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.broker.port}",
            "message.timeout.ms": 300_000,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }

    def _consumer_settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self.broker.port}", "group.id": TRANSACTIONAL_GROUP, "log_level": 0}

    def _transactions_begun(self) -> Any:
        from confluent_kafka import KafkaException, Producer

        while True:
            producer = Producer(self._foreign_settings() | {"transactional.id": "crash", "message.timeout.ms": 50_000})
            try:
                in_time(producer.init_transactions)
            except TimeoutError:
                self.calls_without_end += 1
                self._abandoned.append(producer)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return producer

    def _transactional_producer(self) -> Callable[[], None] | None:
        """Each transaction writes its number to both partitions, and half of them commit it as a group's offset. None
        where the broker has no transactions."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        try:
            producer = [self._transactions_begun()]
        except KafkaException as error:
            print(f"without transactions: {error}", flush=True)
            return None
        number, chance = [0], Random(11)
        consumer = Consumer(self._consumer_settings())
        self._consumers.append(consumer)
        group = consumer.consumer_group_metadata()

        def work() -> None:
            number[0] += 1
            ending = "committed" if chance.random() < 0.7 else "aborted"
            try:
                producer[0].begin_transaction()
                for partition in range(PARTITIONS):
                    producer[0].produce(TRANSACTIONS, b"%d" % number[0], partition=partition)
                if chance.random() < 0.5:
                    self.with_offset.add(number[0])
                    place = TopicPartition(TRANSACTIONS, 0, number[0])
                    in_time(producer[0].send_offsets_to_transaction, [place], group)
                if ending == "committed":
                    in_time(producer[0].commit_transaction)
                else:
                    in_time(producer[0].abort_transaction)
                self.transactions[ending].add(number[0])
                self.acknowledged += 1
            except KafkaException as error:
                self.transactions["doubtful"].add(number[0])
                try:
                    if not error.args[0].txn_requires_abort():
                        raise
                    in_time(producer[0].abort_transaction)
                except (KafkaException, TimeoutError):  # its epoch was raised by a request whose answer was lost
                    producer[0] = self._transactions_begun()
            except TimeoutError:
                self.transactions["doubtful"].add(number[0])
                self.calls_without_end += 1
                self._abandoned.append(producer[0])
                producer[0] = self._transactions_begun()

        return work


def in_time(call: Callable[..., Any], *arguments: object) -> None:
    """A call of librdkafka with a timeout. It may outlive that for ever: when the connection breaks over which it asks
    for a group's coordinator, `send_offsets_to_transaction` never asks again (seen with 2.16; nothing was sent or
    awaited any more, the broker had answered all it was asked). Raises TimeoutError then, and what the call raises.
    """
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call(*arguments, CALL_SECONDS)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(2 * CALL_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"{call} did not come back in time")
    if raised:
        raise raised[0]


def crash(cycles: int, *, seed: int, directory: Path, slower: float = 1.0) -> Crash:
    run = Crash(directory, seed, slower)
    try:
        run.run(cycles)
    finally:
        run.stopping.set()
        run.broker.close()
    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slower", type=float, default=1.0, help="lives so many times as long (a busy machine)")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    directory = Path(tempfile.mkdtemp(prefix="headrace-crash-"))
    began = time.monotonic()
    try:
        run = crash(arguments.cycles, seed=arguments.seed, directory=directory, slower=arguments.slower)
        starts = sorted(run.starts)
        print(
            f"{arguments.cycles} cycles, {len(run.starts)} starts, {time.monotonic() - began:.0f} s; "
            f"{run.acknowledged} acknowledgements; {run.access.acknowledgements} changes of rules and passwords; "
            f"transactions of confluent-kafka: { {name: len(numbers) for name, numbers in run.transactions.items()} }, "
            f"{len(run.with_offset)} with an offset, {run.calls_without_end} calls without end; "
            f"our own: {dict(Counter(run.own_transactions.outcomes.values()))}, "
            f"{len(run.own_transactions.offsets)} with an offset; start: median "
            f"{starts[len(starts) // 2] * 1000:.0f} ms, longest {starts[-1] * 1000:.0f} ms"
        )
        print("passed" if not run.failures else "FAILED:\n" + "\n".join(run.failures))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
