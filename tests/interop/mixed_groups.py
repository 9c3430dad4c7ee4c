"""A group of our consumer and somebody else's, on whatever broker: they share, each leads once, nothing is lost."""

from __future__ import annotations

import uuid
from typing import Any

from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until
from tests.interop.foreign_consumers import FOREIGN

from headrace.client.admin import Admin
from headrace.client.group_offsets import fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce

__all__ = ["mixed_group"]

PARTITIONS = 4


def mixed_group(servers: str, client_name: str, *, protocol: str, strategy: str) -> None:
    """The foreign member joins first and leads; ours joins, takes over when it leaves, leads when it comes again."""
    stem = uuid.uuid4().hex[:8]
    topic, group = f"mixed-{stem}", f"group-{stem}"
    with NetworkClient(servers, client_id="headrace-mixed") as client:
        Admin(client).create_topics({topic: PARTITIONS})
        client.leaders((topic, number) for number in range(PARTITIONS))
        fetch_offsets(client, group, [(topic, 0)])  # a new broker makes its offsets topic before others come
        every = {(topic, number) for number in range(PARTITIONS)}
        written = write(client, topic)
        settings: dict[str, object] = {"bootstrap.servers": servers, "group.protocol": protocol}
        if protocol == "classic":
            settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
        common: dict[str, Any] = {"protocol": protocol, "strategy": strategy}
        foreign = FOREIGN[client_name](servers, group, topic, **common)
        ours = RunningConsumer(topic, group_id=group, config=settings, partition_assignment_strategy=strategy)
        again = FOREIGN[client_name](servers, group, topic, **common)
        with foreign:
            wait_until(lambda: foreign.assigned == every, f"{client_name} has everything")
            with ours:
                wait_until(lambda: shared(every, ours.assigned, foreign.assigned), f"{client_name} and ours share")
                written |= write(client, topic)
                wait_until(lambda: written <= {*foreign.read, *ours.read}, "everything is read by somebody")
                foreign.stop()
                wait_until(lambda: ours.assigned == every, "ours takes over")
                with again:  # now ours leads
                    wait_until(lambda: shared(every, ours.assigned, again.assigned), f"ours and {client_name} share")
                    written |= write(client, topic)
                    wait_until(lambda: written <= {*foreign.read, *ours.read, *again.read}, "nothing is lost")
        assert not ours.errors


def shared(every: set[tuple[str, int]], ours: set[tuple[str, int]], theirs: set[tuple[str, int]]) -> bool:
    return ours | theirs == every and len(ours) == len(theirs) == len(every) // 2


def write(client: NetworkClient, topic: str) -> set[tuple[str, int, int]]:
    written = set()
    for number in range(PARTITIONS):
        last = produce(client, topic, [PlainRecord(value=b"v%d" % n) for n in range(10)], partition=number)
        end = last[topic, number]
        written |= {(topic, number, offset) for offset in range(end - 9, end + 1)}
    return written
