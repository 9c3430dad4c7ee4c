"""Brokers and applications as processes of their own, and what one may ask of them. For tests that kill.

Every wait has an end, looks at a condition, and when it fails shows what the processes wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import confluent_kafka
from tests.harness.polling import wait_until
from tests.harness.ports import find_free_port
from tests.harness.values import not_none

from headrace.client.admin import Admin
from headrace.client.admin_results import StreamsGroupDescription
from headrace.client.process_tree import ProcessEntry, process_table
from headrace.errors import HeadraceError

__all__ = [
    "PROGRAMS",
    "Application",
    "BrokerProcess",
    "Feed",
    "active_tasks",
    "broker_with_flights",
    "caught_up",
    "descendants",
    "flight",
    "group",
    "group_state",
    "headrace",
    "newest",
    "records_of",
    "send_flights",
    "still_alive",
]

PROGRAMS = Path(__file__).parent
ORIGINS = ("EWR", "JFK", "LGA", "SWF", "HPN")
# A JVM that lives for seconds spends most of them in its optimising compiler: an instance costs 22 instead of 35 CPU
# seconds until its tasks are open.
JVM_OF_SECONDS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WAIT_S = float(os.environ.get("HEADRACE_WAIT_S", "120"))
"""How long a wait may last; a crowded machine needs more."""


def headrace(
    *arguments: str, env: Mapping[str, str] | None = None, input: bytes | None = None, timeout: float | None = None
):
    """One command line of ours, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        capture_output=True,
        input=input,
        env={**os.environ, "JDK_JAVA_OPTIONS": JVM_OF_SECONDS, **(env or {})},
        timeout=timeout or max(180.0, WAIT_S),
        check=False,
    )


class BrokerProcess:
    """`headrace broker` on a directory and a port that survive it."""

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self.directory, self.port = directory, find_free_port()
        self.log = directory.with_suffix(".log")
        self._settings = {"group.streams.initial.rebalance.delay.ms": 0, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not end it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def start(self) -> None:
        command = [sys.executable, "-m", "headrace.cli.main", "broker", "--data-dir", str(self.directory)]
        command += ["--port", str(self.port)]
        for name, value in self._settings.items():
            command += ["--override", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, "serving", self, timeout_s=WAIT_S)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            with Admin(self.bootstrap_servers, bootstrap_timeout_ms=500) as admin:
                admin.list_topics()
        except HeadraceError:
            return False
        return True


@contextlib.contextmanager
def broker_with_flights(directory: Path) -> Iterator[BrokerProcess]:
    """A broker with the empty topic `flights`."""
    with BrokerProcess(directory) as running:
        with Admin(running.bootstrap_servers) as admin:
            admin.create_topics({"flights": 4})
        yield running


class Application:
    """One instance: `python PROGRAM` with a state directory of its own."""

    def __init__(self, program: str, bootstrap_servers: str, directory: Path, **env: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.log = directory, directory / "log"
        self._command = [sys.executable, str(PROGRAMS / program)]
        self._env = {
            **os.environ,
            "HEADRACE_BOOTSTRAP_SERVERS": bootstrap_servers,
            "HEADRACE_STATE_DIR": str(directory / "state"),
            "MASTER": "local[2]",
            "JDK_JAVA_OPTIONS": JVM_OF_SECONDS,
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, *arguments], stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        return self

    @property
    def has_ended(self) -> bool:
        """Whether the process was started and has ended by itself."""
        return self.process is not None and self.process.poll() is not None

    def run_until_caught_up(self, within: float = 240) -> None:
        """Returns when it ended by itself with exit code 0."""
        process = self.start("caught-up").process
        assert process is not None
        try:
            assert process.wait(within) == 0, self.log.read_text()[-5000:]
        finally:
            self.end()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def status(self) -> dict[str, Any]:
        """Its status file; empty before the first time."""
        for found in (self.directory / "state").glob("*/status.json"):
            return json.loads(found.read_text())
        return {}

    @property
    def member_id(self) -> str | None:
        return self.status.get("member_id")

    @property
    def open_tasks(self) -> int:
        return sum(len(partitions) for partitions in self.status.get("tasks", {}).values())

    def kill(self) -> None:
        """SIGKILL for the driver and nobody else."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, within: float = WAIT_S) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(within)

    def end(self) -> None:
        """Nothing of it stays, whatever happened."""
        if self.process is None:
            return
        left = descendants(self.pid)
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
            self.process.wait()
        for entry in still_alive(left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGKILL)


def descendants(pid: int) -> tuple[ProcessEntry, ...]:
    """The process and all that stem from it now, by parent."""
    table = process_table()
    found = {pid: table[pid]} if pid in table else {}
    while fresh := {e.pid: e for e in table.values() if e.parent in found and e.pid not in found}:
        found |= fresh
    return tuple(found.values())


def still_alive(entries: Iterable[ProcessEntry]) -> list[ProcessEntry]:
    """Those that run still; a pid that was given away again is another process."""
    table = process_table()
    return [e for e in entries if e.pid in table and table[e.pid].started == e.started]


def flight(number: int) -> dict[str, Any]:
    """One flight; delays are halves, so sums of them are exact in any order."""
    delay = None if number % 7 == 0 else (number * 37 % 181) / 2 - 10
    return {"id": number, "origin": ORIGINS[number * 13 % 5], "carrier": f"c{number % 4}", "dep_delay": delay}


def send_flights(bootstrap_servers: str, numbers: Sequence[int], partitions: int, topic: str = "flights") -> None:
    """Through librdkafka, acks=all, flight n into partition n mod partitions; every one acknowledged on return."""
    with Feed(bootstrap_servers, partitions, topic=topic) as feed:
        for number in numbers:
            feed.send(number)
        feed.flush()
    assert feed.acknowledged == set(numbers)


class Feed:
    """Flights that go on while things die: librdkafka's idempotent producer, and which ones it saw acknowledged."""

    def __init__(
        self,
        bootstrap_servers: str,
        partitions: int,
        *,
        topic: str = "flights",
        first: int = 0,
        delivery_s: float = 120,
    ) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(delivery_s * 1000),
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._topic, self._partitions, self._delivery_s = topic, partitions, delivery_s
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self.next = first
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def send(self, number: int) -> None:
        """Send what belongs to a number: here a flight."""
        self._produce(number, flight(number), number % self._partitions)

    def _produce(self, number: int, row: Mapping[str, Any], partition: int, topic: str | None = None) -> None:
        def on_delivery(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self.failed.append(f"{number}: {error}")

        self._producer.produce(
            topic or self._topic, value=json.dumps(row).encode(), partition=partition, on_delivery=on_delivery
        )
        self.next = max(self.next, number + 1)
        self._producer.poll(0)

    def run(self, per_second: int = 1000) -> Self:
        """Sends flight after flight in a thread until `stop`."""

        def work() -> None:
            while not self._over.is_set():
                for _ in range(per_second // 50):
                    self.send(self.next)
                self._over.wait(0.02)

        self._thread = threading.Thread(target=work, name="feed", daemon=True)
        self._thread.start()
        return self

    def flush(self) -> None:
        assert self._producer.flush(self._delivery_s) == 0
        assert not self.failed, self.failed[:3]

    def stop(self) -> int:
        """How many flights went out; all are acknowledged."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(60)
            self._thread = None
            self.flush()
        return self.next


def records_of(bootstrap_servers: str, topic: str) -> Iterator[confluent_kafka.Message]:
    """All records of a topic as librdkafka reads them, up to the ends of now."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions]
        )
        open_ends = set(partitions)
        deadline = time.monotonic() + 60
        while open_ends:
            assert time.monotonic() < deadline, f"{topic} has no end"
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message
                deadline = time.monotonic() + 60
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                open_ends.discard(not_none(message.partition()))
            else:
                raise AssertionError(str(error))
    finally:
        consumer.close()


def newest(bootstrap_servers: str, topic: str) -> dict[str, Any]:
    """The last value of each key, as a compacted topic keeps them."""
    found: dict[str, Any] = {}
    owner: dict[str, int] = {}
    for message in records_of(bootstrap_servers, topic):
        key, partition = not_none(message.key()).decode(), not_none(message.partition())
        assert owner.setdefault(key, partition) == partition, f"{key} lies in two partitions"
        found[key] = json.loads(not_none(message.value()))
    return found


def group(admin: Admin, name: str) -> StreamsGroupDescription | None:
    """StreamsGroupDescribe; None while there is no such group or the broker is away."""
    try:
        return admin.describe_streams_groups([name])[name]
    except HeadraceError:
        return None


def group_state(admin: Admin, name: str) -> str | None:
    """State of the group; None while there is no such group or the broker is away."""
    found = group(admin, name)
    return None if found is None else found.state


def active_tasks(described: StreamsGroupDescription | None) -> dict[str, int]:
    """Number of active tasks by member id."""
    if described is None:
        return {}
    return {m.member_id: sum(map(len, m.assignment.active.values())) for m in described.members}


def caught_up(admin: Admin, name: str) -> bool:
    """Whether the group has committed the ends of all topics it reads (internal ones: of those that have records)."""
    described = group(admin, name)
    if described is None or described.topology is None:
        return False
    topics = {t for s in described.topology.subtopologies for t in s.source_topics} | {
        t.name for s in described.topology.subtopologies for t in s.repartition_source_topics
    }
    known = admin.describe_topics(sorted(topics))
    inputs = [(t, p) for t in sorted(topics) for p in known[t].partitions] if topics <= set(known) else []
    ends = admin.list_offsets(dict.fromkeys(inputs, "latest"))
    committed = admin.committed_offsets(name)
    return bool(inputs) and all(end.offset == 0 or committed.get(where) == end.offset for where, end in ends.items())
