"""Kafka's own StickyTaskAssignor (4.3.1) as a process, and ours behind the same few doors: histories run on both."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Protocol, Self

from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

from headrace.coordinator.assignors.sticky_task_assignor import StickyTaskAssignor
from headrace.coordinator.assignors.task_assignor import (
    AssignableSubtopology,
    GroupSpec,
    MemberSpec,
    TaskAssignor,
    TasksTuple,
)

__all__ = ["Assignment", "KafkasAssignor", "OurAssignor", "Peer"]

SOURCES = Path(__file__).parent / "java_assignor"
Assignment = dict[str, TasksTuple]


class Peer(Protocol):
    """A group whose previous assignment is the peer's own last answer."""

    def reset(self, subtopologies: tuple[AssignableSubtopology, ...], standbys: int) -> None: ...
    def set_standbys(self, standbys: int) -> None: ...
    def join(self, member_id: str, process_id: str) -> None: ...
    def leave(self, member_id: str) -> None: ...
    def assign(self) -> Assignment: ...


class OurAssignor:
    """Mutable: one group."""

    def __init__(self, assignor: TaskAssignor | None = None) -> None:
        self._assignor = assignor or StickyTaskAssignor()
        self.reset((), 0)

    def reset(self, subtopologies: tuple[AssignableSubtopology, ...], standbys: int) -> None:
        self._subtopologies, self._standbys = subtopologies, standbys
        self._processes: dict[str, str] = {}
        self._previous: Assignment = {}

    def set_standbys(self, standbys: int) -> None:
        self._standbys = standbys

    def join(self, member_id: str, process_id: str) -> None:
        self._processes[member_id] = process_id

    def leave(self, member_id: str) -> None:
        del self._processes[member_id]

    def spec(self) -> GroupSpec:
        return GroupSpec(
            members={
                member_id: MemberSpec(process_id=process, previous=self._previous.get(member_id, TasksTuple()))
                for member_id, process in self._processes.items()
            },
            subtopologies=self._subtopologies,
            num_standby_replicas=self._standbys,
        )

    def assign(self) -> Assignment:
        self._previous = dict(self._assignor.assign(self.spec()))
        return self._previous


class KafkasAssignor:
    """A Java process; a context manager. Raises KafkaUnavailable where its jars cannot be had."""

    def __init__(self) -> None:
        classpath = f"{compiled(SOURCES)}:{kafka_jars(TOOLS_VERSION)}/*"
        command = [java(), "-Xmx1g", "-XX:+UseSerialGC", "-cp", classpath, "AssignorPeer"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def reset(self, subtopologies: tuple[AssignableSubtopology, ...], standbys: int) -> None:
        self._say("reset")
        self.set_standbys(standbys)
        for each in subtopologies:
            self._say(f"subtopology {each.subtopology_id} {each.tasks} {str(each.stateful).lower()}")

    def set_standbys(self, standbys: int) -> None:
        self._say(f"standbys {standbys}")

    def join(self, member_id: str, process_id: str) -> None:
        self._say(f"member {member_id} {process_id}")

    def leave(self, member_id: str) -> None:
        self._say(f"gone {member_id}")

    def assign(self) -> Assignment:
        self._say("assign", flush=True)
        assignment: Assignment = {}
        while (line := self._heard()) != "done":
            member_id, _, tasks = line.partition(" active")
            active, _, standby = tasks.partition(" standby")
            assignment[member_id] = TasksTuple(active=_tasks(active), standby=_tasks(standby))
        return assignment

    def time_us(self, rounds: int) -> tuple[int, int]:
        """(least, median) microseconds of one assignment of the group as it is."""
        self._say(f"time {rounds}", flush=True)
        least, median = self._heard().split()
        return int(least), int(median)

    def _say(self, line: str, *, flush: bool = False) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        if flush:
            self._process.stdin.flush()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("Kafka's assignor ended")
        return line.rstrip("\n")


def _tasks(text: str) -> tuple[tuple[str, int], ...]:
    pairs = (each.rpartition(":") for each in text.split())
    return tuple(sorted((name, int(partition)) for name, _, partition in pairs))
