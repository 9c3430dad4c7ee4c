"""Blocking client of a Kafka cluster: connections, retries, metadata, coordinators. Newest kio classes in and out.

- A request whose connection breaks is sent again after a backoff, until the API's time is up; then `CannotConnect`. The
  first contact has a shorter time, so that a wrong address is reported within seconds; a server that is not Kafka is
  reported at once. Error codes in responses are the caller's, except where a method handles them.
- Calls are serialised by a lock. To wait for two things at once, use two clients. `start` takes no lock.
- After a fork the child opens connections of its own, and a pickled client arrives without any: sockets and their
  pending responses belong to one process.

Blocking rather than asyncio: Spark's driver and workers, the guardian and the command line are blocking programs, and a
few large fetches gain nothing from a loop. `call_all` and `start` pipeline requests where concurrency matters.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, cast

from kio.schema.types import TopicName
from kio.static.primitive import i8

from headrace.client.broker_errors import COORDINATOR_MOVED, missing_topic, refusal
from headrace.client.cluster_metadata import (
    ClusterMetadata,
    MetadataCache,
    parse_bootstrap_servers,
    read_metadata,
    unreachable,
)
from headrace.client.connection import (
    BrokerAddress,
    Connection,
    ConnectionLost,
    NotKafka,
    PendingReply,
    RequestTimedOut,
    Response,
)
from headrace.client.deadline import Backoff, Deadline
from headrace.client.security import PLAINTEXT, ClientSecurity
from headrace.errors import CannotConnect
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey, VersionRange
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage

__all__ = ["NetworkClient"]

BOOTSTRAP_TIMEOUT_MS: Final = 5_000
SHORT_ATTEMPT_S: Final = 1.0  # a loaded broker may need as long to accept a connection or to close it
METADATA_MAX_AGE_S: Final = 300.0
GROUP_KEY_TYPE: Final = 0


class NetworkClient:
    """Open connections, cached metadata and coordinators of one cluster. Mutable. A context manager."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "headrace",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS,
        security: ClientSecurity | Mapping[str, object] = PLAINTEXT,
    ) -> None:
        """Args:
        bootstrap_servers: `host:port,host:port`, or a sequence.
        client_id: The name of this client in the broker's logs, metrics and quotas.
        request_timeout_ms: The time of one request.
        api_timeout_ms: The time of one call with its retries.
        bootstrap_timeout_ms: The time for the first contact.
        security: How brokers are reached; or client settings (`security.protocol`, `ssl.*`, `sasl.*`).
        """
        self._security = security if isinstance(security, ClientSecurity) else ClientSecurity.from_settings(security)
        self._settings: dict[str, object] = {
            "bootstrap_servers": bootstrap_servers if isinstance(bootstrap_servers, str) else tuple(bootstrap_servers),
            "client_id": client_id,
            "request_timeout_ms": request_timeout_ms,
            "api_timeout_ms": api_timeout_ms,
            "bootstrap_timeout_ms": bootstrap_timeout_ms,
            "security": self._security,
        }
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.api_timeout_ms = api_timeout_ms
        self.reconnects = 0  # how often a connection in use broke off and was opened again: a broker may have been away
        self._bootstrap_timeout_ms = bootstrap_timeout_ms
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._connections: dict[BrokerAddress, Connection] = {}
        self._cache = MetadataCache()
        self._coordinators: dict[str, int] = {}
        self._ever_connected = False
        self._ended = threading.Event()
        self._closes = 0  # calls of `close`

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self._settings,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, also those that another thread is opening; a later call opens new ones."""
        self._own_process()
        with self._lock:
            self._closes += 1
            for connection in tuple(self._connections.values()):
                connection.close()
            self._connections.clear()

    def end(self) -> None:
        """Fail requests in flight with CannotConnect at once and retry nothing any more. From another thread."""
        self._ended.set()
        for connection in tuple(self._connections.values()):
            connection.interrupt()

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap addresses as `host:port,host:port`."""
        return ",".join(str(address) for address in self._bootstrap)

    # Requests.

    def call(self, request: RequestMessage, *, node: int | None = None, timeout_ms: float | None = None) -> Response:
        """Return the response of `node` (None: any broker).

        Raises:
            CannotConnect: No response until the timeout.
            BrokerError: `unsupported-api`.
        """
        self._own_process()
        with self._lock:
            deadline = Deadline.after_ms(self.api_timeout_ms if timeout_ms is None else timeout_ms)
            return self._retrying(deadline, node, lambda within: self._exchange(request, node, within))

    def attempt(self, request: RequestMessage, *, node: int | None = None, timeout_ms: float | None = None) -> Response:
        """Like `call` without retries, for callers with a schedule of their own.

        Raises:
            ConnectionLost: The connection broke, or the time was up.
        """
        self._own_process()
        with self._lock:
            within_ms = self.request_timeout_ms if timeout_ms is None else min(timeout_ms, self.request_timeout_ms)
            return self._exchange(request, node, Deadline.after_ms(within_ms))

    def call_all(
        self, requests: Iterable[tuple[int | None, RequestMessage]], *, timeout_ms: float | None = None
    ) -> list[Response]:
        """Send all requests at the same time and return the responses in their order."""
        self._own_process()
        with self._lock:
            deadline = Deadline.after_ms(self.api_timeout_ms if timeout_ms is None else timeout_ms)
            # 1. Send everything first. Without a connection yet nothing is sent here: `_retrying` then applies the
            #    bootstrap timeout to the first request instead of once per request.
            listed = list(requests)
            started = [self._started(request, node, deadline) for node, request in listed]
            return [
                # 2. Collect in order. A request whose connection broke is repeated alone; the others' responses are
                #    kept.
                self._finished(pending, request, node, deadline)
                for pending, (node, request) in zip(started, listed, strict=True)
            ]

    def attempt_all(
        self, requests: Iterable[tuple[int, RequestMessage]], *, timeout_ms: float | None = None
    ) -> list[Response]:
        """Like `call_all` without retries: the ConnectionLost stands in the place of a missing response.

        For requests to leaders, which may have moved: trying the same broker again would mean trying a dead one.
        """
        self._own_process()
        with self._lock:
            started: list[PendingReply | ConnectionLost] = []
            within_ms = self.request_timeout_ms if timeout_ms is None else min(timeout_ms, self.request_timeout_ms)
            for node, request in requests:
                within = Deadline.after_ms(within_ms)
                try:
                    started.append(self._connection(node, within).send(request, within))
                except ConnectionLost as error:
                    self._cache.brokers.pop(node, None)  # it may have come back elsewhere
                    started.append(error)
            return [self._result_or_error(pending) for pending in started]

    def call_coordinator(
        self,
        group_id: str,
        request: RequestMessage,
        error_codes: Callable[[Response], Iterable[ErrorCode]],
        *,
        timeout_ms: float | None = None,
    ) -> Response:
        """Return the response of a group's coordinator.

        Args:
            group_id: The group.
            request: The request.
            error_codes: Returns the codes of a response; while they mean that the coordinator moved or loads, the
                request is repeated.
            timeout_ms: The time for everything; the API timeout if not given.
        """
        deadline = Deadline.after_ms(self.api_timeout_ms if timeout_ms is None else timeout_ms)
        backoff = Backoff()
        while True:
            node = self.coordinator_for(group_id, timeout_ms=deadline.remaining_s * 1000)
            try:
                response = self.attempt(request, node=node, timeout_ms=deadline.remaining_s * 1000)
            except ConnectionLost as error:
                self.forget_coordinator(group_id)
                if deadline.passed:
                    raise self._cannot_connect(error, self.api_timeout_ms) from error
            else:
                codes = frozenset(error_codes(response))
                # Only these codes are handled here, because they mean the same for every request; all others are the
                # caller's. A coordinator that loads stays the coordinator, so it is not looked up again.
                if not codes & {*COORDINATOR_MOVED, ErrorCode.coordinator_load_in_progress} or deadline.passed:
                    return response
                if codes & COORDINATOR_MOVED:
                    self.forget_coordinator(group_id)
            backoff.pause(deadline)

    def start(
        self,
        request: RequestMessage,
        *,
        node: int | None = None,
        timeout_ms: float | None = None,
        at_most: int | None = None,
    ) -> PendingReply:
        """Send a request without waiting; `.result()` waits.

        Args:
            request: The request.
            node: None: any broker.
            timeout_ms: The time of the request.
            at_most: The highest API version to use, where a newer one has another meaning.

        Raises:
            ConnectionLost: The connection broke; nothing is retried.
        """
        self._own_process()
        deadline = Deadline.after_ms(self.request_timeout_ms if timeout_ms is None else timeout_ms)
        within = deadline.earlier(self.request_timeout_ms)  # to connect; the answer may take longer
        return self._connection(node, within).send(request, deadline, at_most)

    def finish(self, pending: PendingReply) -> Response:
        """Wait for the response to a request of `start`, and update the known brokers from it.

        Raises:
            ConnectionLost: The connection broke.
            MalformedResponse: The response cannot be decoded.
        """
        response = pending.result()
        self._update_brokers(response)
        return response

    def supported_range(self, api_key: ApiKey, node: int | None = None) -> VersionRange | None:
        """Return the versions of an API that both sides support; None if the broker does not offer it."""
        self._own_process()
        with self._lock:
            deadline = Deadline.after_ms(self.api_timeout_ms)
            found = self._retrying(deadline, node, lambda within: self._connection(node, within).version_range(api_key))
            return cast("VersionRange | None", found)

    # Metadata.

    def metadata(
        self, topics: Iterable[str] | None = None, *, refresh: bool = False, timeout_ms: float | None = None
    ) -> ClusterMetadata:
        """Return the cluster with the named topics. Creates no topics; those that do not exist are left out.

        Args:
            topics: None: all topics, never from the cache; empty: only the brokers.
            refresh: Ignore the cache.
            timeout_ms: The time for everything.
        """
        wanted = None if topics is None else list(dict.fromkeys(topics))
        if wanted is not None and not refresh:
            known = self._cache.find(wanted, METADATA_MAX_AGE_S)
            if known is not None:
                return known
        request = m.metadata_request.MetadataRequest(
            topics=None
            if wanted is None
            else tuple(m.metadata_request.MetadataRequestTopic(topic_id=None, name=TopicName(n)) for n in wanted),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        read = read_metadata(self.call(request, timeout_ms=timeout_ms))
        self._cache.replace(read, wanted)
        return self._cache.snapshot(dict(read.topics), read.refused)

    def known_topics(
        self, names: Iterable[str], *, timeout_ms: float | None = None, refresh: bool = False
    ) -> ClusterMetadata:
        """Return metadata with every named topic, waiting a short time for topics that were just created.

        Raises:
            BrokerError: `topic-missing`, `not-authorized`.
        """
        wanted = list(dict.fromkeys(names))
        deadline = Deadline.after_ms(self.api_timeout_ms if timeout_ms is None else timeout_ms)
        patience = deadline.earlier(self._bootstrap_timeout_ms)
        backoff = Backoff()
        while True:
            cluster = self.metadata(wanted, refresh=refresh, timeout_ms=max(deadline.remaining_s, 0.1) * 1000)
            missing = [name for name in wanted if name not in cluster.topics]
            if not missing:
                return cluster
            code = cluster.refused.get(missing[0], ErrorCode.unknown_topic_or_partition)
            # A topic that was just created reaches the metadata of other brokers after a moment, so
            # UNKNOWN_TOPIC_OR_PARTITION is retried; but only for the bootstrap timeout, because usually the name is
            # wrong.
            over = patience if code == ErrorCode.unknown_topic_or_partition else deadline
            if over.passed or not is_retriable(code):
                raise missing_topic(code, missing[0])
            refresh = True
            backoff.pause(over)

    def leaders(
        self, topic_partitions: Iterable[tuple[str, int]], *, timeout_ms: float | None = None, refresh: bool = False
    ) -> dict[tuple[str, int], int]:
        """Return the leader of each partition, waiting for elections and for topics that were just created.

        Raises:
            BrokerError: `topic-missing` for a topic or partition that does not exist.
        """
        wanted = list(dict.fromkeys(topic_partitions))
        deadline = Deadline.after_ms(self.api_timeout_ms if timeout_ms is None else timeout_ms)
        patience = deadline.earlier(self._bootstrap_timeout_ms)
        backoff = Backoff()
        while True:
            cluster = self.known_topics(
                (topic for topic, _ in wanted), timeout_ms=deadline.remaining_s * 1000, refresh=refresh
            )
            found = {key: cluster.leader(*key) for key in wanted}
            missing = [key for key, leader in found.items() if leader is None]
            if not missing:
                return {key: leader for key, leader in found.items() if leader is not None}
            topic, partition = missing[0]
            # An election may take as long as the API timeout. A partition that does not exist is like a topic that does
            # not.
            exists = partition in cluster.topics[topic].partitions
            if (deadline if exists else patience).passed:
                code = ErrorCode.leader_not_available if exists else ErrorCode.unknown_topic_or_partition
                raise missing_topic(code, topic, partition)
            refresh = True
            backoff.pause(deadline)

    def coordinator_for(self, group_id: str, *, timeout_ms: float | None = None) -> int:
        """Return the node that coordinates a group; cached until `forget_coordinator`."""
        known = self._coordinators.get(group_id)
        if known is not None:
            return known
        deadline = Deadline.after_ms(self.api_timeout_ms if timeout_ms is None else timeout_ms)
        backoff = Backoff()
        request = m.find_coordinator_request.FindCoordinatorRequest(
            key_type=i8(GROUP_KEY_TYPE), coordinator_keys=(group_id,)
        )
        while True:
            (found,) = self.call(request, timeout_ms=max(deadline.remaining_s, 0.1) * 1000).coordinators
            if found.error_code == ErrorCode.none:
                self._coordinators[group_id] = int(found.node_id)
                return int(found.node_id)
            if not is_retriable(found.error_code) or deadline.passed:
                raise refusal(
                    found.error_code,
                    f"to name the coordinator of {group_id}",
                    api="FindCoordinator",
                    message=found.error_message,
                    group_id=group_id,
                )
            backoff.pause(deadline)

    def forget_coordinator(self, group_id: str) -> None:
        """Look the coordinator up again with the next `coordinator_for`."""
        self._coordinators.pop(group_id, None)

    # Connections.

    def _retrying(self, deadline: Deadline, node: int | None, attempt: Callable[[Deadline], Response]) -> Response:
        # 1. Until the first connection the bootstrap timeout applies: a wrong address is the likeliest cause then, and
        #    a user should not wait a minute for it. Afterwards a broker is restarting, and the API timeout applies.
        # 2. NotKafka is final: waiting does not turn another server into a broker.
        # 3. A broker may come back at another address, so its entry is dropped and metadata is read again.
        began = time.monotonic()
        backoff = Backoff()
        before: ConnectionLost | None = None
        while True:
            overall = (
                deadline
                if self._ever_connected
                else deadline.earlier(self._bootstrap_timeout_ms - (time.monotonic() - began) * 1000)
            )
            left_s = overall.remaining_s
            try:
                return attempt(overall.earlier(self.request_timeout_ms))
            except NotKafka as error:
                raise self._cannot_connect(error, None) from error
            except ConnectionLost as error:
                if node is not None:
                    self._cache.brokers.pop(node, None)  # it may have come back elsewhere
                if overall.passed or self._ended.is_set():
                    # 4. An attempt that the deadline cut short reports only a timeout; the one before has the reason.
                    if before is not None and isinstance(error, RequestTimedOut) and left_s < SHORT_ATTEMPT_S:
                        error = before
                    raise self._cannot_connect(error, (time.monotonic() - began) * 1000) from error
                before = error
            backoff.pause(overall, self._ended)

    def _exchange(self, request: RequestMessage, node: int | None, deadline: Deadline) -> Response:
        response = self._connection(node, deadline).send(request, deadline).result()
        self._update_brokers(response)
        return response

    def _started(self, request: RequestMessage, node: int | None, deadline: Deadline) -> PendingReply | None:
        if not self._ever_connected:
            return None
        within = deadline.earlier(self.request_timeout_ms)
        try:
            return self._connection(node, within).send(request, within)
        except ConnectionLost:
            return None

    def _result_or_error(self, pending: PendingReply | ConnectionLost) -> Response:
        try:
            return pending if isinstance(pending, ConnectionLost) else pending.result()
        except ConnectionLost as error:
            return error

    def _finished(
        self, pending: PendingReply | None, request: RequestMessage, node: int | None, deadline: Deadline
    ) -> Response:
        if pending is not None:
            try:
                return pending.result()
            except ConnectionLost:
                pass
        return self._retrying(deadline, node, lambda within: self._exchange(request, node, within))

    def _connection(self, node: int | None, deadline: Deadline) -> Connection:
        if node is None:
            return self._any_connection(deadline)
        address = self._cache.brokers.get(node)
        if address is None:
            self._refresh_brokers(deadline)
            address = self._cache.brokers.get(node)
        if address is None:
            raise ConnectionLost(BrokerAddress(f"node {node}", 0), "the cluster has no such broker at the moment")
        return self._open(address, deadline)

    def _any_connection(self, deadline: Deadline) -> Connection:
        for connection in self._connections.values():
            if not connection.closed:
                return connection
        failures: list[ConnectionLost] = []
        # Bootstrap addresses first: they are stable names, while advertised addresses may have changed while all were
        # away.
        for address in dict.fromkeys((*self._bootstrap, *self._cache.brokers.values())):
            try:
                return self._open(address, deadline)
            except ConnectionLost as error:
                failures.append(error)
        # An address that merely does not answer yet is worth another try; one that is no broker is not.
        raise next((error for error in failures if not isinstance(error, NotKafka)), failures[0])

    def _open(self, address: BrokerAddress, deadline: Deadline) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            # A broker that was away may have left transaction markers out; `transaction_resolution` reads this counter.
            self.reconnects += connection is not None and connection.broke_off
            closes = self._closes
            connection = Connection(address, client_id=self.client_id, deadline=deadline, security=self._security)
            self._connections[address] = connection
            # `start` holds no lock, so `close` in another thread does not wait for a slow handshake. Nothing else
            # would close this connection.
            if self._closes != closes:
                connection.close()
                raise ConnectionLost(address, "the client was closed while it connected")
            self._ever_connected = True
        return connection

    def _refresh_brokers(self, deadline: Deadline) -> None:
        request = m.metadata_request.MetadataRequest(
            topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        self._cache.replace(read_metadata(self._any_connection(deadline).send(request, deadline).result()), [])

    def _update_brokers(self, response: object) -> None:
        if isinstance(response, m.find_coordinator_response.FindCoordinatorResponse):
            for found in response.coordinators:
                if found.error_code == ErrorCode.none:
                    self._cache.brokers[int(found.node_id)] = BrokerAddress(found.host, int(found.port))

    def _own_process(self) -> None:
        # After a fork both processes share the sockets, and each would read the other's responses. The child drops its
        # copies of the descriptors without a shutdown, which would end the parent's connections as well.
        if self._process != os.getpid():
            inherited = self._connections.values()
            self._begin()
            for connection in inherited:
                connection.abandon()

    def unreachable(self, error: ConnectionLost) -> CannotConnect:
        """Return the error for a broker that did not answer until the API timeout."""
        return self._cannot_connect(error, self.api_timeout_ms)

    def _cannot_connect(self, error: ConnectionLost, tried_ms: float | None) -> CannotConnect:
        return unreachable(error, self._bootstrap, tried_ms)


def _rebuild(settings: dict[str, Any]) -> NetworkClient:
    return NetworkClient(**settings)
