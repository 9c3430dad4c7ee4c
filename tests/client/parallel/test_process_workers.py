"""`ParallelConsumer` and processes: members that are killed or stopped, handlers that end, hang or outlast polls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest
from tests.client.running_consumers import PATIENCE_S
from tests.client.running_pipelines import Journal, RunningPipeline
from tests.harness.brokers import broker_fixture
from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.longer import LONG

from headrace import Consumer, DeadLetter, EmbeddedBroker, ParallelConsumer, Retry
from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce

PROGRAM = Path(__file__).parent.parent / "pipeline_program.py"
MAX_POLL_INTERVAL_MS = 3_000
KILLS = 20 if LONG else 2

pytestmark = pytest.mark.slow


SHORT_SESSIONS = {
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}
broker = broker_fixture({"orders": 2, "buried": 1}, config=SHORT_SESSIONS)


def fill(broker: EmbeddedBroker, count: int, keys: int = 7) -> None:
    with NetworkClient(broker.bootstrap_servers) as client:
        produce(client, "orders", [PlainRecord(key=b"k%d" % (n % keys), value=b"v%d" % n) for n in range(count)])


class Program:
    """A context manager: the process, and what it said."""

    def __init__(self, broker: EmbeddedBroker, *, pause_s: float, **pipeline: Any) -> None:
        settings = {
            "topic": "orders",
            "group.id": "hooks",
            "bootstrap.servers": broker.bootstrap_servers,
            "pause_s": pause_s,
            "pipeline": pipeline,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.read_to_end()

    def read(self, ended: int) -> None:
        """Until so many have ended."""
        assert self.process.stdout is not None
        while sum(line.startswith("ended") for line in self.lines) < ended:
            line = self.process.stdout.readline()
            assert line, "it ended by itself"
            self.lines.append(line)

    def read_to_end(self) -> None:
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.lines += self.process.stdout.readlines()
            self.process.stdout.close()
        self.process.wait(PATIENCE_S)

    def said(self, word: str) -> list[tuple[int, int]]:
        found = [line.split() for line in self.lines if line.startswith(word) and line.endswith("\n")]
        return [(int(partition), int(offset)) for _, partition, offset in found]


def test_kill_9_repeats_no_more_than_the_limit(broker: EmbeddedBroker) -> None:
    """Of what each life ended, whenever it is repeated: a partition that the next life did not get to comes later."""
    count = 200 + 100 * KILLS
    fill(broker, count)
    lives: list[tuple[set[tuple[int, int]], set[tuple[int, int]]]] = []
    for _ in range(KILLS):
        with Program(broker, pause_s=0.001, workers=4, repeat_limit=6, commit_interval=0.0) as killed:
            killed.read(ended=100)
            killed.process.send_signal(signal.SIGKILL)
            killed.read_to_end()
        lives.append((set(killed.said("began")), set(killed.said("ended"))))
    journal = Journal()
    ends = consumed_ends(broker)
    seen = {place for _, ended in lives for place in ended}
    with RunningPipeline("orders", "hooks", broker.bootstrap_servers, journal) as last:
        wait_until(lambda: len({*seen, *journal.places}) == count, "nothing is lost")
        wait_until(lambda: last.pipeline.stats.uncommitted == 0, "and all is committed")
    began_later = set(journal.places)
    for life, (began, ended) in reversed([*enumerate(lives)]):
        assert len(ended & began_later) <= 6, f"what life {life} had ended"
        began_later |= began
    with Consumer(group_id="hooks", bootstrap_servers=broker.bootstrap_servers) as asking:
        assert {key: found and found.offset for key, found in asking.committed(ends).items()} == ends


def consumed_ends(broker: EmbeddedBroker) -> dict[Any, int]:
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as asking:
        return dict(asking.end_offsets([("orders", 0), ("orders", 1)]))


def test_sigterm_ends_it_gracefully(broker: EmbeddedBroker) -> None:
    fill(broker, 400)
    with Program(broker, pause_s=0.01, workers=4) as stopped:
        stopped.read(ended=20)
        stopped.process.send_signal(signal.SIGTERM)
        stopped.read_to_end()
        assert stopped.process.returncode == 0
    assert sorted(stopped.said("began")) == sorted(stopped.said("ended")), "handlers came to their end"
    journal = Journal()
    with RunningPipeline("orders", "hooks", broker.bootstrap_servers, journal):
        wait_until(lambda: len(journal.ended) + len(stopped.said("ended")) >= 400, "the rest is read")
    assert not set(journal.places) & set(stopped.said("ended")), "and nothing twice"


def test_a_handler_that_outlasts_the_poll_interval_causes_no_rebalance(broker: EmbeddedBroker) -> None:
    fill(broker, 40)
    slow: list[ConsumerRecord] = []

    def handler(record: ConsumerRecord) -> None:
        if not slow:
            slow.append(record)
            time.sleep(1.4 * MAX_POLL_INTERVAL_MS / 1000)
        journal(record)

    journal = Journal()
    settings = {"max_poll_interval_ms": MAX_POLL_INTERVAL_MS}
    with RunningPipeline(
        "orders", "slow", broker.bootstrap_servers, handler, consumer=settings, workers=2, buffer_records=3
    ) as running:
        wait_until(lambda: len(journal.ended) == 40, "everything is processed")
        wait_until(lambda: running.pipeline.stats.uncommitted == 0, "and committed")
        assert running.heard.named("revoked") == running.heard.named("lost") == []
    assert running.error is None
    assert len(set(journal.places)) == 40
    assert not journal.overlaps
    for lane in {(record.partition, record.key) for record in journal.ended}:
        offsets = [record.offset for record in journal.ended if (record.partition, record.key) == lane]
        assert offsets == sorted(offsets)


def ends_or_hangs(record: ConsumerRecord) -> None:
    """In a worker process."""
    match record.value:
        case b"v3":
            os._exit(7)
        case b"v5":
            time.sleep(PATIENCE_S)
        case b"v6":
            sys.exit(9)
        case b"v8":
            raise ValueError("no")
        case _:
            pass


def test_processes_that_end_or_hang_take_nothing_with_them(broker: EmbeddedBroker) -> None:
    fill(broker, 12)
    consumer = Consumer(
        "orders", group_id="processes", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    )
    pipeline = ParallelConsumer(
        consumer,
        ends_or_hangs,
        executor="processes",
        workers=2,
        retry=Retry(attempts=1),
        on_failure=DeadLetter("buried"),
        handler_timeout=3.0,
    )
    pipeline.run(until="caught-up")
    stats = pipeline.stats
    assert (stats.done, stats.dead_letters, stats.retried) == (8, 4, 0)
    reasons = {record.value: dict(record.headers)["headrace.reason"] for record in broker.records("buried")}
    assert reasons[b"v3"] == b"the handler's process ended with exit code 7"
    assert b"did not return within 3 s, and its process was killed" in not_none(reasons[b"v5"])
    assert reasons[b"v6"] == b"the handler's process ended with exit code 9"
    assert reasons[b"v8"] == b"ValueError: no"
