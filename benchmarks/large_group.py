"""One streams group of 10,000 members: how long until all are settled, with how many runs of the assignor, and how much
memory a member takes. Twice: the shard behind ShardRunner alone, and our broker as a process over 64 real connections.

Members join, then beat at once as long as anything changes for anybody (a real member beats every few seconds: this is
the coordinator's work, not a member's patience). The initial delay and the assignment interval are Kafka's defaults; in
the shard's run the clock is virtual and told beside. Prints a table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from heartbeats import TOPOLOGY, create_topic, request

from headrace.broker.coordinators.coordinator_runtime import Outcome, ShardRunner
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import decode_response, encode_request

SETTINGS: dict[str, object] = {"group.streams.max.size": 1_000_000}
CONNECTIONS = 64
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(kw_only=True)
class Member:
    """State of a member: it acknowledges its assignment with its next heartbeat."""

    member_id: str
    epoch: int = 0
    owned: tuple[Any, ...] = ()
    acknowledges: bool = False

    def next_request(self) -> Any:
        joins, tells = self.epoch == 0, self.epoch == 0 or self.acknowledges
        return request.StreamsGroupHeartbeatRequest(
            group_id="large",
            member_id=self.member_id,
            member_epoch=self.epoch,
            endpoint_information_epoch=-1,
            rebalance_timeout=from_ms(300_000 if joins else -1),
            topology=TOPOLOGY if joins else None,
            active_tasks=self.owned if tells else None,
            standby_tasks=() if tells else None,
            warmup_tasks=() if tells else None,
            process_id=self.member_id if joins else None,
            user_endpoint=None,
            client_tags=None,
            task_offsets=None,
            task_end_offsets=None,
        )

    def take(self, answer: Any) -> bool:
        """Whether something is new or still to come."""
        if answer.error_code.value != 0:
            raise SystemExit(f"{self.member_id}: {answer.error_code} {answer.error_message}")
        is_new = answer.member_epoch != self.epoch or answer.active_tasks is not None
        self.epoch = answer.member_epoch
        self.acknowledges = answer.active_tasks is not None
        if answer.active_tasks is not None:
            self.owned = tuple(answer.active_tasks)
        return is_new or bool(answer.status) or not self.owned


class MemoryLog:
    """Records of a shard, counted and dropped: what is measured is the coordinator."""

    def __init__(self) -> None:
        self.records = 0

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        self.records += len(records)

    def read_all(self) -> Iterator[CoordinatorRecord]:
        return iter(())


def in_the_shard(count: int, tasks: int) -> dict[str, float]:
    image = MetadataImage(version=1, topics={"in": TopicImage(name="in", topic_id=UUID(int=1), partitions=tasks)})
    log = MemoryLog()
    shard = GroupCoordinatorShard(0, GroupCoordinatorConfiguration.from_settings(SETTINGS), image)
    runner = ShardRunner(shard, log)
    now_ms, runs, beats = 1_000_000, 0, 0
    runner.load(now_ms=now_ms)
    members = [Member(member_id=f"member-{number:06}") for number in range(count)]
    context = RequestContext(token=1, client_id="large", client_host="/127.0.0.1", api_version=0)
    before, started, first_ms = resident_bytes(os.getpid()), time.perf_counter(), now_ms

    def runs_in(outcome: Outcome) -> int:
        return sum(event.name == "TargetAssignmentComputed" for event in outcome.events)

    rounds, unsettled = 0, True
    while unsettled:
        unsettled = False
        for member in members:
            asked = member.next_request()
            outcome = runner.run(partial(shard.streams_group_heartbeat, asked, context, now_ms=now_ms), now_ms=now_ms)
            beats, runs = beats + 1, runs + runs_in(outcome)
            unsettled = member.take(outcome.replies[0].response) or unsettled
        rounds += 1
        now_ms += 1_000
        for outcome in runner.fire_timers(now_ms=now_ms):
            runs += runs_in(outcome)
    took = time.perf_counter() - started
    return {
        "members": count,
        "tasks": tasks,
        "seconds": took,
        "virtual_seconds": (now_ms - first_ms) / 1000,
        "heartbeats": beats,
        "microseconds_per_heartbeat": took / beats * 1e6,
        "assignor_runs": runs,
        "records": log.records,
        "bytes_per_member": (resident_bytes(os.getpid()) - before) / count,
    }


def over_sockets(count: int, tasks: int) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port, metrics_port = int(probe.getsockname()[1]), 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        metrics_port = int(probe.getsockname()[1])
    overrides = [part for name, value in SETTINGS.items() for part in ("--override", f"{name}={value}")]
    command = [sys.executable, "-m", "headrace.cli.main", "broker", "--port", str(port)]
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [*command, "--data-dir", directory, "--metrics-port", str(metrics_port), *overrides],
            stderr=subprocess.DEVNULL,
        )
        try:
            create_topic(port, tasks)
            return settle_over_sockets(port, process.pid, count, tasks)
        finally:
            process.terminate()
            process.wait()


def settle_over_sockets(port: int, pid: int, count: int, tasks: int) -> dict[str, float]:
    streams = []
    for _ in range(CONNECTIONS):
        connected = socket.create_connection(("127.0.0.1", port))
        streams.append((connected, connected.makefile("rb")))
    members = [Member(member_id=f"member-{number:06}") for number in range(count)]
    before, started = resident_bytes(pid), time.perf_counter()
    beats, rounds, slowest, unsettled = 0, 0, 0.0, True
    while unsettled:
        unsettled = False
        for start in range(0, count, CONNECTIONS):
            turn = list(zip(members[start : start + CONNECTIONS], streams, strict=False))
            asked = time.perf_counter()
            for member, (connected, _) in turn:
                frame = encode_request(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, "large", member.next_request())
                connected.sendall(frame)
            for member, (_, stream) in turn:
                answer = stream.read(int.from_bytes(stream.read(4), "big"))
                _, response = decode_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, answer)
                unsettled = member.take(response) or unsettled
            beats += len(turn)
            slowest = max(slowest, time.perf_counter() - asked)
        rounds += 1
    took = time.perf_counter() - started
    return {
        "members": count,
        "tasks": tasks,
        "seconds": took,
        "heartbeats": beats,
        "rounds": rounds,
        "slowest_turn_seconds": slowest,
        "bytes_per_member": (resident_bytes(pid) - before) / count,
    }


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, help="as many as members unless given")
    parser.add_argument("--without-sockets", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tasks = arguments.tasks or arguments.members
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    figures = {"shard": in_the_shard(arguments.members, tasks)}
    if not arguments.without_sockets:
        figures["broker over sockets"] = over_sockets(arguments.members, tasks)
    if arguments.json:
        print(json.dumps({"benchmark": "large_group", "figures": figures}))
        return
    for name, found in figures.items():
        print(name)
        for figure, value in found.items():
            print(f"  {figure.replace('_', ' '):<28} {value:>14,.1f}")


if __name__ == "__main__":
    main()
