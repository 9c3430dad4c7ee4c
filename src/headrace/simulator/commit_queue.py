"""The commits of a simulated consumer: one after the other, each with the identity of the moment in which it was made,
and once more where the client does so (`client.membership.commit_identity`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from headrace.client.membership.group_events import GroupIdentity, TopicPartition, identity_to_retry_with
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.simulator.broker_answers import CommitRefused
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import Connection
from headrace.simulator.simulated_broker import SimulatedBroker

__all__ = ["CommitQueue", "commit_request"]

API_VERSION = 9
RETRY_MS = 150
# Longer than the longest absence of the broker (2.5 s) and a request timeout (2 s), shorter than the calm: commits of
# the chaos have ended when the calm world is judged.
API_TIMEOUT_MS = 8_000


class CommitQueue:
    """Mutable: what waits, and whether one is out."""

    def __init__(
        self,
        connection: Connection,
        *,
        group_id: str,
        name: str,
        broker: SimulatedBroker,
        events: EventQueue,
        identity: Callable[[], GroupIdentity],
        when_running: Callable[[Callable[[], None]], None],
        note: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._group_id = group_id
        self._name = name
        self._broker = broker
        self._events = events
        self._identity = identity
        self._when_running = when_running
        self._note = note
        self._waiting: deque[tuple[dict[TopicPartition, int], GroupIdentity | None, Callable[[], None]]] = deque()
        self._is_out = False

    def close(self) -> None:
        """Drop all requests of a killed process."""
        self._connection.close()

    def put(self, offsets: dict[TopicPartition, int], done: Callable[[], None] | None = None) -> None:
        """`done`: the application waits for it, and it is made when its turn has come; None: it does not wait, and it
        is made now."""
        if done is None:
            # commitAsync: the identity is that of the call.
            self._waiting.append((offsets, self._identity(), _nothing))
        else:
            # commitSync: the identity is that of the moment when the request is sent; the caller waits for it.
            self._waiting.append((offsets, None, done))
        self._go_on()

    def _go_on(self) -> None:
        # One commit at a time: two in flight could arrive in the wrong order over a broken connection, and the older
        # offsets would win.
        if self._is_out or not self._waiting:
            return
        self._is_out = True
        offsets, identity, done = self._waiting.popleft()

        def over() -> None:
            self._is_out = False
            done()
            self._go_on()

        if offsets:
            deadline_ms = self._events.now_ms + API_TIMEOUT_MS
            self._send(offsets, identity or self._identity(), over, deadline_ms)
        else:
            over()

    def _send(
        self, offsets: Mapping[TopicPartition, int], identity: GroupIdentity, over: Callable[[], None], deadline_ms: int
    ) -> None:
        member_id, instance_id = (identity.member_id, identity.instance_id) if identity.is_member else ("", None)
        request = commit_request(self._group_id, member_id, identity.generation, offsets, instance_id)

        def again(retry: GroupIdentity) -> None:
            self._events.after(
                RETRY_MS, lambda: self._when_running(lambda: self._send(offsets, retry, over, deadline_ms))
            )

        def answered(response: object) -> None:
            code = _refused(response)
            # 1. Success, or out of time: the next commit follows in both cases.
            if code is ErrorCode.none:
                over()
                return
            self._note(f"has a commit refused: {code.name}")
            if self._events.now_ms >= deadline_ms:
                over()
            # 2. The coordinator is loading or has moved: the same request, after the backoff.
            elif is_retriable(code):
                again(identity)
            # 3. A stale epoch: once more, without a delay, if the member has received a newer one meanwhile (KIP-848,
            #    `identity_to_retry_with`). Any other error is final.
            elif (retry := identity_to_retry_with(identity, self._identity(), code)) is not None:
                self._send(offsets, retry, over, deadline_ms)
            else:
                over()

        def failed() -> None:
            if self._events.now_ms >= deadline_ms:
                over()
            else:
                again(identity)

        self._connection.call(
            lambda answer: self._broker.serve(request, self._name, answer, api_version=API_VERSION),
            answered=lambda response: self._when_running(lambda: answered(response)),
            failed=lambda: self._when_running(failed),
        )


def _nothing() -> None:
    """Do nothing: no caller waits for this commit."""


def _refused(response: object) -> ErrorCode:
    if isinstance(response, CommitRefused):
        return response.code
    assert isinstance(response, m.offset_commit_response.OffsetCommitResponse)
    codes = (each.error_code for topic in response.topics for each in topic.partitions)
    return next((code for code in codes if code != ErrorCode.none), ErrorCode.none)


def commit_request(
    group_id: str, member_id: str, epoch: int, offsets: Mapping[TopicPartition, int], instance_id: str | None = None
) -> object:
    """Build an OffsetCommit request with topic names."""
    r = m.offset_commit_request
    by_topic: dict[str, list[r.OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append(
            r.OffsetCommitRequestPartition(
                partition_index=i32(partition), committed_offset=i64(offset), committed_metadata=""
            )
        )
    return r.OffsetCommitRequest(
        group_id=GroupId(group_id),
        generation_id_or_member_epoch=i32(epoch),
        member_id=member_id,
        group_instance_id=instance_id,
        topics=tuple(
            r.OffsetCommitRequestTopic(name=TopicName(topic), partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )
