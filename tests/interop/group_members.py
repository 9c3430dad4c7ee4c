"""Members of streams groups that take tasks and process nothing, on any broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.polling import wait_until

from headrace.client.admin import Admin
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.streams_member import StreamsMember

__all__ = ["Worker", "is_settled", "members", "topology"]


def topology(group: str, source: str) -> Topology:
    """Source → repartition topic → counts. One internal topic is not named after the group."""
    return Topology(
        subtopologies=(
            Subtopology(
                subtopology_id="0", source_topics=(source,), repartition_sink_topics=(f"{group}-by-key-repartition",)
            ),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=(InternalTopic(name=f"{group}-by-key-repartition"),),
                state_changelog_topics=(
                    InternalTopic(name=f"{group}-counts-changelog", configs=(("cleanup.policy", "compact"),)),
                    InternalTopic(name=f"foreign-{group}", configs=(("cleanup.policy", "compact"),)),
                ),
            ),
        )
    )


class Worker:
    """A member that owns what it is given and processes nothing."""

    def __init__(self, servers: str, shape: Topology, group: str, client_id: str = "worker") -> None:
        self.settled = threading.Event()
        self._over = threading.Event()
        self.member = StreamsMember(
            group,
            shape,
            bootstrap_servers=servers,
            client_id=client_id,
            heartbeat_max_interval_ms=100,
        )
        self._thread = threading.Thread(target=self._obey, daemon=True)
        self._thread.start()

    def _obey(self) -> None:
        while not self._over.is_set():
            for change in self.member.changes(timeout=0.05):
                self.member.acknowledge(change)

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)
        self.member.close()


@contextmanager
def members(admin: Admin, group: str, source: str, count: int) -> Iterator[list[Worker]]:
    """So many members; when they have settled."""
    workers: list[Worker] = []
    try:
        workers += [
            Worker(admin.client.bootstrap_servers, topology(group, source), group, f"worker-{number}")
            for number in range(count)
        ]
        wait_until(lambda: is_settled(admin, group, count))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def is_settled(admin: Admin, group: str, count: int) -> bool:
    described = admin.try_describe_streams_groups([group]).done.get(group)
    return (
        described is not None
        and (described.state, len(described.members)) == ("Stable", count)
        and all(member.assignment.active for member in described.members)
    )
