"""A running group whose members are replaced one by one, classic by consumer protocol and back, while records are
written: whatever the broker. No record is lost (at least once), and no committed offset ever falls."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Sequence
from typing import Any, Self

from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until
from tests.interop.foreign_consumers import FOREIGN, ForeignConsumer

from headrace.client.admin import Admin
from headrace.client.group_offsets import fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce

__all__ = ["OURS", "rolled_group"]

PARTITIONS = 6
OURS = "headrace"
Running = RunningConsumer | ForeignConsumer


def rolled_group(
    servers: str, kinds: Sequence[str], *, strategy: str = "cooperative-sticky", patience_s: float = 60.0
) -> None:
    """`kinds`: who the members are, OURS or a name of FOREIGN; their number divides PARTITIONS."""
    stem = uuid.uuid4().hex[:8]
    topic, group = f"rolled-{stem}", f"group-{stem}"
    every = {(topic, number) for number in range(PARTITIONS)}
    with NetworkClient(servers, client_id="headrace-rolled") as client, contextlib.ExitStack() as running:
        Admin(client).create_topics({topic: PARTITIONS})
        client.leaders((topic, number) for number in range(PARTITIONS))
        fetch_offsets(client, group, [(topic, 0)])  # a new broker makes its offsets topic before others come
        writer = running.enter_context(Writer(servers, topic, group))

        def start(kind: str, protocol: str) -> Running:
            started = member(kind, servers, group, topic, protocol, strategy)
            running.enter_context(started)
            return started

        members = [start(kind, "classic") for kind in kinds]
        gone: list[Running] = []

        def covers_all() -> bool:
            return {partition for each in members for partition in each.assigned} == every

        def all_share() -> bool:
            return covers_all() and all(len(each.assigned) == PARTITIONS // len(kinds) for each in members)

        def type_is(name: str) -> bool:
            return [each.group_type for each in Admin(client).list_groups() if each.group_id == group] == [name]

        wait_until(all_share, "the classic members share", timeout_s=patience_s)
        for protocol in ("consumer", "classic"):
            for index, kind in enumerate(kinds):
                members[index].stop()
                gone.append(members[index])
                members[index] = start(kind, protocol)
                wait_until(all_share, f"member {index + 1} has come with the {protocol} protocol", timeout_s=patience_s)
                is_back = protocol == "classic" and index == len(kinds) - 1
                assert type_is("classic" if is_back else "consumer"), f"after member {index + 1}, {protocol}"
        ends = writer.finish()
        written = {(*partition, offset) for partition, end in ends.items() for offset in range(end)}

        def read() -> set[tuple[str, int, int]]:
            return {record for each in (*gone, *members) for record in tuple(each.read)}

        wait_until(lambda: written <= read(), "every record was read", timeout_s=patience_s)
        while members:
            # A commit in the middle of a rebalance may be refused: the next one goes when the others have it all.
            members[0].stop()
            gone.append(members.pop(0))
            wait_until(lambda: not members or covers_all(), "those who stay read everything", timeout_s=patience_s)
        assert not [error for each in gone for error in each.errors]
        assert Admin(client).committed_offsets(group) == ends
        assert writer.falls == []


def member(kind: str, servers: str, group: str, topic: str, protocol: str, strategy: str) -> Running:
    if kind != OURS:
        return FOREIGN[kind](servers, group, topic, protocol=protocol, strategy=strategy)
    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.protocol": protocol}
    if protocol == "classic":
        settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
        return RunningConsumer(topic, group_id=group, config=settings, partition_assignment_strategy=strategy)
    return RunningConsumer(topic, group_id=group, config=settings)


class Writer:
    """A thread that writes to all partitions in turn, and looks at the group's committed offsets. `falls`: those that
    were lower than before."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self._servers, self._topic, self._group = servers, topic, group
        self._ends = {(topic, number): 0 for number in range(PARTITIONS)}
        self._committed: dict[Any, int] = {}
        self.falls: list[tuple[Any, int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def finish(self) -> dict[tuple[str, int], int]:
        """How many records each partition has."""
        self.__exit__()
        return self._ends

    def _run(self) -> None:
        with NetworkClient(self._servers, client_id="headrace-writer") as client:
            while not self._stop.wait(0.02):
                for number in range(PARTITIONS):
                    produce(client, self._topic, [PlainRecord(value=b"v")] * 3, partition=number)
                    self._ends[self._topic, number] += 3
                for partition, offset in Admin(client).committed_offsets(self._group).items():
                    before = self._committed.get(partition, 0)
                    if offset < before:
                        self.falls.append((partition, before, offset))
                    self._committed[partition] = offset
