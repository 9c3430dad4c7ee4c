"""Steady streams heartbeats per second, and per second of the broker's CPU: our broker beside Apache Kafka 4.3.1.

One load generator (`peers/heartbeat_load.py`, a process of its own) drives both alternately, in rounds: 64 connections,
each a member of a settled group, with `depth` requests under way on each. Depth 1 is what real members do; deeper shows
what a broker can do when it reads several requests at once. The answers are checked to be the steady ones. The broker's
CPU is that of its process in /proc. Prints a table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import decode_response, encode_request

LOAD = Path(__file__).parent / "peers" / "heartbeat_load.py"
SETTINGS = {"group.streams.initial.rebalance.delay.ms": 0}
TICKS = os.sysconf("SC_CLK_TCK")
request = m.streams_group_heartbeat_request


@dataclass(kw_only=True)
class Contender:
    """A broker under test. `loads`: (frame, steady answer behind the correlation id) of each member."""

    name: str
    pid: int
    port: int
    loads: list[tuple[bytes, bytes]] = field(default_factory=list)


def main() -> None:
    arguments = parse_arguments()
    with contextlib.ExitStack() as running:
        contenders = [running.enter_context(headrace_broker())]
        if not arguments.without_kafka:
            contenders.append(running.enter_context(apache_kafka()))
        for contender in contenders:
            contender.loads = settled_members(contender.port, arguments.groups, arguments.members)
        figures: dict[str, list[dict[str, float]]] = {}
        for depth in arguments.depth:
            for contender in contenders:
                measure(contender, depth, arguments.seconds)  # warm: Java compiles what is hot
            for _ in range(arguments.rounds):
                for contender in contenders:
                    found = measure(contender, depth, arguments.seconds)
                    figures.setdefault(f"{contender.name}, depth {depth}", []).append(found)
    report(figures, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=8, help="groups that the members are spread over (8)")
    parser.add_argument("--members", type=int, default=64, help="members, each on a connection of its own (64)")
    parser.add_argument("--depth", type=int, action="append", help="requests under way per connection (1 and 16)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round (2)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    arguments.depth = arguments.depth or [1, 16]
    return arguments


@contextlib.contextmanager
def headrace_broker(settings: Mapping[str, object] = SETTINGS) -> Iterator[Contender]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    overrides = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "headrace.cli.main", "broker", "--data-dir", directory, "--port", str(port)]
        process = subprocess.Popen([*command, *overrides], stderr=subprocess.DEVNULL)
        try:
            yield Contender(name="headrace", pid=process.pid, port=port)
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def apache_kafka() -> Iterator[Contender]:
    from tests.interop.kafka_broker import KafkaBroker

    with KafkaBroker(properties=SETTINGS) as broker:
        assert broker._process is not None
        yield Contender(name="Apache Kafka 4.3.1", pid=broker._process.pid, port=broker.port)


def settled_members(port: int, groups: int, members: int) -> list[tuple[bytes, bytes]]:
    """Join all members, continue until no answer changes, and return each member's steady heartbeat and its answer."""
    create_topic(port, members)
    everybody = [Member(port, f"group-{number % groups}", f"member-{number}") for number in range(members)]
    everybody[0].find_coordinator()
    for member in everybody:
        member.beat()
    deadline = time.monotonic() + 60
    while learning := [member for member in everybody if not member.beat()]:
        if time.monotonic() > deadline:
            raise SystemExit(f"The groups do not settle; {len(learning)} members, one received {learning[0].told}")
        time.sleep(0.05)
    loads = [member.steady() for member in everybody]
    for member in everybody:
        member.socket.close()
    return loads


def create_topic(port: int, partitions: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with NetworkClient(f"127.0.0.1:{port}", api_timeout_ms=5000) as client:
                Admin(client).create_topics({"in": partitions})
                return
        except (HeadraceError, OSError) as error:
            if isinstance(error, BrokerError) and error.kafka_name == "TOPIC_ALREADY_EXISTS":
                return  # an answer that came too late for the client
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Member:
    """Member that joins a group and follows its assignment, one heartbeat at a time."""

    def __init__(self, port: int, group_id: str, member_id: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.stream = self.socket.makefile("rb")
        self.group_id, self.member_id = group_id, member_id
        self.epoch, self.endpoint_epoch = 0, -1
        self.owned: tuple[Any, ...] = ()
        self.told: Any = None

    def find_coordinator(self) -> None:
        """Asking makes Kafka create `__consumer_offsets`."""
        message = m.find_coordinator_request.FindCoordinatorRequest(coordinator_keys=(self.group_id,))
        self.socket.sendall(encode_request(ApiKey.FIND_COORDINATOR, 4, 7, "load", message))
        self.stream.read(int.from_bytes(self.stream.read(4), "big"))

    def beat(self) -> bool:
        """Whether all is as it was."""
        answer, _ = self.exchange(self.frame(tells_tasks=True))
        self.told = answer
        if answer.error_code.value in (14, 15, 16):  # the coordinator is not there yet
            time.sleep(0.2)
            return False
        if answer.error_code.value != 0:
            raise SystemExit(f"{self.member_id}: {answer.error_code} {answer.error_message}")
        before = (self.epoch, self.owned, self.endpoint_epoch)
        self.epoch, self.endpoint_epoch = answer.member_epoch, answer.endpoint_information_epoch
        if answer.active_tasks is not None:
            self.owned = tuple(answer.active_tasks)
        after = (self.epoch, self.owned, self.endpoint_epoch)
        return before == after and bool(self.owned) and not answer.status

    def steady(self) -> tuple[bytes, bytes]:
        frame = self.frame(tells_tasks=False)
        _, first = self.exchange(frame)
        _, again = self.exchange(frame)
        if first != again:
            raise SystemExit(f"{self.member_id} has no steady answer.")
        return frame, again[4:]

    def exchange(self, frame: bytes) -> tuple[Any, bytes]:
        self.socket.sendall(frame)
        length = int.from_bytes(self.stream.read(4), "big")
        answer = self.stream.read(length)
        _, response = decode_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, answer)
        return response, answer

    def frame(self, *, tells_tasks: bool) -> bytes:
        joins = self.epoch == 0
        message = request.StreamsGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            endpoint_information_epoch=self.endpoint_epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=from_ms(300_000 if joins else -1),
            topology=TOPOLOGY if joins else None,
            active_tasks=(self.owned if not joins else ()) if tells_tasks else None,
            standby_tasks=() if tells_tasks else None,
            warmup_tasks=() if tells_tasks else None,
            process_id=self.member_id if joins else None,
            user_endpoint=None,
            client_tags=None,
            task_offsets=None,
            task_end_offsets=None,
            shutdown_application=False,
        )
        return encode_request(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 7, "load", message)


TOPOLOGY = request.Topology(
    epoch=0,
    subtopologies=(
        request.Subtopology(
            subtopology_id="0",
            source_topics=("in",),
            source_topic_regex=(),
            state_changelog_topics=(),
            repartition_sink_topics=(),
            repartition_source_topics=(),
            copartition_groups=(),
        ),
    ),
)


def measure(contender: Contender, depth: int, seconds: float) -> dict[str, float]:
    work = {"host": "127.0.0.1", "port": contender.port, "depth": depth, "seconds": seconds, "loads": contender.loads}
    cpu_before = cpu_seconds(contender.pid)
    run = subprocess.run([sys.executable, str(LOAD)], input=pickle.dumps(work), capture_output=True, check=False)
    cpu = cpu_seconds(contender.pid) - cpu_before
    if run.returncode != 0:
        raise SystemExit(f"{contender.name}: {run.stderr.decode()}")
    answers, took, load_cpu = (float(each) for each in run.stdout.split())
    return {
        "heartbeats_per_second": answers / took,
        "heartbeats_per_cpu_second": answers / cpu,
        "load_cpu_share": load_cpu / took,
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def report(figures: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    medians = {
        name: {figure: statistics.median(each[figure] for each in rounds) for figure in rounds[0]}
        for name, rounds in figures.items()
    }
    if arguments.json:
        print(json.dumps({"benchmark": "heartbeats", "medians": medians, "rounds": figures}))
        return
    print(
        f"steady heartbeats, {arguments.members} connections, {arguments.groups} groups, medians of {arguments.rounds}"
    )
    print(f"  {'':<30} {'per second':>12} {'slowest':>10} {'fastest':>10} {'per CPU s':>12} {'load CPU':>9}")
    for name, found in medians.items():
        rates = [each["heartbeats_per_second"] for each in figures[name]]
        print(
            f"  {name:<30} {found['heartbeats_per_second']:>12,.0f} {min(rates):>10,.0f} {max(rates):>10,.0f} "
            f"{found['heartbeats_per_cpu_second']:>12,.0f} {found['load_cpu_share']:>9.0%}"
        )
    for depth in arguments.depth:
        ours, kafka = medians.get(f"headrace, depth {depth}"), medians.get(f"Apache Kafka 4.3.1, depth {depth}")
        if ours and kafka:
            rate, per_cpu = (
                ours[each] / kafka[each] for each in ("heartbeats_per_second", "heartbeats_per_cpu_second")
            )
            print(f"  depth {depth}: {rate:.2f}x the heartbeats per second, {per_cpu:.2f}x per CPU second")


if __name__ == "__main__":
    main()
