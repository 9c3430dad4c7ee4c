"""One instance of a small stateless application on `StreamsMember`: reads its tasks' partitions, notes each record.

What a runtime must do when tasks move, and no more: give back what was revoked (stop, commit, acknowledge), take what
came (read the committed position, go on there), drop what was lost. Used by tests and by `benchmarks/moved_task_pause`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i64

from headrace.client.connection import ConnectionLost
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.streams_member import StreamsMember
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import decode_records

__all__ = ["SUBTOPOLOGY", "TaskLoop"]

SUBTOPOLOGY = "0"
MAX_WAIT_MS = 100

Note = Callable[[int, int, int], None]
"""(partition, offset, monotonic nanoseconds) of a record that was processed."""


class TaskLoop(threading.Thread):
    """Mutable: started by `start`, ended by `stop`, which leaves the group."""

    def __init__(self, name: str, bootstrap_servers: str, group: str, topic: str, note: Note) -> None:
        super().__init__(name=name, daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self._group = group
        self._topic = topic
        self._note = note
        self._stopping = threading.Event()
        self._client = NetworkClient(bootstrap_servers, client_id=name)
        self._snapshot = AssignmentSnapshot(member_id="")
        self._positions: dict[int, int] = {}
        self.revoked: list[int] = []
        self.error: BaseException | None = None

    @property
    def tasks(self) -> tuple[int, ...]:
        """The partitions it works on."""
        return tuple(sorted(self._positions))

    def stop(self) -> None:
        """Commits, leaves, and waits until both are done."""
        self._stopping.set()
        self.join(timeout=30)
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        topology = Topology(subtopologies=(Subtopology(subtopology_id=SUBTOPOLOGY, source_topics=(self._topic,)),))
        member = StreamsMember(
            self._group, topology, bootstrap_servers=self._bootstrap_servers, client_id=self.name, early_look=True
        )
        try:
            while not self._stopping.is_set():
                for event in member.changes(0.0 if self._positions else 0.1):
                    self._take(member, event)
                if self._positions:
                    self._work()
            self._commit(self._positions)
        except BaseException as error:
            self.error = error
        finally:
            self._positions = {}
            member.close()
            self._client.close()

    def _take(self, member: StreamsMember, event: e.MemberEvent) -> None:
        match event:
            case e.Assigned(assignment=assignment) | e.AssignmentChanged(assignment=assignment):
                wanted = assignment.active.get(SUBTOPOLOGY, ())
                revoked = [partition for partition in self._positions if partition not in wanted]
                self._commit(revoked)
                for partition in revoked:
                    del self._positions[partition]
                self.revoked += revoked
                self._snapshot = assignment
                member.acknowledge(event)
                self._open([partition for partition in wanted if partition not in self._positions])
            case e.Lost():
                self._positions = {}
            case e.Fatal(error=error):
                raise error

    def _open(self, partitions: Iterable[int]) -> None:
        wanted = [(self._topic, partition) for partition in partitions]
        if wanted:
            committed = fetch_offsets(self._client, self._group, wanted)
            self._positions |= {partition: max(0, committed[topic, partition]) for topic, partition in wanted}

    def _commit(self, partitions: Iterable[int]) -> None:
        offsets = {(self._topic, partition): self._positions[partition] for partition in partitions}
        commit_offsets(
            self._client,
            self._group,
            offsets,
            member_id=self._snapshot.member_id,
            member_epoch=self._snapshot.member_epoch,
        )

    def _work(self) -> None:
        leaders = self._client.leaders((self._topic, partition) for partition in self._positions)
        topic_id = self._client.metadata([self._topic]).topics[self._topic].topic_id
        for node in sorted(set(leaders.values())):
            mine = [partition for partition in self._positions if leaders[self._topic, partition] == node]
            try:
                response = self._client.attempt(self._fetch(topic_id, mine), node=node)
            except ConnectionLost:
                time.sleep(0.05)
                continue
            for topic in response.responses:
                for entry in topic.partitions:
                    assert entry.error_code == ErrorCode.none, entry.error_code
                    self._process(int(entry.partition_index), entry.records or b"")

    def _process(self, partition: int, data: bytes) -> None:
        for record in decode_records(data, start_offset=self._positions[partition]):
            self._note(partition, record.offset, time.monotonic_ns())
            self._positions[partition] = record.offset + 1

    def _fetch(self, topic_id: object, partitions: Iterable[int]) -> RequestMessage:
        request = m.fetch_request
        return request.FetchRequest(
            max_wait=from_ms(MAX_WAIT_MS),
            min_bytes=i32(1),
            max_bytes=i32(1 << 20),
            isolation_level=i8(0),
            topics=(
                request.FetchTopic(
                    topic=TopicName(self._topic),
                    topic_id=topic_id,  # type: ignore[arg-type]
                    partitions=tuple(
                        request.FetchPartition(
                            partition=i32(partition),
                            fetch_offset=i64(self._positions[partition]),
                            partition_max_bytes=i32(1 << 20),
                        )
                        for partition in partitions
                    ),
                ),
            ),
        )
