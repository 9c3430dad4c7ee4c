"""Documents of applications, served by the HTTP server of real applications, and members that announce it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.streams_member import StreamsMember
from headrace.spark.queries.http_requests import Answer
from headrace.spark.queries.http_server import HttpServer, ServerLimits

__all__ = ["answering", "document_of", "joined_application"]

DOCUMENT: dict[str, Any] = {
    "format": 1,
    "application": "delays",
    "version": "0.1.0",
    "time_ms": 1_000_000,
    "started_ms": 940_000,
    "state": "running",
    "reasons": [],
    "member_id": "m",
    "member_epoch": 3,
    "host": "worker-1",
    "pid": 4711,
    "guarantee": "exactly_once_v2",
    "state_disk_bytes": 5_000_000,
    "memberships_lost": 0,
    "subtopologies": [
        {
            "id": "0",
            "sources": [{"kind": "topic", "topics": ["flights"]}],
            "operators": [{"store": "by-origin", "kind": "aggregate", "changelog": "delays-by-origin-changelog"}],
            "sinks": [{"kind": "topic", "name": "delays-by-origin"}, {"kind": "table", "name": "delays_table"}],
            "records": 5_000,
            "records_per_second": 250.5,
            "output_records": 900,
            "lag": 17,
            "batches": 40,
            "resident_batches": 40,
            "failed_batches": 1,
            "batch_ms": {"count": 40, "p50": 12, "p99": 48, "max": 61},
            "stages_ms": {"addBatch": {"count": 40, "p50": 9, "p99": 40, "max": 50}},
            "tasks": [
                {
                    "partition": partition,
                    "slot": partition % 2,
                    "place": "",
                    "records": 2_500,
                    "lag": 8 + partition,
                    "state_keys": 30,
                    "state_bytes": 4_096,
                    "watermarks_ms": {"by-origin": 1_767_225_600_000 + 1_000 * partition, "other": None},
                    "late_rows": 2 * partition,
                    "skipped": 1,
                    "dead_letters": 3,
                }
                for partition in range(2)
            ],
            "opening": [{"partition": 7, "restored": 10, "remaining": 90}],
        }
    ],
    "standby": [{"subtopology": "0", "partition": 5, "lag": 4}],
}


def document_of(**changes: Any) -> dict[str, Any]:
    """Return a document with other values at its top."""
    return {**deepcopy(DOCUMENT), **changes}


@contextmanager
def answering(document: object, *, token: str | None = None, status: int = 200) -> Iterator[int]:
    """Serve a document in place of an application, with its access rules and limits; return the port."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    server = HttpServer(
        lambda _request, _deadline: Answer(status=status, body=body), token=token, limits=ServerLimits()
    )
    port = server.start("127.0.0.1", 0, own_host="127.0.0.1")
    try:
        yield port
    finally:
        server.close()


@contextmanager
def joined_application(
    servers: str, group_id: str, topic: str, documents: list[dict[str, Any]], *, token: str | None = None
) -> Iterator[list[int]]:
    """Members of a group that announce the endpoints of these documents; return the ports once all have tasks."""
    topology = Topology(subtopologies=(Subtopology(subtopology_id="0", source_topics=(topic,)),))
    with ExitStack() as stack:
        ports = [stack.enter_context(answering(each, token=token)) for each in documents]
        members = [
            stack.enter_context(
                StreamsMember(
                    group_id,
                    topology,
                    bootstrap_servers=servers,
                    client_id=f"{group_id}-{number}",
                    endpoint=f"127.0.0.1:{port}",
                    heartbeat_interval_ms=50,
                    heartbeat_max_interval_ms=50,
                )
            )
            for number, port in enumerate(ports)
        ]
        for _ in range(400):
            for member in members:
                for _ in member.changes(timeout=0.02):
                    pass
                member.acknowledge(member.assignment.active)
            if all(member.assignment.active.get("0") for member in members):
                break
        else:
            raise AssertionError("the members got no tasks")
        yield ports
