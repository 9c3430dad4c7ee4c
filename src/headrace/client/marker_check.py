"""The check that transactions which ended have their markers everywhere, before their ids are used again.

A partition on a broker to which this client has no connection may lose its leader at the moment at which its marker is
due, and Apache Kafka leaves the marker out (KAFKA-20734). No connection breaks, so nothing else shows it. The check
asks the coordinators of ended transactions, in one round trip, for their states and for the leaders of the written
partitions, and compares the leaders with the view from before the transactions ended (`partition_leaders`).

The questions are sent before a micro-batch and their answers read before the next one (`ask`), so that nothing waits
for them: one Metadata request per coordinator, one DescribeTransactions per transaction. None where all replicas are on
the coordinator itself: its connection is in use then, and breaks when it goes away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.client.cluster_metadata import read_metadata
from headrace.client.connection import ConnectionLost, PendingReply
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.client.partition_leaders import LeaderView, leader_view, metadata_request, read_leader_views
from headrace.client.transaction_rules import refused
from headrace.client.transactions import describe_request
from headrace.protocol.error_codes import ErrorCode, kafka_name

__all__ = ["MarkerCheck", "compare_views"]

log = logging.getLogger("headrace.client")
VIEW_MAX_AGE_S: Final = 300.0  # replicas are moved and added at any time
COMPLETE: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
UNDER_WAY: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


def compare_views(before: LeaderView, after: LeaderView) -> str | None:
    """The reason for doubt between two views of one coordinator, None where no marker can have been left out."""
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
    """Questions that were sent: the state of each id, then the leaders as each node knows them."""

    states: tuple[tuple[str, PendingReply | ConnectionLost], ...]
    leaders: tuple[tuple[int, PendingReply | ConnectionLost], ...]


class MarkerCheck:
    """Mutable: the views of coordinators, and the ids whose last transaction ended without a check. One thread's."""

    def __init__(self, client: NetworkClient, topics: Iterable[str], group_id: str) -> None:
        self._client, self._topics, self._group_id = client, tuple(topics), group_id
        self._views: dict[int, tuple[LeaderView, float]] = {}  # by coordinator, with the time of reading
        self._coordinators: dict[str, int] = {}  # of ids whose transaction may be open, as it was at its beginning
        self._ended: set[str] = set()
        self._asked: _Asked | None = None

    def begin(self, coordinators: Mapping[str, int]) -> None:
        """Transactions of these ids are about to begin. Raises CannotConnect."""
        oldest = time.monotonic() - VIEW_MAX_AGE_S
        missing = {node for node in coordinators.values() if node not in self._views}
        # A view that served for the skipping of checks may be outdated; the others are renewed by each check.
        missing |= {n for n in coordinators.values() if n in self._views and self._views[n][1] < oldest}
        if missing:
            read = read_leader_views(self._client, missing, self._topics, self._group_id)
            for node, view in read.items():
                known = self._views.get(node)
                if known is None or not self._ended_on(node):
                    self._views[node] = view, time.monotonic()
        self._coordinators |= coordinators

    def end(self, transactional_ids: Iterable[str]) -> None:
        """The transactions of these ids were committed or aborted; their markers are on the way."""
        for tid in transactional_ids:
            node = self._coordinators.get(tid)
            if node is not None and not self._is_alone(node):
                self._ended.add(tid)

    def clear(self) -> None:
        """The ids are not used any more."""
        self._views.clear()
        self._coordinators.clear()
        self._ended.clear()
        self._asked = None

    def ask(self) -> None:
        """Send the questions about what ended so far; the next `check` reads the answers."""
        if self._ended and self._asked is None:
            self._asked = self._send()

    def check(self, coordinators: Mapping[str, int], *, needed: Iterable[str] = (), timeout_ms: float) -> str | None:
        """The reason for doubt about ended transactions, or None.

        Waits until those of `needed` are complete; others that are not are looked at next time. `coordinators`: where
        the ended ids (`unchecked`) are coordinated now. Raises BrokerError (retriable) when the time is up.
        """
        wanted, deadline, backoff = set(needed), Deadline.after_ms(timeout_ms), Backoff(first_ms=2, highest_ms=200)
        while self._ended:
            moved = next((tid for tid in sorted(self._ended) if coordinators.get(tid) != self._coordinators[tid]), None)
            if moved is not None:
                return f"the coordinator of {moved} moved"
            asked, self._asked = self._asked or self._send(), None
            reason = self._hear(asked)
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
        # The states are asked for first: a broker answers the requests of one connection in order, so the leaders are
        # read after the transactions were complete.
        ids = sorted(self._ended)
        nodes = sorted({self._coordinators[tid] for tid in ids})
        request = metadata_request(self._topics)
        return _Asked(
            states=tuple((tid, self._start(describe_request(tid), self._coordinators[tid])) for tid in ids),
            leaders=tuple((node, self._start(request, node)) for node in nodes),
        )

    def _start(self, request: Any, node: int) -> PendingReply | ConnectionLost:
        try:
            return self._client.start(request, node=node)
        except ConnectionLost as error:
            return error

    def _hear(self, asked: _Asked) -> str | None:
        """The reason for doubt. Ids whose transaction is complete need no further check."""
        try:
            states = [(tid, self._answer(reply).transaction_states[0]) for tid, reply in asked.states]
            known = [(node, read_metadata(self._answer(reply))) for node, reply in asked.leaders]
        except ConnectionLost as error:
            return f"a coordinator did not answer ({error.why})"
        complete = set()
        for tid, found in states:
            if found.error_code == ErrorCode.none and found.transaction_state in UNDER_WAY:
                continue
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
        self._ended -= complete
        return None

    def _answer(self, reply: PendingReply | ConnectionLost) -> Any:
        if isinstance(reply, ConnectionLost):
            raise reply
        # The request's own time began before a micro-batch, which may take longer than a broker may.
        reply.deadline = Deadline.after_ms(self._client.request_timeout_ms)
        return reply.result()

    def _is_alone(self, node: int) -> bool:
        known = self._views.get(node)
        return known is not None and known[0].hosts <= {node}

    def _ended_on(self, node: int) -> bool:
        return any(self._coordinators[tid] == node for tid in self._ended)


def _name(where: tuple[str, int]) -> str:
    return f"{where[0]}-{where[1]}"
