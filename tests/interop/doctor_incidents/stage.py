"""The stage of one incident: a broker, a group, its members, and the recording of what the doctor reads afterwards."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.cli.doctor.recording import Recording
from tests.harness.polling import TIMEOUT_S, wait_until
from tests.interop.doctor_incidents.incident_members import TREE, IncidentMember

from headrace.cli.doctor.group_events import GroupRecord, read_group_records
from headrace.cli.doctor.group_state import read_group_state
from headrace.client.admin import Admin
from headrace.client.plain_records import PlainRecord, produce
from headrace.coordinator.records.serde import decode
from headrace.coordinator.request_context import CorruptRecord

__all__ = ["Broker", "Incident", "Stage"]

WAIT_S = TIMEOUT_S  # a crowded machine needs more: HEADRACE_WAIT_S
MOST_LOG_LINES = 400


class Broker(Protocol):
    """A broker that an incident may restart."""

    @property
    def bootstrap_servers(self) -> str: ...

    def start(self) -> object: ...

    def stop(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One incident that is provoked.

    Attributes:
        name: Name of its recording.
        cause: The cause that the doctor must rank first; "" for a healthy run.
        clients: The clients in it.
        broker: `kafka` (Apache Kafka 4.3.1) or `headrace`.
        title: What happens, in words.
        provoke: Makes it happen.
    """

    name: str
    cause: str
    clients: str
    broker: str
    title: str
    provoke: Callable[[Stage], None]


class Stage:
    """A group with its topic. Mutable; leaving it kills what still runs."""

    def __init__(self, broker: Broker, name: str, directory: Path, *, partitions: int = 4) -> None:
        self.broker, self.servers = broker, broker.bootstrap_servers
        self.group, self.topic, self.partitions = name, f"{name}-input", partitions
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.admin = Admin(self.servers)
        self.members: list[IncidentMember] = []
        self.open = ExitStack()
        self.open.callback(self.admin.close)

    def __enter__(self) -> Self:
        self.admin.create_topics({self.topic: self.partitions}, replication_factor=1)
        self.write(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.kill()
        self.open.close()

    def write(self, count: int, partition: int | None = None) -> None:
        """Write so many records to each partition, or to one."""
        for number in range(self.partitions) if partition is None else (partition,):
            produce(self.admin.client, self.topic, [PlainRecord(value=b"v")] * count, partition=number)

    def join(self, client: str, name: str, **settings: Any) -> IncidentMember:
        """Start a member; `settings` in Java's names with `_` for a dot."""
        named = {key.replace("_", "."): value for key, value in settings.items()}
        member = IncidentMember(
            client,
            self.servers,
            self.group,
            self.topic,
            name=name,
            log=self.directory / f"{name}.log",
            settings=named,
        )
        self.members.append(member)
        return member

    def settle(self, *members: IncidentMember, count: int | None = None) -> None:
        """Wait until these members share all partitions, each with at least one."""

        def shared() -> bool:
            sets = [member.assigned for member in members]
            return all(sets) and sum(map(len, sets)) == (count or self.partitions) == len(frozenset().union(*sets))

        wait_until(shared, f"{len(members)} members of {self.group} share", *members, timeout_s=WAIT_S)

    def logged(self, member: IncidentMember, *parts: str) -> None:
        """Wait until the member's log has one of these texts."""
        wait_until(lambda: any(each in _read(member.log) for each in parts), str(parts), member, timeout_s=WAIT_S)

    def record(self, incident: Incident) -> Recording:
        """Read what the doctor reads."""
        kept = [each for each in read_group_records(self.admin, self.group) if self._is_own(each)]
        logs = {path.name: self._cleaned(path) for path in sorted(self.directory.glob("*.log"))}
        state = read_group_state(self.admin, self.group, now_ms=int(time.time() * 1000))
        return Recording(
            cause=incident.cause,
            title=incident.title,
            clients=incident.clients,
            broker=incident.broker,
            group=self.group,
            records=tuple(kept),
            logs=logs,
            state=state,
        )

    def _is_own(self, record: GroupRecord) -> bool:
        try:
            found = decode(record.key, record.value)
        except CorruptRecord:
            return False
        return found is not None and self.group in (
            getattr(found.key, "group_id", None),
            getattr(found.key, "group", None),
        )

    def _cleaned(self, path: Path) -> list[str]:
        """The log without paths and names of this machine; a repeated line without its numbers is kept three times."""
        text = _read(path)
        for place in (str(self.directory), str(TREE), str(Path.home())):
            text = text.replace(place, "/app")
        text = text.replace(socket.gethostname(), "host").replace(self.servers, "broker:9092")
        text = re.sub(r"(?<![\w.])/(?:usr|work|tmp|opt|home|root)/[\w./+-]*/", "/app/", text)
        lines: list[str] = []
        seen: dict[str, int] = {}
        for line in text.splitlines():
            shape = re.sub(r"\d+", "0", line)
            seen[shape] = seen.get(shape, 0) + 1
            if seen[shape] <= 3 or "=" in shape:
                lines.append(line[:1_000])
        return lines[:MOST_LOG_LINES] if len(lines) <= MOST_LOG_LINES else _ends(lines)


def _ends(lines: list[str]) -> list[str]:
    half = MOST_LOG_LINES // 2
    return [*lines[:half], *lines[-half:]]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
