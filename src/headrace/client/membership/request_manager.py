"""What every pure request manager answers: the requests to send now, and when to ask again at the latest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kio.schema.types import TopicName
from kio.static.primitive import i8

from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable

__all__ = [
    "BURST",
    "BURST_WINDOW_MS",
    "FIRST_FAST_BEAT_MS",
    "NEVER_MS",
    "CoordinatorLookup",
    "HeartbeatSchedule",
    "Outgoing",
    "PollResult",
    "TopicLookup",
    "topics_request",
]

NEVER_MS = 1 << 62
"""A time that does not come: nothing is due until a response or a call arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One request (newest kio class) for one node; `node` None means any broker."""

    request: object
    node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """At most one request is out at a time: each is answered by `on_response` or given up by `on_failure`."""

    requests: tuple[Outgoing, ...]
    next_poll_ms: int


GROUP_KEY_TYPE = 0


class CoordinatorLookup:
    """Mutable: the node, or when to ask for it."""

    def __init__(self, group_id: str, *, chance: Callable[[], float]) -> None:
        self._group_id = group_id
        self._chance = chance
        self._backoff_ms = RETRY_BACKOFF_MS
        self._not_before_ms = 0
        self.node: int | None = None

    @property
    def due_ms(self) -> int:
        """When the next request may go, while the node is unknown."""
        return self._not_before_ms

    def request(self) -> object:
        """The question, for any broker."""
        return m.find_coordinator_request.FindCoordinatorRequest(
            key_type=i8(GROUP_KEY_TYPE), coordinator_keys=(self._group_id,)
        )

    def on_response(
        self, response: m.find_coordinator_response.FindCoordinatorResponse, now_ms: int
    ) -> tuple[ErrorCode, str]:
        """Takes the answer; returns an error code other than `none` only when asking again will not help."""
        (found,) = response.coordinators
        if found.error_code == ErrorCode.none:
            self.node = int(found.node_id)
            self._backoff_ms = RETRY_BACKOFF_MS
            return ErrorCode.none, ""
        if is_retriable(found.error_code):
            self.on_failure(now_ms)
            return ErrorCode.none, ""
        return found.error_code, found.error_message or ""

    def on_failure(self, now_ms: int) -> None:
        """No answer, or one that asks to come again."""
        self._not_before_ms = now_ms + max(1, round(self._backoff_ms * (1.0 - 0.2 * self._chance())))
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def forget(self) -> None:
        """The node is not the coordinator (any more), or does not answer."""
        self.node = None


MISSING_RETRY_MS = 2_000
FAILED_RETRY_MS = 500

Metadata = m.metadata_response.MetadataResponse


class TopicLookup:
    """Mutable: what was seen last, and when to look again."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_ms = max_age_ms
        self.due_ms = NEVER_MS

    def stop(self) -> None:
        """Nobody needs to know."""
        self.due_ms = NEVER_MS

    def seen(self, now_ms: int, *, missing: bool) -> None:
        """An answer came."""
        self.due_ms = now_ms + (min(MISSING_RETRY_MS, self._max_age_ms) if missing else self._max_age_ms)

    def failed(self, now_ms: int) -> None:
        """None came."""
        self.due_ms = now_ms + FAILED_RETRY_MS


def topics_request(names: Iterable[str] | None) -> object:
    """Metadata of these topics, or of all; creates none."""
    request = m.metadata_request
    listed = None
    if names is not None:
        listed = tuple(request.MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(names))
    return request.MetadataRequest(
        topics=listed, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def partition_counts(response: Metadata) -> Mapping[str, int]:
    """Of every topic that exists, how many partitions it has."""
    return {
        str(topic.name): len(topic.partitions)
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.none
    }


def existing_topics(response: Metadata) -> list[tuple[str, bool]]:
    """(name, internal) of every topic."""
    return [
        (str(topic.name), topic.is_internal)
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.none
    ]


FIRST_FAST_BEAT_MS = 50
DELAYED_BEAT_MS = 200
EXPECTING_BEAT_MS = 100
BURST = 5
BURST_WINDOW_MS = 200
RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MAX_MS = 1_000


class HeartbeatSchedule:
    """Mutable: one deadline and the step that follows it."""

    def __init__(self, *, max_interval_ms: int, chance: Callable[[], float]) -> None:
        self._max_interval_ms = max_interval_ms
        self._interval_ms = max_interval_ms
        self._chance = chance
        self._fast_step_ms: int | None = None
        self._expect_until_ms = 0
        self._backoff_ms = RETRY_BACKOFF_MS
        self._not_before_ms = 0
        self._due_ms = 0
        self._sent_ms: deque[int] = deque(maxlen=BURST)

    @property
    def due_ms(self) -> int:
        """When the next heartbeat may and should go."""
        floor_ms = self._sent_ms[0] + BURST_WINDOW_MS if len(self._sent_ms) == BURST else 0
        return max(self._due_ms, self._not_before_ms, floor_ms)

    def throttled(self, now_ms: int, throttle_ms: int) -> None:
        """The broker asks for silence, in whatever answer."""
        self._not_before_ms = max(self._not_before_ms, now_ms + throttle_ms)

    def not_before(self, time_ms: int) -> int:
        """That time, or when the broker's throttling ends if that is later."""
        return max(time_ms, self._not_before_ms)

    def beat_now(self, now_ms: int) -> None:
        """There is something to tell: due at once, except while the broker throttles."""
        self._due_ms = now_ms

    def hurry(self) -> None:
        """The group may be converging: begin the fast beats anew with the next answer."""
        self._fast_step_ms = FIRST_FAST_BEAT_MS

    def expect(self, now_ms: int, until_ms: int) -> None:
        """Tasks are to come: no pause longer than 100 ms until then. A time that has passed ends it."""
        self._expect_until_ms = until_ms
        if until_ms > now_ms:
            self._due_ms = min(self._due_ms, now_ms + EXPECTING_BEAT_MS)

    def sent(self, now_ms: int) -> None:
        """A heartbeat went out."""
        self._sent_ms.append(now_ms)

    def answered(self, now_ms: int, *, interval_ms: int, throttle_ms: int, delayed: bool) -> None:
        """A heartbeat succeeded; the reply named these times."""
        self._interval_ms = min(interval_ms, self._max_interval_ms) if interval_ms > 0 else self._max_interval_ms
        self._backoff_ms = RETRY_BACKOFF_MS
        self._not_before_ms = now_ms + throttle_ms
        if delayed and self._fast_step_ms is None:
            self._fast_step_ms = DELAYED_BEAT_MS
        step_ms = min(self._next_step(delayed=delayed), self._interval_ms)
        if self._expect_until_ms > now_ms:
            step_ms = min(step_ms, EXPECTING_BEAT_MS)
        self._due_ms = now_ms + self._shortened(step_ms)

    def failed(self, now_ms: int, *, throttle_ms: int = 0) -> None:
        """No answer, or one that asks to come again."""
        self.throttled(now_ms, throttle_ms)
        self._due_ms = now_ms + self._shortened(self._backoff_ms)
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def _next_step(self, *, delayed: bool) -> int:
        step_ms = self._fast_step_ms
        if step_ms is None:
            return self._interval_ms
        following = min(step_ms * 2, DELAYED_BEAT_MS) if delayed else step_ms * 2
        self._fast_step_ms = following if following < self._interval_ms else None
        return step_ms

    def _shortened(self, delay_ms: int) -> int:
        # Up to a fifth earlier, never later: members that were started together drift apart, no deadline is missed.
        return max(1, round(delay_ms * (1.0 - 0.2 * self._chance())))
