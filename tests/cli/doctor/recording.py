"""A recording of one incident: what the doctor reads of a group, as a small file.

Recordings are produced by `python -m tests.interop.doctor_incidents.produce tests/cli/doctor/recordings`.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from headrace.cli.doctor.client_logs import find_causes
from headrace.cli.doctor.findings import Finding, diagnose
from headrace.cli.doctor.group_events import GroupRecord, group_events
from headrace.cli.doctor.group_state import GroupState, OpenTransaction, PartitionState

__all__ = ["RECORDINGS", "Recording"]

RECORDINGS = Path(__file__).parent / "recordings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything that the doctor reads of one group, and the incident behind it.

    Attributes:
        cause: The cause that the doctor must rank first; "" for a healthy run.
        title: What happened, in words.
        clients: The clients of the members.
        broker: `kafka` (Apache Kafka 4.3.1) or `headrace`.
        group: The group.
        records: The coordinator's records of the group.
        logs: The clients' logs by file, without paths and names of a machine.
        state: The group's state at the end.
    """

    cause: str
    title: str
    clients: str
    broker: str
    group: str
    records: tuple[GroupRecord, ...]
    logs: dict[str, list[str]]
    state: GroupState

    def diagnose(self) -> list[Finding]:
        """Return the doctor's findings."""
        lines = [line for file, text in self.logs.items() for line in find_causes(text, file=file)]
        return diagnose(group_events(self.records, self.group), lines, self.state)

    def write(self, path: Path) -> None:
        """Write it as compressed JSON, the same bytes for the same recording."""
        document = {
            "cause": self.cause,
            "title": self.title,
            "clients": self.clients,
            "broker": self.broker,
            "group": self.group,
            "records": [
                [each.timestamp_ms, _text(each.key), None if each.value is None else _text(each.value)]
                for each in self.records
            ],
            "logs": self.logs,
            "state": asdict(self.state),
        }
        text = json.dumps(document, indent=0, ensure_ascii=False)
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))

    @classmethod
    def read(cls, path: Path) -> Self:
        document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        state = document["state"]
        return cls(
            **{name: document[name] for name in ("cause", "title", "clients", "broker", "group")},
            records=tuple(
                GroupRecord(timestamp_ms=at, key=base64.b64decode(key), value=value and base64.b64decode(value))
                for at, key, value in document["records"]
            ),
            logs=document["logs"],
            state=GroupState(
                at_ms=state["at_ms"],
                group_type=state["group_type"],
                state=state["state"],
                partitions=tuple(PartitionState(**each) for each in state["partitions"]),
                transactions=tuple(
                    OpenTransaction(**{**each, "partitions": tuple(map(tuple, each["partitions"]))})
                    for each in state["transactions"]
                ),
                obstacles=tuple(map(tuple, state["obstacles"])),
            ),
        )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
