"""Our consumer against Apache Kafka 4.3.1, in both protocols: join, leave, kill, stop, static restart, cooperative
moves, patterns, migration, commits, and a poll that comes too late."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from tests.client.running_consumers import PATIENCE_S, RunningConsumer
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker

from headrace.client.admin import Admin
from headrace.client.consumer.consumer import Consumer
from headrace.client.membership.group_events import SubscriptionPattern
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.errors import BrokerError, Fenced, HeadraceError, MaxPollExceeded

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "client" / "consumer_program.py"
SESSION_MS = 2_500
PARTITIONS = 4
PROTOCOLS = ["consumer", "classic"]


@pytest.fixture(scope="module")
def client(kafka: KafkaBroker) -> Iterator[NetworkClient]:
    with NetworkClient(kafka.bootstrap_servers, client_id="headrace-consumers") as connected:
        yield connected


@pytest.fixture
def topic(client: NetworkClient) -> str:
    return new_topic(client)


@pytest.fixture
def group() -> str:
    """With Kafka's own session timeout of 45 s."""
    return f"g-{uuid.uuid4().hex[:8]}"


def in_both_protocols(kafka: KafkaBroker, scenario: Callable[[str, NetworkClient], None]) -> None:
    """At the same time: they mostly wait for sessions to end. Each has a client of its own to set things up."""

    def play(protocol: str) -> None:
        with NetworkClient(kafka.bootstrap_servers, client_id=f"headrace-{protocol}") as client:
            scenario(protocol, client)

    with ThreadPoolExecutor(2) as pool:
        for outcome in [pool.submit(play, protocol) for protocol in PROTOCOLS]:
            outcome.result()


def short_session(client: NetworkClient, group: str) -> dict[str, object]:
    """Makes the group's session short, for its consumer-protocol members; classic ones take these settings."""
    settings = {"consumer.session.timeout.ms": str(SESSION_MS), "consumer.heartbeat.interval.ms": "300"}
    Admin(client).alter_configs("group", group, settings)
    return {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300}


def new_topic(client: NetworkClient, stem: str = "t") -> str:
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    Admin(client).create_topics({name: PARTITIONS})
    client.leaders((name, number) for number in range(PARTITIONS))
    return name


@pytest.fixture
def consumer(kafka: KafkaBroker, group: str) -> Callable[..., RunningConsumer]:
    def made(*topics: Any, protocol: str, config: dict[str, object] | None = None, **more: Any) -> RunningConsumer:
        settings = {**settings_of(kafka, protocol), **(config or {})}
        return RunningConsumer(*topics, group_id=group, config=settings, **more)

    return made


def settings_of(kafka: KafkaBroker, protocol: str) -> dict[str, object]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.protocol": protocol,
        "heartbeat.interval.ms": 300,
    }


def write(client: NetworkClient, topic: str, count: int) -> set[tuple[str, int, int]]:
    """So many to each partition; (topic, partition, offset) of all that were written."""
    written = set()
    for number in range(PARTITIONS):
        last = produce(client, topic, [PlainRecord(value=b"v%d" % n) for n in range(count)], partition=number)
        end = last[topic, number]
        written |= {(topic, number, offset) for offset in range(end - count + 1, end + 1)}
    return written


def every(topic: str) -> set[tuple[str, int]]:
    return {(topic, number) for number in range(PARTITIONS)}


def shared(topic: str, *members: RunningConsumer) -> bool:
    """Whether the members have all partitions, each its share, none twice."""
    parts = [member.assigned for member in members]
    return set().union(*parts) == every(topic) and sum(map(len, parts)) == PARTITIONS and all(parts)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_joining_reading_and_leaving(
    consumer: Callable[..., RunningConsumer], client: NetworkClient, topic: str, group: str, protocol: str
) -> None:
    written = write(client, topic, 50)
    with consumer(topic, protocol=protocol) as first:
        wait_until(lambda: first.assigned == every(topic), "the first takes everything")
        with consumer(topic, protocol=protocol) as second:
            wait_until(lambda: shared(topic, first, second), "the two share")
            written |= write(client, topic, 50)
            wait_until(lambda: written <= {*first.read, *second.read}, "everything is read")
        assert second.heard.calls[-1][0] == "revoked"
        wait_until(lambda: first.assigned == every(topic), "who stays takes over")
    assert not first.errors
    assert not second.errors
    # Closing commits: nothing is read twice by a successor, and nothing twice before.
    assert len(first.read) + len(second.read) == len(written)
    committed = Admin(client).committed_offsets(group)
    assert committed == {(topic, number): 100 for number in range(PARTITIONS)}


def test_suspended_consumer_loses_partitions_and_killed_one_is_replaced(
    kafka: KafkaBroker,
) -> None:
    def scenario(protocol: str, client: NetworkClient) -> None:
        topic, group = new_topic(client), f"killed-{uuid.uuid4().hex[:8]}"
        short = short_session(client, group)
        settings = settings_of(kafka, protocol) | short
        written = write(client, topic, 20)
        with Program(settings, topic, group) as victim:
            wait_until(lambda: len(victim.assigned) == PARTITIONS, "the victim has everything")
            with RunningConsumer(topic, group_id=group, config=settings) as survivor:
                wait_until(lambda: len(survivor.assigned) == 2 and len(victim.assigned) == 2, "the two share")
                os.kill(victim.process.pid, signal.SIGSTOP)
                wait_until(lambda: survivor.assigned == every(topic), "the survivor takes over")
                os.kill(victim.process.pid, signal.SIGCONT)
                wait_until(lambda: len(survivor.assigned) == 2 and len(victim.assigned) == 2, "it comes back")
                victim.process.kill()
                wait_until(lambda: survivor.assigned == every(topic), "the survivor takes over again")
                wait_until(lambda: written <= {*survivor.read, *victim.read}, "nothing is lost")
                assert not survivor.errors

    in_both_protocols(kafka, scenario)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_restarts_without_a_rebalance(
    consumer: Callable[..., RunningConsumer], topic: str, protocol: str
) -> None:
    with consumer(topic, protocol=protocol, group_instance_id="one") as other:
        with consumer(topic, protocol=protocol, group_instance_id="two") as first:
            wait_until(lambda: shared(topic, other, first), "the two share")
            had = first.assigned
        heard = list(other.heard.calls)
        generation = other.consumer.generation
        with consumer(topic, protocol=protocol, group_instance_id="two") as again:
            wait_until(lambda: again.assigned == had, "it has what it had")
            assert other.heard.calls == heard
            assert other.consumer.generation == generation
            again.stop(leave_group=True)
        wait_until(lambda: other.assigned == every(topic), "for good is for good")


def test_the_second_process_with_one_instance_id_wins_in_a_classic_group(
    consumer: Callable[..., RunningConsumer], topic: str
) -> None:
    with consumer(topic, protocol="classic", group_instance_id="one") as first:
        wait_until(lambda: first.assigned == every(topic), "the first has everything")
        with consumer(topic, protocol="classic", group_instance_id="one") as second:
            wait_until(lambda: second.assigned == every(topic), "the second has everything")
            wait_until(lambda: first.errors, "the first hears it")
    error = first.errors[0]
    assert isinstance(error, Fenced)
    assert error.code == "instance-fenced"


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_eager_members_revoke_all_and_cooperative_only_moved_partitions(
    consumer: Callable[..., RunningConsumer], topic: str, strategy: str
) -> None:
    settings = {"protocol": "classic", "partition_assignment_strategy": strategy}
    with consumer(topic, **settings) as first:
        wait_until(lambda: first.assigned == every(topic), "the first has everything")
        with consumer(topic, **settings) as second:
            wait_until(lambda: shared(topic, first, second), "the two share")
            revoked = first.heard.named("revoked")
            if strategy == "range":
                assert {len(partitions) for partitions in revoked} == {PARTITIONS}
            else:
                assert [set(partitions) for partitions in revoked] == [second.assigned]
                assert set(first.heard.named("assigned")[0]) == every(topic)
                assert not any(first.heard.named("assigned")[1:])


def test_a_busy_application_keeps_its_partitions(kafka: KafkaBroker) -> None:
    def scenario(protocol: str, client: NetworkClient) -> None:
        topic, group = new_topic(client), f"busy-{uuid.uuid4().hex[:8]}"
        settings = settings_of(kafka, protocol) | short_session(client, group)
        with Consumer(topic, group_id=group, config=settings) as busy:
            while not busy.assignment():
                busy.poll_records(0.2)
            generation = busy.generation
            time.sleep(SESSION_MS / 1000 * 1.4)  # computes, and does not poll: the heartbeats' thread goes on
            busy.poll_records(0.1)
            busy.commit({busy.assignment()[0]: 0})
            assert (len(busy.assignment()), busy.generation) == (PARTITIONS, generation)

    in_both_protocols(kafka, scenario)


def test_a_stuck_application_leaves_the_group_and_logs_it(kafka: KafkaBroker, caplog: pytest.LogCaptureFixture) -> None:
    def scenario(protocol: str, client: NetworkClient) -> None:
        topic, group = new_topic(client), f"stuck-{uuid.uuid4().hex[:8]}"
        settings = settings_of(kafka, protocol)
        with Consumer(topic, group_id=group, config={**settings, "max.poll.interval.ms": 2_000}) as stuck:
            while not stuck.assignment():
                stuck.poll_records(0.2)
            with RunningConsumer(topic, group_id=group, config=settings) as other:
                wait_until(lambda: other.assigned == every(topic), "the other takes over")
                assert f"The consumer of {group} leaves its group" in caplog.text
                with pytest.raises(MaxPollExceeded) as raised:
                    stuck.poll_records(0.2)
                assert raised.value.facts["took_ms"] > 2_000
                assert not stuck.assignment()
                deadline = time.monotonic() + PATIENCE_S
                while len(stuck.assignment()) != 2:
                    stuck.poll_records(0.2)
                    assert time.monotonic() < deadline, "it joins again"

    in_both_protocols(kafka, scenario)


def test_patterns(consumer: Callable[..., RunningConsumer], client: NetworkClient) -> None:
    """Our own and the broker's; topics that come later are found."""
    stem = f"p{uuid.uuid4().hex[:6]}"
    one = new_topic(client, f"{stem}-a")
    soon = {"metadata.max.age.ms": 500}
    with consumer(re.compile(f"{stem}-.*"), protocol="classic", config=soon) as reader:
        wait_until(lambda: reader.assigned == every(one), "it matches what is there")
        two = new_topic(client, f"{stem}-b")
        both = every(one) | every(two)
        wait_until(lambda: reader.assigned == both, "and what comes later")
    with consumer(re.compile(f"{stem}-.*"), protocol="consumer", config=soon) as reader:
        wait_until(lambda: reader.assigned == both, "the same in a consumer group")
    # Last, when the coordinator knows of both topics: it resolves a pattern anew only after ten seconds.
    with consumer(SubscriptionPattern(f"{stem}-.*"), protocol="consumer") as reader:
        wait_until(lambda: reader.assigned == both, "resolved by the coordinator")


def test_an_invalid_pattern_is_refused_in_words(kafka: KafkaBroker, group: str) -> None:
    reader = Consumer(SubscriptionPattern("(["), group_id=group, bootstrap_servers=kafka.bootstrap_servers)
    with reader, pytest.raises(BrokerError, match="INVALID_REGULAR_EXPRESSION"):
        poll_until_error(reader)


def poll_until_error(reader: Consumer) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        reader.poll_records(0.2)


def test_from_classic_to_consumer_and_back_without_losing_a_record(
    consumer: Callable[..., RunningConsumer], client: NetworkClient, topic: str
) -> None:
    written = write(client, topic, 20)
    read: list[tuple[str, int, int]] = []
    with consumer(topic, protocol="classic") as old:
        wait_until(lambda: old.assigned == every(topic), "a classic group")
        with consumer(topic, protocol="consumer") as new:
            wait_until(lambda: shared(topic, old, new), "members of both protocols share")
            written |= write(client, topic, 20)
            old.stop()
            wait_until(lambda: new.assigned == every(topic), "a consumer group")
            written |= write(client, topic, 20)
            with consumer(topic, protocol="classic") as back:
                wait_until(lambda: shared(topic, new, back), "both protocols again")
                new.stop()
                wait_until(lambda: back.assigned == every(topic), "a classic group again")
                written |= write(client, topic, 20)
                wait_until(lambda: written <= {*old.read, *new.read, *back.read}, "everything is read")
            read = [*old.read, *new.read, *back.read]
    assert len(read) == len(written)  # each record once
    assert not old.errors + new.errors + back.errors


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_of_lost_partitions_is_refused(
    kafka: KafkaBroker, client: NetworkClient, topic: str, group: str, protocol: str
) -> None:
    with Consumer(topic, group_id=group, config=settings_of(kafka, protocol)) as reader:
        while not reader.assignment():
            reader.poll_records(0.2)
        reader.commit({(topic, 0): 3}, wait=False)
        reader.commit({(topic, 1): 4})
        heard: list[object] = []
        done = threading.Event()

        def on_commit(_offsets: object, error: HeadraceError | None) -> None:
            heard.append(error)
            done.set()

        reader.commit({(topic, 2): 5}, wait=False, callback=on_commit)
        assert done.wait(PATIENCE_S)
        assert heard == [None]
        found = reader.committed()
        assert [None if each is None else each.offset for _, each in sorted(found.items())] == [3, 4, 5, None]
        identity = reader._core.identity
        from headrace.client.group_offsets import commit_offsets

        with pytest.raises(Fenced):
            commit_offsets(
                client, group, {(topic, 0): 9}, member_id=identity.member_id, member_epoch=identity.generation + 7
            )


class Program:
    """Our consumer in a process of its own."""

    def __init__(self, settings: dict[str, object], topic: str, group: str) -> None:
        told = {**settings, "group.id": group, "topic": topic}
        self._topic = topic
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(told)], stdout=subprocess.PIPE, text=True
        )
        self.assigned: set[tuple[str, int]] = set()
        self.read: list[tuple[str, int, int]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            if "assigned" in told:
                self.read.extend((self._topic, partition, offset) for partition, offset in told["read"])
                self.assigned = {(topic, partition) for topic, partition in told["assigned"]}
