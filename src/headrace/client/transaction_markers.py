"""Transaction markers: whether all were written, and which transaction is open in a partition.

A coordinator of Apache Kafka 4.1 to 4.4 leaves out the marker of a partition that has no leader in *its own* metadata
at that moment (KAFKA-20734). No connection of the client needs to break for that, so nothing else shows it. It can be
seen afterwards: a partition that lost its leader has a higher leader epoch once it has one again. Two rules make the
comparison sound:

1. Both views come from the broker that sends the markers. Metadata reaches brokers at different times, but what one
   broker knows only moves forward; a view from another broker may be newer than the coordinator's was.
2. The first view is read before the transaction ends, the second after the coordinator reports it as complete.

Equal views without a partition that lacks a leader then prove that no marker was left out. `MarkerCheck` compares
before an id is used again. Its requests are sent before a micro-batch and their responses read before the next one, so
that nothing waits for them: one Metadata request per coordinator, one DescribeTransactions per transaction. None is
sent where all replicas are on the coordinator itself: its connection is in use then, and breaks when it fails.

`find_open_transaction` names a transaction that holds back readers, for messages only (KIP-664).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i32

from headrace.client.broker_errors import missing_topic
from headrace.client.cluster_metadata import NO_LEADER, ClusterMetadata, read_metadata
from headrace.client.connection import ConnectionLost, PendingReply, Response
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.client.transaction_rules import refused
from headrace.client.transactions import describe_request
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.partitioner import partition_for_group

__all__ = [
    "GROUP_OFFSETS",
    "LeaderView",
    "MarkerCheck",
    "OpenTransaction",
    "compare_views",
    "find_open_transaction",
    "leader_view",
    "metadata_request",
    "no_leader",
    "read_leader_views",
]

TopicPartition = tuple[str, int]
GROUP_OFFSETS: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """Leader epochs of written partitions, as one broker knows them.

    Attributes:
        leaderless: Partitions without a leader.
        hosts: Nodes that have replicas of the partitions.
    """

    epochs: Mapping[TopicPartition, int]
    leaderless: tuple[TopicPartition, ...] = ()
    hosts: frozenset[int] = frozenset()


def leader_view(cluster: ClusterMetadata, group_id: str) -> LeaderView:
    """Reduce metadata to the partitions of its topics and the group's partition of `__consumer_offsets`.

    Topics that do not exist are left out, and so is `__consumer_offsets` for a user who may not describe it: its leader
    is the group's coordinator, whose connection is in use.
    """
    epochs: dict[TopicPartition, int] = {}
    leaderless: list[TopicPartition] = []
    hosts: set[int] = set()
    for name, topic in sorted(cluster.topics.items()):
        # Only the group's own partition of `__consumer_offsets` is written; the other 49 change leaders without any
        # meaning here.
        offsets = name == GROUP_OFFSETS and topic.partitions
        listed = [partition_for_group(group_id, len(topic.partitions))] if offsets else sorted(topic.partitions)
        for partition in listed:
            # -1 where the broker returned no epoch: equal to itself, so it proves nothing. Kafka has returned epochs
            # since Metadata v7 (KIP-320).
            epochs[name, partition] = topic.leader_epochs.get(partition, -1)
            hosts.update(topic.replicas.get(partition, ()))
            if topic.partitions[partition] == NO_LEADER:
                leaderless.append((name, partition))
    return LeaderView(epochs=epochs, leaderless=tuple(leaderless), hosts=frozenset(hosts))


def metadata_request(topics: Iterable[str]) -> m.metadata_request.MetadataRequest:
    """Return the Metadata request for `leader_view`."""
    return m.metadata_request.MetadataRequest(
        topics=tuple(
            m.metadata_request.MetadataRequestTopic(topic_id=None, name=TopicName(name))
            for name in dict.fromkeys((*topics, GROUP_OFFSETS))
        ),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def read_leader_views(
    client: NetworkClient,
    nodes: Iterable[int],
    topics: Iterable[str],
    group_id: str,
    *,
    timeout_ms: float | None = None,
) -> dict[int, LeaderView]:
    """Return each node's view, all requested at the same time.

    Raises:
        CannotConnect: A node did not answer.
    """
    asked = sorted(set(nodes))
    request = metadata_request(topics)
    views: dict[int, LeaderView] = {}
    answers = client.attempt_all([(node, request) for node in asked], timeout_ms=timeout_ms)
    for node, answer in zip(asked, answers, strict=True):
        if isinstance(answer, ConnectionLost):
            raise client.unreachable(answer)
        views[node] = leader_view(read_metadata(answer), group_id)
    return views


def no_leader(where: TopicPartition) -> BrokerError:
    """Return the retriable error for a written partition without a leader."""
    error = missing_topic(ErrorCode.leader_not_available, *where)
    error.facts["retriable"] = True
    return error


log = logging.getLogger("headrace.client")
VIEW_MAX_AGE_S: Final = 300.0  # replicas are moved and added at any time
COMPLETE: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
UNDER_WAY: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


def compare_views(before: LeaderView, after: LeaderView) -> str | None:
    """Return the reason for doubt between two views of one coordinator; None if no marker can have been left out."""
    # A partition without a leader at either time may have lacked one when its marker was due.
    if after.leaderless:
        return f"{_name(after.leaderless[0])} has no leader"
    if before.leaderless:
        return f"{_name(before.leaderless[0])} had no leader"
    for where in sorted(before.epochs.keys() | after.epochs.keys()):
        was, now = before.epochs.get(where), after.epochs.get(where)
        if was != now:
            return f"the leader epoch of {_name(where)} changed from {was} to {now}"
    return None


@dataclass(frozen=True, slots=True)
class _Asked:
    """Requests in flight: states of ids, then leaders as each node knows them."""

    states: tuple[tuple[str, PendingReply | ConnectionLost], ...]
    leaders: tuple[tuple[int, PendingReply | ConnectionLost], ...]


class MarkerCheck:
    """Views of coordinators, and ids whose last transaction ended without a check. Mutable; for one thread."""

    def __init__(self, client: NetworkClient, topics: Iterable[str], group_id: str) -> None:
        self._client, self._topics, self._group_id = client, tuple(topics), group_id
        self._views: dict[int, tuple[LeaderView, float]] = {}  # by coordinator, with the time of reading
        self._coordinators: dict[str, int] = {}  # of ids whose transaction may be open, as it was at its beginning
        self._ended: set[str] = set()
        self._asked: _Asked | None = None

    def begin(self, coordinators: Mapping[str, int]) -> None:
        """Note that transactions of these ids are about to begin, and read views that are missing or old.

        Raises:
            CannotConnect: A coordinator did not answer.
        """
        oldest = time.monotonic() - VIEW_MAX_AGE_S
        missing = {node for node in coordinators.values() if node not in self._views}
        # A view of a node that hosts all replicas is never renewed by checks, because none is needed; replicas may have
        # been added elsewhere since. All other views are renewed by each check.
        missing |= {n for n in coordinators.values() if n in self._views and self._views[n][1] < oldest}
        if missing:
            read = read_leader_views(self._client, missing, self._topics, self._group_id)
            for node, view in read.items():
                known = self._views.get(node)
                # A view may not be renewed while an ended transaction of this node is unchecked: its first view has to
                # be older than the end (rule 2).
                if known is None or not self._ended_on(node):
                    self._views[node] = view, time.monotonic()
        self._coordinators |= coordinators

    def end(self, transactional_ids: Iterable[str]) -> None:
        """Note that the transactions of these ids were committed or aborted; their markers are being written."""
        for tid in transactional_ids:
            node = self._coordinators.get(tid)
            # Nothing to check where the coordinator has all replicas itself: it sends the markers to itself, and its
            # failure breaks the connection that is in use.
            if node is not None and not self._is_alone(node):
                self._ended.add(tid)

    def clear(self) -> None:
        """Forget all ids: they are not used any more."""
        self._views.clear()
        self._coordinators.clear()
        self._ended.clear()
        self._asked = None

    def ask(self) -> None:
        """Send the requests about what ended so far; the next `check` reads the responses."""
        if self._ended and self._asked is None:
            self._asked = self._send()

    def check(self, coordinators: Mapping[str, int], *, needed: Iterable[str] = (), timeout_ms: float) -> str | None:
        """Return the reason for doubt about ended transactions, or None.

        Args:
            coordinators: Where the ended ids (`unchecked`) are coordinated now.
            needed: Ids whose transactions must be complete; others that are not are checked next time.
            timeout_ms: How long to wait for them.

        Raises:
            BrokerError: Retriable; the time is up.
        """
        # 1. A moved coordinator means that a broker was away, and that the markers were sent by another one than the
        #    first view is from: rule 1 no longer holds.
        # 2. Usually the responses to `ask` are here already and the transactions complete: one pass, no waiting.
        # 3. A transaction that is still ending is polled again, but only if its id is needed now.
        wanted, deadline, backoff = set(needed), Deadline.after_ms(timeout_ms), Backoff(first_ms=2, highest_ms=200)
        while self._ended:
            moved = next((tid for tid in sorted(self._ended) if coordinators.get(tid) != self._coordinators[tid]), None)
            if moved is not None:
                return f"the coordinator of {moved} moved"
            asked, self._asked = self._asked or self._send(), None
            reason = self._read_state(asked)
            left = self._ended & wanted
            if reason is not None or not left:
                return reason
            if deadline.passed:
                tid = min(left)
                code = ErrorCode.concurrent_transactions
                raise refused(code, f"the next transaction of {tid}", api="DescribeTransactions", transactional_id=tid)
            backoff.pause(deadline)
        return None

    @property
    def unchecked(self) -> frozenset[str]:
        """The ids whose last transaction ended without a check."""
        return frozenset(self._ended)

    def _send(self) -> _Asked:
        # The states are requested first: a broker answers the requests of one connection in order, so the leaders are
        # read after the transactions were complete (rule 2 of the module).
        ids = sorted(self._ended)
        nodes = sorted({self._coordinators[tid] for tid in ids})
        request = metadata_request(self._topics)
        return _Asked(
            states=tuple((tid, self._start(describe_request(tid), self._coordinators[tid])) for tid in ids),
            leaders=tuple((node, self._start(request, node)) for node in nodes),
        )

    def _start(self, request: RequestMessage, node: int) -> PendingReply | ConnectionLost:
        try:
            return self._client.start(request, node=node)
        except ConnectionLost as error:
            return error

    def _read_state(self, asked: _Asked) -> str | None:
        """Read the responses and return the reason for doubt; complete transactions need no further check."""
        try:
            states = [(tid, self._answer(reply).transaction_states[0]) for tid, reply in asked.states]
            known = [(node, read_metadata(self._answer(reply))) for node, reply in asked.leaders]
        except ConnectionLost as error:
            # Doubt, not an error: the caller resolves the ids, which waits for the coordinator.
            return f"a coordinator did not answer ({error.why})"
        complete = set()
        for tid, found in states:
            if found.error_code == ErrorCode.none and found.transaction_state in UNDER_WAY:
                continue
            # An id that expired at the coordinator had no open transaction; anything else but a complete state means
            # that the end was not applied as expected.
            expired = found.error_code == ErrorCode.transactional_id_not_found
            if not expired and (found.error_code != ErrorCode.none or found.transaction_state not in COMPLETE):
                why = found.transaction_state or kafka_name(found.error_code)
                return f"the transaction of {tid} is not over ({why})"
            complete.add(tid)
        for node, metadata in known:
            view = leader_view(metadata, self._group_id)
            reason = compare_views(self._views[node][0], view)
            if reason is not None:
                return reason
            self._views[node] = view, time.monotonic()
        # Only now: any reason above leaves all ids unchecked, and the caller resolves them together.
        self._ended -= complete
        return None

    def _answer(self, reply: PendingReply | ConnectionLost) -> Response:
        if isinstance(reply, ConnectionLost):
            raise reply
        # The request's deadline was set before a micro-batch, which may take longer than a request may.
        reply.deadline = Deadline.after_ms(self._client.request_timeout_ms)
        return reply.result()

    def _is_alone(self, node: int) -> bool:
        known = self._views.get(node)
        return known is not None and known[0].hosts <= {node}

    def _ended_on(self, node: int) -> bool:
        return any(self._coordinators[tid] == node for tid in self._ended)


def _name(where: tuple[str, int]) -> str:
    return f"{where[0]}-{where[1]}"


_IN_PROGRESS: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """The oldest open transaction of a partition; without id and state if no coordinator has its producer id."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    state: str | None = None

    @property
    def hangs(self) -> bool:
        """Whether its coordinator will not end it, because there it is over, or was never known."""
        return self.state not in _IN_PROGRESS

    def describe(self) -> str:
        """Return a clause that names the transaction."""
        of = f" of {self.transactional_id}" if self.transactional_id is not None else ""
        known = f"its coordinator has it as {self.state}" if self.state is not None else "no coordinator has it"
        return (
            f"a transaction{of} is open there since offset {self.start_offset} "
            f"(producer id {self.producer_id}, epoch {self.producer_epoch}; {known})"
        )

    def how_to_end(self) -> str:
        """Return the fix, as an imperative."""
        if not self.hangs:
            return "Wait: the transaction ends with its producer's commit, at the latest after transaction.timeout.ms."
        return (
            "If the transactional id belongs to a Headrace application, start the instance that used it again with its "
            "state directory: it ends the transaction as it was decided. Otherwise end it: kafka-transactions.sh "
            f"--bootstrap-server HOST:PORT abort --topic {self.topic} --partition {self.partition} "
            f"--start-offset {self.start_offset}"
        )


def find_open_transaction(client: NetworkClient, topic: str, partition: int) -> OpenTransaction | None:
    """Return the oldest open transaction of a partition; None if there is none, or brokers do not answer.

    DescribeProducers goes to the partition's leader, ListTransactions to every broker for the producer's id.
    """
    node = client.metadata([topic]).leader(topic, partition)
    request = m.describe_producers_request
    asked = request.DescribeProducersRequest(
        topics=(request.TopicRequest(name=TopicName(topic), partition_indexes=(i32(partition),)),)
    )
    (answer,) = [None] if node is None else client.attempt_all([(node, asked)])
    if answer is None or isinstance(answer, ConnectionLost):
        return None
    producers = [each for told in answer.topics for part in told.partitions for each in part.active_producers]
    # -1: the producer has no transaction open in this partition.
    holding = [each for each in producers if each.current_txn_start_offset >= 0]
    if not holding:
        return None
    # The last stable offset is the first offset of the oldest open transaction: that one holds readers back.
    oldest = min(holding, key=lambda each: int(each.current_txn_start_offset))
    transactional_id, state = _coordinated(client, int(oldest.producer_id)) or (None, None)
    return OpenTransaction(
        topic=topic,
        partition=partition,
        start_offset=int(oldest.current_txn_start_offset),
        producer_id=int(oldest.producer_id),
        producer_epoch=int(oldest.producer_epoch),
        transactional_id=transactional_id,
        state=state,
    )


def _coordinated(client: NetworkClient, producer_id: int) -> tuple[str, str] | None:
    """Return the transactional id that has the producer id now, and its state."""
    request = m.list_transactions_request.ListTransactionsRequest(
        state_filters=(), producer_id_filters=(ProducerId(producer_id),)
    )
    nodes = sorted(client.metadata(()).brokers)
    for answer in client.attempt_all([(node, request) for node in nodes]):
        if isinstance(answer, ConnectionLost) or answer.error_code != ErrorCode.none:
            continue
        for found in answer.transaction_states:
            return str(found.transactional_id), found.transaction_state
    return None
