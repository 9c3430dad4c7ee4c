"""What goes into the word count and what has to come out; and a watch on a streams group.

The counts are recomputed here from what was sent. Kafka Streams runs at least once: after a crash a count may be too
high, never too low; without one it is exact.
"""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

import confluent_kafka
from tests.harness.values import not_none
from tests.spark.application.processes import records_of

from headrace.client.admin import Admin
from headrace.client.admin_results import StreamsGroupDescription, StreamsMemberAssignment
from headrace.errors import HeadraceError

__all__ = ["GroupPoller", "Words", "task_names"]

VOCABULARY = 37


class Words:
    """Records (id, word) in a topic, and how often each word was sent. Mutable: counts as it sends."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        self.counts: Counter[str] = Counter()
        self._sent = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def send(self, count: int, *, wait: bool = True) -> None:
        """`wait`: returns when all are acknowledged."""
        for number in range(self._sent, self._sent + count):
            word = f"word-{number * 13 % VOCABULARY}"
            self._producer.produce(self.topic, key=str(number), value=word)
            self.counts[word] += 1
        self._sent += count
        if wait:
            self.acknowledged()
        else:
            self._producer.poll(0)

    def poison(self) -> None:
        """One record that no instance can digest."""
        self._producer.produce(self.topic, key="poison", value="poison")
        self.acknowledged()

    def acknowledged(self) -> None:
        assert self._producer.flush(120) == 0

    def counted(self, sink: str) -> dict[str, int]:
        """The last count of each word in the application's output."""
        found: dict[str, int] = {}
        for message in records_of(self.servers, sink):
            found[not_none(message.key()).decode()] = int.from_bytes(not_none(message.value()), "big")
        return found


class GroupPoller:
    """Looks at a group twenty times a second, in a thread, and keeps every change of state and epochs.

    `latest` is None while the broker does not answer or there is no such group.
    """

    def __init__(self, servers: str, group_id: str) -> None:
        self._group_id = group_id
        self._admin = Admin(servers)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name=f"watch {group_id}", daemon=True)
        self.latest: StreamsGroupDescription | None = None
        self.seen: list[tuple[str, int, int, dict[str, int]]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(30)
        self._admin.close()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            try:
                found = self._admin.describe_streams_groups([self._group_id])[self._group_id]
            except HeadraceError:
                self.latest = None
                continue
            self.latest = found
            members = {member.member_id: member.member_epoch for member in found.members}
            view = (found.state, found.group_epoch, found.assignment_epoch, members)
            if self.seen[-1:] != [view]:
                self.seen.append(view)

    @property
    def state(self) -> str | None:
        """State of the group as it was last described."""
        latest = self.latest
        return None if latest is None else latest.state

    @property
    def states(self) -> set[str]:
        return {state for state, *_ in self.seen}

    def epochs_rise(self) -> bool:
        """No epoch ever fell: of the group, of its assignment, of any member; no assignment is ahead of its group."""
        pairs = zip(self.seen, self.seen[1:], strict=False)
        return all(
            then[1] <= now[1]
            and then[2] <= now[2] <= now[1]
            and all(epoch <= now[3].get(member, epoch) for member, epoch in then[3].items())
            for then, now in pairs
        )


def task_names(assignment: StreamsMemberAssignment, role: str = "active") -> list[str]:
    """`subtopology_partition`, as Kafka Streams names its tasks."""
    tasks: Any = getattr(assignment, role)
    return sorted(f"{subtopology}_{partition}" for subtopology, partitions in tasks.items() for partition in partitions)
