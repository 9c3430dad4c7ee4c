"""Mixed load on one broker for a while, with its memory, open files, threads, tasks and latency watched.

`python -m tests.durability.soak --minutes 30` prints a line per sample and a verdict. At work at once: producers of
every codec, an idempotent and (where the broker has transactions) a transactional one, a consumer that checks every
record and commits, a compacted topic, members of a streams group that come and go, topics that are created and deleted,
admin requests. It passes when nothing was lost or out of order and

- memory is flat: the median RSS of the last quarter is at most 8 % or 12 MiB above that of the second quarter (the
  first is the warm-up), whichever is more;
- open files, threads and tasks of the last quarter are at most 10 % or 20 above those of the second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.durability.broker_process import StatedBroker
from tests.durability.requests import streams_heartbeat
from tests.harness.wire import WireClient

from headrace.protocol.api_keys import ApiKey

LIMITS = {"rss_mb": (0.08, 12.0), "files": (0.1, 20.0), "threads": (0.1, 20.0), "tasks": (0.1, 20.0)}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC, TABLE, PARTITIONS = "soak", "table", 4
SETTINGS: dict[str, object] = {
    "log.segment.bytes": 2_000_000,
    "log.retention.bytes": 8_000_000,
    "log.retention.check.interval.ms": 3_000,
    "log.cleaner.backoff.ms": 2_000,
    "log.cleaner.min.cleanable.ratio": 0.2,
    "offsets.topic.segment.bytes": 500_000,
    "offsets.topic.num.partitions": 5,
    "auto.create.topics.enable": False,  # a producer that remembers a deleted topic would bring it back
    "headrace.flush.policy": "interval",
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
}


class Load:
    """Workers in threads; each does one piece of work again and again until told to stop, or fails the run."""

    def __init__(self, servers: str, port: int) -> None:
        self.servers, self.port = servers, port
        self.failures: list[str] = []
        self.counts: dict[str, int] = {}
        self.latencies_ms: list[float] = []
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.produced: dict[int, int] = {}
        self.closing: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def worker(self, name: str, work: Callable[[], None], *, pause_seconds: float) -> None:
        def run() -> None:
            while not self.stopping.wait(pause_seconds):
                try:
                    work()
                    self.counts[name] = self.counts.get(name, 0) + 1
                except Exception:
                    self.failures.append(f"{name}: {traceback.format_exc()}")
                    return

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.failures.append(f"{thread.name} does not come to an end")
        for close in self.closing:
            close()

    def take_latencies(self) -> list[float]:
        with self._lock:
            taken, self.latencies_ms = self.latencies_ms, []
        return taken

    def acknowledged(self, sent_at: float) -> None:
        with self._lock:
            self.latencies_ms.append((time.monotonic() - sent_at) * 1000)


def producer(load: Load, codec: str) -> Callable[[], None]:
    """With one of the codecs, or `idempotent`. What it sends says who sent it, and is numbered."""
    from confluent_kafka import Producer

    how = {"enable.idempotence": True} if codec == "idempotent" else {"compression.type": codec}
    client = Producer({"bootstrap.servers": load.servers, "linger.ms": 1, "log_level": 0, **how})
    number = [0]

    def work() -> None:
        sent_at = time.monotonic()
        for _ in range(20):
            number[0] += 1
            value = f"{codec} {number[0]} ".encode() + os.urandom(20).hex().encode() * 5

            def done(error: Any, _message: Any) -> None:
                if error is not None:
                    load.failures.append(f"producer {codec}: {error}")
                load.acknowledged(sent_at)

            client.produce(TOPIC, value, partition=number[0] % PARTITIONS, on_delivery=done)
        if client.flush(30):
            raise AssertionError("not everything was acknowledged in 30 s")

    return work


def table_writer(load: Load) -> Callable[[], None]:
    from confluent_kafka import Producer

    client = Producer({"bootstrap.servers": load.servers, "log_level": 0})

    def work() -> None:
        for key in range(50):
            client.produce(TABLE, os.urandom(60), key=f"key-{key}")
        if client.flush(30):
            raise AssertionError("the table did not take its records in 30 s")

    return work


def transactional(load: Load) -> Callable[[], None] | None:
    """None where the broker has no transactions."""
    from confluent_kafka import KafkaException, Producer

    client = Producer({"bootstrap.servers": load.servers, "transactional.id": "soak", "log_level": 0})
    try:
        client.init_transactions(10)
        client.begin_transaction()
        client.produce(TOPIC, b"transaction 0", partition=0)
        client.commit_transaction(30)
    except KafkaException as error:
        print(f"without transactions: {error}", flush=True)
        return None
    count = [0]

    def work() -> None:
        count[0] += 1
        client.begin_transaction()
        for n in range(5):
            client.produce(TOPIC, f"transaction {count[0]}".encode(), partition=n % PARTITIONS)
        if count[0] % 3:
            client.commit_transaction(30)
        else:
            client.abort_transaction(30)

    return work


def reader(load: Load) -> Callable[[], None]:
    """Reads everything, in order and without a gap but for control records; commits now and then."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as At

    client = Consumer(
        {"bootstrap.servers": load.servers, "group.id": "soak-reader", "enable.auto.commit": False, "log_level": 0}
    )
    load.closing.append(client.close)
    client.assign([At(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    seen: dict[tuple[int, bytes], int] = {}
    last: dict[int, int] = {}

    def work() -> None:
        for message in client.consume(500, 0.2):
            if message.error() is not None:
                raise AssertionError(message.error())
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            codec, number = value.split(b" ")[:2]
            key = (partition, codec)
            if offset <= last.get(partition, -1):
                raise AssertionError(f"offset {offset} behind {last[partition]}")
            last[partition] = offset
            if codec != b"transaction":
                before = seen.get(key)
                if before is not None and int(number) != before + PARTITIONS:
                    raise AssertionError(f"{codec!r} {number!r} follows {before} in partition {partition}")
                seen[key] = int(number)
            load.produced[partition] = offset
        if last:
            client.commit(offsets=[At(TOPIC, p, offset + 1) for p, offset in last.items()], asynchronous=False)

    return work


def members(load: Load) -> Callable[[], None]:
    """Members of a streams group: three at most, each stays for a while."""
    client = WireClient(load.port)
    load.closing.append(client.close)
    there: dict[str, int] = {}
    turn = [0]

    def work() -> None:
        turn[0] += 1
        if turn[0] % 10 == 1:
            there[str(uuid.uuid4())] = 0
        for member, epoch in list(there.items()):
            answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, streams_heartbeat("members", member, epoch, TOPIC))
            if answer.error_code.value:
                raise AssertionError(f"heartbeat: {answer.error_code} {answer.error_message}")
            there[member] = answer.member_epoch
        if len(there) > 3:
            oldest = next(iter(there))
            del there[oldest]
            client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, streams_heartbeat("members", oldest, -1, TOPIC))

    return work


def topics_come_and_go(load: Load) -> Callable[[], None]:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": load.servers, "log_level": 0})
    client = Producer({"bootstrap.servers": load.servers, "log_level": 0})
    count = [0]

    def work() -> None:
        count[0] += 1
        name = f"passing-{count[0]}"  # the same name again: librdkafka remembers that it was gone
        for future in admin.create_topics([NewTopic(name, 3, 1)]).values():
            future.result(30)
        for n in range(30):
            client.produce(name, os.urandom(100), partition=n % 3)
        if client.flush(30):
            raise AssertionError("a new topic did not take its records in 30 s")
        for future in admin.delete_topics([name]).values():
            future.result(30)

    return work


def admin_requests(load: Load) -> Callable[[], None]:
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient({"bootstrap.servers": load.servers, "log_level": 0})

    def work() -> None:
        admin.list_topics(timeout=30)
        admin.list_consumer_groups(request_timeout=30).result(30)
        for future in admin.describe_configs([ConfigResource("topic", TOPIC)]).values():
            future.result(30)
        WireClient(load.port).close()

    return work


def sample(broker: StatedBroker, load: Load, began: float) -> dict[str, float]:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    rss_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    latencies = sorted(load.take_latencies()) or [0.0]
    return {
        "minute": round((time.monotonic() - began) / 60, 2),
        "rss_mb": round(rss_kb / 1024, 1),
        "files": sum(1 for _ in Path(f"/proc/{broker.pid}/fd").iterdir()),
        "threads": next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads")),
        "tasks": broker.tasks,
        "p50_ms": round(latencies[len(latencies) // 2], 1),
        "p99_ms": round(latencies[len(latencies) * 99 // 100], 1),
        "acknowledged": len(latencies),
        "read_up_to": sum(load.produced.values()),
    }


def verdict(samples: list[dict[str, float]], limits: Mapping[str, tuple[float, float]] = LIMITS) -> list[str]:
    """What is not flat. `limits`: for each figure by how much it may grow, as a share and at least."""
    quarter = max(1, len(samples) // 4)
    second, last = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    found = []
    for name, (share, least) in limits.items():
        before, now = (statistics.median(each[name] for each in part) for part in (second, last))
        if now > before + max(share * before, least):
            found.append(f"{name} grew from {before} to {now}")
    return found


def soak(minutes: float, *, interval_seconds: float, directory: Path) -> tuple[list[dict[str, float]], list[str]]:
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = StatedBroker(directory, SETTINGS).start()
    samples: list[dict[str, float]] = []
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        new = [NewTopic(TOPIC, PARTITIONS, 1), NewTopic(TABLE, 2, 1, config={"cleanup.policy": "compact"})]
        for future in admin.create_topics(new).values():
            future.result(30)
        load = Load(broker.bootstrap_servers, broker.port)
        for codec in CODECS:
            load.worker(f"producer {codec}", producer(load, codec), pause_seconds=0.15)
        load.worker("idempotent", producer(load, "idempotent"), pause_seconds=0.15)
        transactions = transactional(load)
        if transactions is not None:
            load.worker("transactional", transactions, pause_seconds=0.3)
        load.worker("reader", reader(load), pause_seconds=0.05)
        load.worker("table", table_writer(load), pause_seconds=0.2)
        load.worker("members", members(load), pause_seconds=0.2)
        load.worker("topics", topics_come_and_go(load), pause_seconds=1.0)
        load.worker("admin", admin_requests(load), pause_seconds=0.5)
        load.start()
        began = time.monotonic()
        while time.monotonic() - began < minutes * 60 and not load.failures:
            time.sleep(interval_seconds)
            samples.append(sample(broker, load, began))
            print(json.dumps(samples[-1]), flush=True)
        load.stop()
        code = broker.stop()
        failures = [*load.failures, *verdict(samples)]
        if code:
            failures.append(f"the broker ended with {code}: {broker.errors[-2000:]}")
        print(json.dumps(load.counts), flush=True)
        return samples, failures
    finally:
        broker.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--interval-seconds", type=float, default=10)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    try:
        samples, failures = soak(
            arguments.minutes, interval_seconds=arguments.interval_seconds, directory=directory / "data"
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{len(samples)} samples; " + ("passed" if not failures else "FAILED:\n" + "\n".join(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
