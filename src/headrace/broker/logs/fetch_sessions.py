"""Fetch sessions (KIP-227): a client names its partitions once, then only what changes; so does the broker.

Pure but for the session ids' chance. Rules, as in Kafka's FetchSession.scala:
- epoch 0 asks for a new session, -1 for none; both end the session that is named. Any other epoch must be the next
  one of the session, or the client begins anew.
- An incremental answer holds a partition that has records, an error, or another high watermark or log start than
  the client was last note_sent. Partitions that gave records go to the end, so that each has its turn.
- The cache is bounded (`max.incremental.fetch.session.cache.slots`). A new session takes the place of one that was
  not used for two minutes, or of a smaller one that is older than that; else the client gets none, and lives with
  full answers.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

if TYPE_CHECKING:
    from headrace.storage.partition_log import PartitionLog

    Request = m.fetch_request.FetchRequest
    Response = m.fetch_response.FetchResponse
    Answered = list[tuple["AskedPartition", m.fetch_response.PartitionData]]

__all__ = ["AskedPartition", "FetchContext", "FetchSessions"]

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
LAST_EPOCH = 2**31 - 1
# 2 min, the default of `min.incremental.fetch.session.eviction.ms` in KIP-227.
MIN_EVICTION_MS = 120_000
_NOT_TOLD = -1


def next_epoch(epoch: int) -> int:
    """Return the epoch after this one; it wraps to 1, because 0 opens a session."""
    return 1 if epoch == LAST_EPOCH else epoch + 1


class AskedPartition:
    """Mutable: one partition of a fetch; in a session also what the client was last note_sent.

    `topic` is "" where the client speaks of ids, `topic_id` None where it speaks of names. `log` is the fetch
    handler's note of where the partition lies, good as long as the metadata has `metadata_version`.
    """

    __slots__ = (
        "asked",
        "high_watermark",
        "log",
        "log_start_offset",
        "metadata_version",
        "parked_as",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: TopicName, topic_id: UUID | None, asked: m.fetch_request.FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.asked = asked
        self.high_watermark = _NOT_TOLD
        self.log_start_offset = _NOT_TOLD
        self.log: PartitionLog | None = None
        self.metadata_version = -1
        self.parked_as = ("", -1)

    def may_have_changed(self, metadata_version: int) -> bool:
        """Whether an incremental response may have to include this partition."""
        log = self.log
        # Only attributes of the log, no look into it: this runs for every partition of every fetch.
        return (
            log is None
            or self.metadata_version != metadata_version
            or not (self.asked.fetch_offset == self.high_watermark == log.high_watermark)
            or log.log_start_offset != self.log_start_offset
            or not log.is_usable
        )

    def note_sent(self, data: m.fetch_response.PartitionData) -> bool:
        """Whether `data` belongs in an incremental answer; remembers it as sent."""
        # An error is repeated in every response while it lasts, as in Kafka.
        if data.error_code is not ErrorCode.none:
            self.high_watermark = _NOT_TOLD  # so that the end of the error is reported
            return True
        changed = self.high_watermark != data.high_watermark or self.log_start_offset != data.log_start_offset
        self.high_watermark, self.log_start_offset = data.high_watermark, data.log_start_offset
        return changed or bool(data.records) or data.diverging_epoch.epoch >= 0


class _Session:
    """Mutable. `epoch` is that of the next request."""

    __slots__ = ("by_id", "created_ms", "epoch", "last_used_ms", "owner", "partitions", "session_id")

    def __init__(
        self, session_id: int, partitions: Iterable[AskedPartition], *, by_id: bool, owner: object, now_ms: int
    ) -> None:
        self.owner = owner
        self.session_id = session_id
        self.partitions = {_key(p.topic, p.topic_id, p.asked.partition): p for p in partitions}
        self.by_id = by_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.created_ms = self.last_used_ms = now_ms

    def update(self, request: Request) -> None:
        for topic in request.topics:
            for asked in topic.partitions:
                key = _key(topic.topic, topic.topic_id, asked.partition)
                known = self.partitions.get(key)
                if known is None:
                    self.partitions[key] = AskedPartition(topic.topic, topic.topic_id, asked)
                else:
                    known.asked = asked
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                self.partitions.pop(_key(forgotten.topic, forgotten.topic_id, partition), None)

    def move_to_end(self, partition: AskedPartition) -> None:
        key = _key(partition.topic, partition.topic_id, partition.asked.partition)
        if self.partitions.pop(key, None) is not None:  # another request may have forgotten it while this one waited
            self.partitions[key] = partition


def _key(topic: str, topic_id: UUID | None, partition: int) -> tuple[str, UUID | None, int]:
    return topic, topic_id, partition


class FetchContext:
    """The partitions that one Fetch request reads, and the form of its response."""

    def __init__(
        self,
        partitions: Iterable[AskedPartition] = (),
        *,
        error: ErrorCode = ErrorCode.none,
        incremental: bool = False,
        answer: Callable[[Answered], Response] | None = None,
    ) -> None:
        self.partitions = tuple(partitions)
        self.error = error
        self.incremental = incremental
        self._answer = answer

    def answer(self, answered: Answered) -> Response:
        """Return the response.

        Called once, with the partitions that were read, in their order; incremental ones without news are left out or
        may be.
        """
        return self._answer(answered) if self._answer is not None else _response(answered, code=self.error)


def _response(answered: Answered, *, session_id: int = NO_SESSION, code: ErrorCode = ErrorCode.none) -> Response:
    """Build the response; neighbours of one topic share an entry."""
    topics: list[m.fetch_response.FetchableTopicResponse] = []
    run: list[m.fetch_response.PartitionData] = []
    before: AskedPartition | None = None
    for partition, data in answered:
        if before is not None and (partition.topic, partition.topic_id) != (before.topic, before.topic_id):
            topics.append(_topic(before, run))
            run = []
        run.append(data)
        before = partition
    if before is not None:
        topics.append(_topic(before, run))
    return m.fetch_response.FetchResponse(
        throttle_time=from_ms(0), error_code=code, session_id=i32(session_id), responses=tuple(topics)
    )


def _topic(
    partition: AskedPartition, run: list[m.fetch_response.PartitionData]
) -> m.fetch_response.FetchableTopicResponse:
    return m.fetch_response.FetchableTopicResponse(
        topic=partition.topic, topic_id=partition.topic_id, partitions=tuple(run)
    )


class FetchSessions:
    """Mutable: all sessions of this broker, the one that was used longest ago first."""

    def __init__(self, slots: Callable[[], int], chance: Callable[[], int] | None = None) -> None:
        """`slots` is asked for the bound whenever it matters; `chance` draws a positive session id."""
        self._slots = slots
        self._chance = chance or (lambda: 1 + secrets.randbelow(LAST_EPOCH))
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def cached_partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def topics(self, session_id: int) -> frozenset[tuple[str, UUID | None]]:
        """Return names and ids of the partitions of a session; one of the two is known, see AskedPartition."""
        session = self._sessions.get(session_id)
        return (
            frozenset((each.topic, each.topic_id) for each in session.partitions.values()) if session else frozenset()
        )

    def context(self, request: Request, *, by_id: bool, owner: object = None, now_ms: int) -> FetchContext:
        """`by_id`: the version of the request names topics by their ids. `owner`: the principal that asks.

        A session is another principal's secret: to all others there is none of that id, and they cannot end it.
        """
        # 1. A session of another principal is treated as none: neither its contents nor its existence shows.
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        # 2. A full request. It ends the session it names, so that a client that lost a response can always start over.
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                del self._sessions[session.session_id]
            partitions = _asked_for(request)
            if request.session_epoch == FINAL_EPOCH:
                return FetchContext(partitions)
            return FetchContext(partitions, answer=lambda answered: self._begin(answered, by_id, owner, now_ms))
        # 3. The three ways in which client and broker can disagree; each makes the client begin anew
        #    (FetchSessionHandler).
        if session is None:
            return FetchContext(error=ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            return FetchContext(error=ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            return FetchContext(error=ErrorCode.fetch_session_topic_id_error)
        # 4. An incremental request: only what changed. A session without partitions has no use.
        session.update(request)
        if not session.partitions:
            del self._sessions[session.session_id]
            return FetchContext(_asked_for(request))
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        # 5. The epoch rises when the request is taken, not when it is answered: a retry of the same request while this
        #    one waits for records is a mismatch, see `_incremental`.
        session.epoch = expected = next_epoch(session.epoch)
        return FetchContext(
            session.partitions.values(),
            incremental=True,
            answer=lambda answered: _incremental(session, expected, answered),
        )

    def _begin(self, answered: Answered, by_id: bool, owner: object, now_ms: int) -> Response:
        """Return a full response, with a new session if the cache has room for one."""
        session_id = NO_SESSION
        if len(self._sessions) < self._slots() or self._evict(len(answered), now_ms):
            # Random, as in Kafka's `FetchSessionCache.newSessionId`: after a restart, the id of a client from before
            # must not be that of another client's new session.
            while session_id == NO_SESSION or session_id in self._sessions:
                session_id = self._chance()
            for partition, data in answered:
                partition.high_watermark, partition.log_start_offset = data.high_watermark, data.log_start_offset
                if data.error_code is not ErrorCode.none:
                    partition.high_watermark = _NOT_TOLD
            self._sessions[session_id] = _Session(
                session_id, (partition for partition, _ in answered), by_id=by_id, owner=owner, now_ms=now_ms
            )
        return _response(answered, session_id=session_id)

    def _evict(self, size: int, now_ms: int) -> bool:
        """Evict a session for one of `size` partitions. Return whether one could be evicted."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        # The one used longest ago goes if it is idle. Else a session may be displaced by a larger one, which saves
        # more; never one younger than two minutes, or clients would displace one another in turn.
        if now_ms - oldest.last_used_ms <= MIN_EVICTION_MS:
            grown_up = [each for each in self._sessions.values() if now_ms - each.created_ms > MIN_EVICTION_MS]
            smallest = min(grown_up, key=lambda each: len(each.partitions), default=None)
            if smallest is None or size <= len(smallest.partitions):
                return False
            oldest = smallest
        del self._sessions[oldest.session_id]
        self.evictions += 1
        return True


def _asked_for(request: Request) -> Iterable[AskedPartition]:
    """A partition that is named twice is read once, as it was named last."""
    return {
        _key(topic.topic, topic.topic_id, asked.partition): AskedPartition(topic.topic, topic.topic_id, asked)
        for topic in request.topics
        for asked in topic.partitions
    }.values()


def _incremental(session: _Session, expected_epoch: int, answered: Answered) -> Response:
    if session.epoch != expected_epoch:  # the same request came twice, and the other one was faster
        return _response([], session_id=session.session_id, code=ErrorCode.invalid_fetch_session_epoch)
    note_sent = [(partition, data) for partition, data in answered if partition.note_sent(data)]
    # Partitions that gave records move to the end: the response's limit cuts off the tail, and each gets its turn at
    # the front.
    for partition, data in note_sent:
        if data.records:
            session.move_to_end(partition)
    return _response(note_sent, session_id=session.session_id)
