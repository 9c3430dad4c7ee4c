"""Wait for input between two micro-batches: for new records, or for a wake-up by another thread.

A long-polling Fetch at each leader starts at the tasks' positions and is answered when a committed record exists there.
An idle application polls nothing else, and the first record starts a micro-batch at once. The fetched bytes are
discarded (the request asks for one byte, which returns one record batch); stages fetch for themselves. The watch has a
client of its own, because a broker answers the requests of one connection in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.client.cluster_metadata import ClusterMetadata
from headrace.client.connection import ConnectionLost, PendingReply
from headrace.client.fetch_loop import fetch_request
from headrace.client.network_client import NetworkClient
from headrace.client.selector import WakeupSignal, is_readable, wait_for
from headrace.errors import BrokerError, CannotConnect
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import MalformedResponse, RequestMessage
from headrace.spark.runtime.tasks import TopicPartition

__all__ = ["InputPoller"]

FETCH_WAIT_MS = 1_000  # of a Fetch without an answer; as often an idle application looks at the ends of its inputs
ANSWER_WAIT_MS = 5_000
POLL_S = 0.06
READ_COMMITTED = 1

Places = list[tuple[str, int, int]]  # topic, partition, offset


@dataclass(frozen=True, slots=True)
class _PendingFetch:
    places: Places
    reply: PendingReply


class InputPoller:
    """Long-polling watch for one thread. `wake` and `end` may be called by any thread."""

    def __init__(self, client: NetworkClient) -> None:
        self._client = client
        self._wake = WakeupSignal()
        self._pending: dict[int, _PendingFetch] = {}
        self._stale = False
        self.losses = 0  # how often a broker was found away
        self._announced: dict[TopicPartition, int] | None = None  # what records were said to lie behind

    def wake(self) -> None:
        """Wake the waiting thread. If no thread waits, the next wait returns at once."""
        self._wake.set()

    def wait(self, positions: Iterable[Mapping[TopicPartition, int]]) -> None:
        """Wait until a record may exist at one of the positions, `wake` is called, or one second has passed."""
        # 1. The same positions as those that the last answer announced records for: they were not processed (a batch is
        #    being repeated, tasks rest). A new Fetch would be answered at once and make this a busy loop.
        places = {where: offset for task in positions for where, offset in task.items()}
        if not places or places == self._announced:  # announced by the last call, and not processed
            self._announced = None
            wait_for((), self._wake, POLL_S if places else FETCH_WAIT_MS / 1000)
            return
        # 2. A partition without a leader, or a broker away: poll.
        if not self._ask(places):
            wait_for((), self._wake, POLL_S)
            return
        replies = {pending.reply: node for node, pending in self._pending.items()}
        # 3. Sleep in one selector until a response or a wake-up comes. Requests that are not answered stay open for the
        #    next call.
        ready = wait_for(replies, self._wake, (FETCH_WAIT_MS + ANSWER_WAIT_MS) / 1000)
        announced = [self._on_response(self._pending.pop(replies[reply]).reply) for reply in ready]
        self._announced = places if any(announced) else None

    def end(self) -> None:
        """Stop polling, and wake the waiting thread. Later waits return at once."""
        self._client.end()
        self._wake.set()

    def close(self) -> None:
        self._client.end()
        self._client.close()
        self._wake.close()

    def _ask(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Send a Fetch to each leader. Return whether every position is covered."""
        try:
            topics = {topic for topic, _ in positions}
            cluster = self._client.metadata(topics, refresh=self._stale, timeout_ms=ANSWER_WAIT_MS)
            self._stale = False
            by_node: dict[int, Places] = {}
            for (topic, partition), offset in sorted(positions.items()):
                node = cluster.leader(topic, partition)
                if node is None:
                    self._stale = True
                    return False
                by_node.setdefault(node, []).append((topic, partition, offset))
            # Requests for the same positions are kept, others are taken back.
            self._drop_outdated(by_node)
            for node in by_node.keys() - self._pending.keys():
                request = _request(by_node[node], cluster)
                reply = self._client.start(request, node=node, timeout_ms=FETCH_WAIT_MS + ANSWER_WAIT_MS)
                self._pending[node] = _PendingFetch(by_node[node], reply)
        except (ConnectionLost, CannotConnect, BrokerError) as error:
            # A lasting failure is reported by the lookup of end offsets.
            self._stale = True
            self.losses += not isinstance(error, BrokerError)
            return False
        return True

    def _drop_outdated(self, wanted: Mapping[int, Places]) -> None:
        """Drop pending requests for positions that are no longer needed: their answers would delay the next one."""
        for node, pending in list(self._pending.items()):
            if pending.places == wanted.get(node):
                continue
            del self._pending[node]
            if is_readable(pending.reply):
                self._on_response(pending.reply)
            else:
                # A Fetch cannot be cancelled (Kafka has no such request), and the broker would answer the next request
                # of this connection after it.
                pending.reply.connection.close()

    def _on_response(self, reply: PendingReply) -> bool:
        """Return whether a response announces records. An error counts as an announcement: the caller then asks for the
        ends.
        """
        try:
            answer = self._client.finish(reply)
        except (ConnectionLost, MalformedResponse):
            self._stale = True
            self.losses += 1
            return True
        entries = [entry for topic in answer.responses for entry in topic.partitions]
        refused = answer.error_code != ErrorCode.none or any(e.error_code != ErrorCode.none for e in entries)
        self._stale = self._stale or refused
        return refused or any(entry.records for entry in entries)


def _request(places: Places, cluster: ClusterMetadata) -> RequestMessage:
    return fetch_request(
        places,
        cluster,
        isolation_level=READ_COMMITTED,
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=1,
        max_partition_bytes=1,
    )
