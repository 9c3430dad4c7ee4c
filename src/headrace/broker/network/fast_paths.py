"""Fast paths: requests that are answered without decoding them, without a handler, or both.

`may_skip_handler` is the one predicate in front of all of them. Behind it are:

- The response cache: heartbeats that change nothing, nearly all requests of a broker with groups. The bytes of such a
  response are kept together with the rule's permission to repeat it (`CoordinatorResult.repeatable`); repeating it
  costs a look-up and a comparison.
- `append_produce`: nearly every Produce request. It is read by hand, judged by its headers, appended, answered by hand
  (`protocol.fast_path`). Nothing is appended before all of the request is known to be eligible; else the handler of
  Produce has it, with all rules and all errors.

Fetch has no path of its own: its handler returns spans of files, which `response_writers` sends
(`RequestContext.sends_files`). Each fast path answers byte for byte what the handler would, which
tests/broker/network/test_fast_paths.py and test_response_cache.py check on random histories.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from kio.schema.types import TopicName

from headrace.broker.handlers import produce
from headrace.broker.logs.partition_logs import AppendRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import fast_path
from headrace.protocol import messages as m
from headrace.protocol.fast_path import ProduceFrame
from headrace.protocol.request_codec import RequestHeader
from headrace.storage.partition_log import AppendResult
from headrace.storage.record_checks import is_candidate

if TYPE_CHECKING:
    from headrace.broker.faults import Faults
    from headrace.coordinator.result import Repeatable

__all__ = ["NO_ANSWER", "CacheGeneration", "ResponseCache", "append_produce", "may_skip_handler"]


MOST_ANSWERS = 1024
LONGEST_BYTES = 4096
MOST_BYTES = 512 * 1024
# Of an answer, besides its bytes: the objects around them.
_OVERHEAD_BYTES = 400
_FRAME_HEAD = struct.Struct(">ii")  # length of the frame; API key and version in one number
_LENGTH_BYTES = 4
_CORRELATION_START, _CORRELATION_END = 8, 12  # in a request with its length


class FastPathServices(Protocol):
    """The part of the server that decides about fast paths."""

    @property
    def services(self) -> Services | None: ...
    @property
    def faults(self) -> Faults | None: ...


class ExpiringSession(Protocol):
    """The part of a connection's authentication that decides about fast paths."""

    def expired(self) -> bool: ...


def may_skip_handler(server: FastPathServices, session: ExpiringSession | None, *, meters_bytes: bool) -> bool:
    """Whether a request of this connection may be answered without its handler.

    The one eligibility predicate of all fast paths: whatever else has to see every request belongs here.

    Args:
        server: of the connection.
        session: the connection's login; None where clients do not log in.
        meters_bytes: whether byte quotas meter the request, which those of Produce and Fetch do.
    """
    # 1. No services: the broker starts or stops.
    services, faults = server.services, server.faults
    if services is None:
        return False
    # 2. A test's fault chooses requests by what they contain, which only decoding shows.
    if faults is not None and faults.active:
        return False
    # 3. Quotas meter in `ClientConnection._metered`, behind the handler. A byte quota does not meter heartbeats, a
    #    request quota (KIP-124) meters everything.
    quotas = services.quotas
    if quotas.active if meters_bytes else quotas.meters_requests:
        return False
    # 4. A session that is over ends the connection (KIP-368), even if its next request could be repeated.
    # Access rules are no condition: a cached response belongs to one connection, so to one principal, and a change of
    # rules takes it out of use (`CacheGeneration`); `append_produce` asks the authorizer itself.
    return session is None or not session.expired()


class CacheGeneration:
    """Counts the changes of what is checked before a rule is asked: access rules, quotas, features. One per broker.

    `kept_bytes` is what all connections keep of answers, `most_bytes` what they may.
    """

    __slots__ = ("kept_bytes", "most_bytes", "version")

    def __init__(self, most_bytes: int = 64 * 1024 * 1024) -> None:
        self.version = 0
        self.kept_bytes = 0
        self.most_bytes = most_bytes

    def advance(self) -> None:
        """Invalidate all cached responses."""
        self.version += 1


class _Answer:
    __slots__ = ("api", "generation", "head", "repeatable", "tail")

    def __init__(self, api: int, generation: int, head: bytes, tail: bytes, repeatable: Repeatable) -> None:
        self.api = api
        self.generation = generation
        self.head = head
        self.tail = tail
        self.repeatable = repeatable


class ResponseCache:
    """Mutable: what one connection was answered. Bounded: at most MOST_ANSWERS and MOST_BYTES, each at most
    LONGEST_BYTES.

    Attributes:
        known: Answers by the requests' bytes behind the correlation id; read only. Every read of a socket looks whether
            there are any.
    """

    __slots__ = ("_bytes", "_generation", "known")

    def __init__(self, generation: CacheGeneration) -> None:
        self._generation = generation
        self.known: dict[bytes, _Answer] = {}
        self._bytes = 0

    def clear(self) -> None:
        """Keep nothing any more."""
        self.known.clear()
        self._count(-self._bytes)

    def _count(self, change: int) -> None:
        self._bytes += change
        self._generation.kept_bytes += change

    def keep(self, frame: bytes, answer: bytes, repeatable: Repeatable) -> None:
        """Keep the answer to a request. `frame` is without its length, `answer` with it."""
        # 1. Long requests are joins and reports of offsets, which do not repeat.
        if len(frame) > LONGEST_BYTES or len(answer) > LONGEST_BYTES:
            return
        # 2. The key is everything behind the correlation id: client id, tagged fields and body. The API and its version
        #    stand before the correlation id and are compared on their own.
        key = frame[_CORRELATION_END - _LENGTH_BYTES :]
        size = len(key) + len(answer) + _OVERHEAD_BYTES
        # 3. A full cache is emptied, not evicted one by one: a member repeats one request, so a client that fills the
        #    cache with different ones has no use for it.
        if len(self.known) >= MOST_ANSWERS or self._bytes + size > MOST_BYTES:
            self.clear()
        # 4. The bound of all connections together; those above it are answered by the rules.
        if self._generation.kept_bytes + size > self._generation.most_bytes:
            return
        self._forget(key)
        self._count(size)
        # 5. Kept in two pieces, so that a repetition joins head, correlation id and tail without copying the rest.
        self.known[key] = _Answer(
            int.from_bytes(frame[:4], "big", signed=True),
            self._generation.version,
            answer[:_LENGTH_BYTES],
            answer[8:],
            repeatable,
        )

    def _forget(self, key: bytes) -> None:
        answer = self.known.pop(key, None)
        if answer is not None:
            self._count(-(len(key) + len(answer.head) + len(answer.tail) + _LENGTH_BYTES + _OVERHEAD_BYTES))

    def repeat(self, data: bytes, now_ms: int) -> tuple[list[bytes], int]:
        """Return the answers to the whole frames at the start of `data`, up to the first that the rules have to see.

        Returns the pieces of the answers, three for each frame, and where the first unanswered byte is.
        """
        known, generation = self.known, self._generation.version
        pieces: list[bytes] = []
        position, size = 0, len(data)
        # 1. Frame after frame: a client with several members pipelines their heartbeats in one write.
        while size - position > _CORRELATION_END:
            length, api = _FRAME_HEAD.unpack_from(data, position)
            end = position + _LENGTH_BYTES + length
            # 2. An incomplete frame, or one that was never kept. Stop here: later frames must not be answered before
            #    it.
            if end > size or length > LONGEST_BYTES:
                break
            # 3. Same bytes, same API and version, and no change of access rules, quotas or features since.
            answer = known.get(data[position + _CORRELATION_END : end])
            if answer is None or answer.api != api or answer.generation != generation:
                break
            # 4. The rule's permission: the group has not changed, and the member's session starts anew with this
            #    heartbeat. It costs one comparison (`StreamsGroupSoftState.version`), and is asked last, because it
            #    renews.
            if not answer.repeatable.renew(now_ms):
                self._forget(data[position + _CORRELATION_END : end])
                break
            pieces += (answer.head, data[position + _CORRELATION_START : position + _CORRELATION_END], answer.tail)
            position = end
        return pieces, position


NO_ANSWER = b""
_ACKS = (-1, 0, 1)
# Requests with more batches are the handler's, which lets others have their turn in between.
_MOST_BATCHES = 128
_COUNTED_FROM_BYTES = 8 * 1024

Outcome = tuple[int, AppendResult | AppendRefused]


def append_produce(
    request: ProduceFrame, frame: bytes, context: Callable[[RequestHeader], RequestContext], broker: Services
) -> bytes | m.produce_response.ProduceResponse | Awaitable[m.produce_response.ProduceResponse] | None:
    """Return None, without side effects, if the request is not eligible for the fast path. Else the response: the bytes
    of its frame when all went well and no flush has to be awaited (`NO_ANSWER` for acks=0), or the handler's response.

    `context` makes the request context, which is needed only where access is checked.
    """
    # 1. Eligible as a whole, or not at all: from the first append on, the handler cannot take over any more. Access is
    #    asked for each topic; a refusal is the handler's to answer.
    topics = _known(request, frame, broker)
    if topics is None or (broker.authorizer.enabled and not _permitted(topics, context(request.header), broker)):
        return None
    logs, all_is_well = broker.logs, True
    appended, responses = [], []
    for asked, topic in zip(request.topics, topics, strict=True):
        outcomes: list[Outcome] = []
        offsets: list[tuple[int, int, int]] = []
        # 2. Each batch is appended from its place in the frame, without a copy. None: the log needs the general way for
        #    this batch (compression, a producer id, a timestamp of its own).
        for partition, start, end in asked.batches:
            try:
                result = logs.append_fast_path(topic, partition, frame, start, end)
                if result is None:
                    result = logs.append(topic, partition, frame[start:end])
                    all_is_well = all_is_well and result.log_append_time_ms < 0
                outcomes.append((partition, result))
                offsets.append((partition, result.base_offset, result.log_start_offset))
            # 3. A refused batch is answered for its partition alone, as by the handler.
            except AppendRefused as refused:
                outcomes.append((partition, refused))
                all_is_well = False
        appended.append(outcomes)
        responses.append((asked.key, offsets))
    # 4. acks=0: nothing is sent, not even for errors.
    if not request.acks:
        return NO_ANSWER
    # 5. The usual response is written by hand. Errors, append timestamps and flushes that have to be awaited take the
    #    handler's messages. `some_require_flush` spares a look at each log where the flush policy is never `always`.
    if all_is_well and not (logs.some_require_flush and _waiting(topics, appended, broker)):
        return fast_path.encode_produce_response(request.correlation_id, responses)
    return _answer(request, topics, appended, broker)


def _known(request: ProduceFrame, frame: bytes, broker: Services) -> list[TopicDescription] | None:
    if request.acks not in _ACKS:
        return None
    # A frame below this size cannot hold more than the bound.
    if len(frame) > _COUNTED_FROM_BYTES and sum(len(asked.batches) for asked in request.topics) > _MOST_BATCHES:
        return None
    topics = []
    for asked in request.topics:
        topic = broker.metadata.topic_by_key(asked.key) if request.by_id else broker.metadata.topic(asked.name)
        if topic is None or topic.is_internal:
            return None
        for partition, start, end in asked.batches:
            if not 0 <= partition < topic.partitions or not is_candidate(frame, start, end):
                return None
        topics.append(topic)
    return topics


def _permitted(topics: list[TopicDescription], context: RequestContext, broker: Services) -> bool:
    return all(broker.authorizer.on_topic(context, Operation.WRITE, topic.name) for topic in topics)


def _answer(
    request: ProduceFrame, topics: list[TopicDescription], appended: list[list[Outcome]], broker: Services
) -> m.produce_response.ProduceResponse | Awaitable[m.produce_response.ProduceResponse]:
    """The response that the handler would return."""
    response = m.produce_response.ProduceResponse(
        responses=tuple(
            m.produce_response.TopicProduceResponse(
                name=TopicName("" if request.by_id else topic.name),
                topic_id=topic.topic_id if request.by_id else None,
                partition_responses=tuple(
                    produce.refused_part(partition, outcome)
                    if isinstance(outcome, AppendRefused)
                    else produce.appended_part(partition, outcome)
                    for partition, outcome in outcomes
                ),
            )
            for topic, outcomes in zip(topics, appended, strict=True)
        ),
        throttle_time=NO_THROTTLE,
    )
    waiting = _waiting(topics, appended, broker)
    return produce.when_flushed(response, waiting, broker) if waiting else response


def _waiting(
    topics: list[TopicDescription], appended: list[list[Outcome]], broker: Services
) -> list[tuple[TopicDescription, int]]:
    """The partitions whose answer has to wait for the disk."""
    return [
        (topic, partition)
        for topic, outcomes in zip(topics, appended, strict=True)
        for partition, outcome in outcomes
        if isinstance(outcome, AppendResult) and broker.logs.requires_flush(topic, partition)
    ]
