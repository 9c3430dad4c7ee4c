"""Building blocks of all memberships: which request is sent now, and when to poll again. Pure.

`PollResult` is what a membership returns from `poll` (Kafka's `RequestManager.poll` and
`NetworkClientDelegate.PollResult`). `CoordinatorLookup`, `TopicLookup` and `HeartbeatSchedule` decide when
FindCoordinator, Metadata and heartbeats are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kio.schema.types import TopicName
from kio.static.primitive import i8

from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage

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
    """One request, as the newest kio class, for one node; `node` None means any broker."""

    request: RequestMessage
    node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """Requests to send now, and the latest time of the next poll.

    At most one request is in flight at a time: each is answered by `on_response` or ended by `on_failure`.
    """

    requests: tuple[Outgoing, ...]
    next_poll_ms: int


GROUP_KEY_TYPE = 0


class CoordinatorLookup:
    """Lookup of a group's coordinator with FindCoordinator.

    Mutable: the coordinator's node, or when to ask for it. Jitter comes from `chance`, numbers in [0, 1).
    """

    def __init__(self, group_id: str, *, chance: Callable[[], float]) -> None:
        self._group_id = group_id
        self._chance = chance
        self._backoff_ms = RETRY_BACKOFF_MS
        self._not_before_ms = 0
        self.node: int | None = None

    @property
    def due_ms(self) -> int:
        """The earliest time of the next request while the node is unknown."""
        return self._not_before_ms

    def request(self) -> RequestMessage:
        """Return the request, for any broker."""
        return m.find_coordinator_request.FindCoordinatorRequest(
            key_type=i8(GROUP_KEY_TYPE), coordinator_keys=(self._group_id,)
        )

    def on_response(
        self, response: m.find_coordinator_response.FindCoordinatorResponse, now_ms: int
    ) -> tuple[ErrorCode, str]:
        """Apply the answer.

        Returns:
            An error code other than `none`, with its message, if asking again will not help.
        """
        (found,) = response.coordinators
        if found.error_code == ErrorCode.none:
            self.node = int(found.node_id)
            self._backoff_ms = RETRY_BACKOFF_MS
            return ErrorCode.none, ""
        # COORDINATOR_NOT_AVAILABLE while `__consumer_offsets` is created, or its leader is elected.
        if is_retriable(found.error_code):
            self.on_failure(now_ms)
            return ErrorCode.none, ""
        return found.error_code, found.error_message or ""

    def on_failure(self, now_ms: int) -> None:
        """Back off after no answer, or after a retriable error."""
        # Exponential backoff with jitter, as in Kafka's RequestState (KIP-580): after a broker fails, thousands of
        # members ask the others for their coordinator at the same time.
        self._not_before_ms = now_ms + max(1, round(self._backoff_ms * (1.0 - 0.2 * self._chance())))
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def forget(self) -> None:
        """Forget the node: it is not the coordinator any more, or does not answer."""
        self.node = None


# A topic that is subscribed before it exists is found within 2 s, not after `metadata.max.age.ms` (5 minutes).
MISSING_RETRY_MS = 2_000
FAILED_RETRY_MS = 500

Metadata = m.metadata_response.MetadataResponse


class TopicLookup:
    """Schedule of Metadata requests for the topics of a group: which match a pattern, and how many partitions they
    have.

    Mutable. Due at `metadata.max.age.ms`, sooner while a subscribed topic does not exist.
    """

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_ms = max_age_ms
        self.due_ms = NEVER_MS

    def stop(self) -> None:
        """Send no further requests."""
        self.due_ms = NEVER_MS

    def on_success(self, now_ms: int, *, missing: bool) -> None:
        """Note an answer; `missing` if a subscribed topic does not exist."""
        self.due_ms = now_ms + (min(MISSING_RETRY_MS, self._max_age_ms) if missing else self._max_age_ms)

    def on_failure(self, now_ms: int) -> None:
        """Note that no answer came."""
        self.due_ms = now_ms + FAILED_RETRY_MS


def topics_request(names: Iterable[str] | None) -> RequestMessage:
    """Return a Metadata request for these topics, or for all; it creates none."""
    request = m.metadata_request
    listed = None
    if names is not None:
        listed = tuple(request.MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(names))
    return request.MetadataRequest(
        topics=listed, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def partition_counts(response: Metadata) -> Mapping[str, int]:
    """Return the number of partitions of every topic that exists."""
    return {
        str(topic.name): len(topic.partitions)
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.none
    }


def existing_topics(response: Metadata) -> list[tuple[str, bool]]:
    """Return (name, is internal) of every topic."""
    return [
        (str(topic.name), topic.is_internal)
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.none
    ]


# Pauses of the fast heartbeats that the class below describes. A delayed assignment (status 5) is computed by the first
# heartbeat after the delay, so a member adds at most 200 ms to it. BURST heartbeats in BURST_WINDOW_MS are 25 per
# second, however often an application acknowledges.
FIRST_FAST_BEAT_MS = 50
DELAYED_BEAT_MS = 200
EXPECTING_BEAT_MS = 100
BURST = 5
BURST_WINDOW_MS = 200
# Kafka's defaults of retry.backoff.ms and retry.backoff.max.ms (KIP-580).
RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MAX_MS = 1_000


class HeartbeatSchedule:
    """Times of a member's heartbeats. Mutable.

    - Steady state: at each interval of the coordinator, but at most `max_interval_ms`, so that a peer's leave is
      noticed fast. A member is not notified that a peer left or gave something back; only its own next heartbeat shows
      it.
    - While the group may be converging (after a join, a change, an acknowledgement): after 50, 100, 200 ms … up to the
      interval.
    - Every 200 ms while the coordinator delays an assignment (status 5): a delayed target is computed by the next
      heartbeat, not by a timer.
    - Every 100 ms while the member knows of tasks that are to come (`expect_until`).
    - After failures: a backoff like `retry.backoff.ms`.

    However often an application acknowledges, no more than `BURST` heartbeats are sent in `BURST_WINDOW_MS`, and none
    while the broker throttles.
    """

    def __init__(self, *, max_interval_ms: int, chance: Callable[[], float]) -> None:
        """Args:
        max_interval_ms: Upper bound of the coordinator's interval.
        chance: Returns random numbers in [0, 1) for jitter.
        """
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
        """Time at which the next heartbeat is due."""
        # The deque holds the last BURST heartbeats: the next one must be BURST_WINDOW_MS behind the oldest of them.
        floor_ms = self._sent_ms[0] + BURST_WINDOW_MS if len(self._sent_ms) == BURST else 0
        return max(self._due_ms, self._not_before_ms, floor_ms)

    def on_throttle(self, now_ms: int, throttle_ms: int) -> None:
        """Send nothing for `throttle_ms`, as any answer may request."""
        self._not_before_ms = max(self._not_before_ms, now_ms + throttle_ms)

    def not_before(self, time_ms: int) -> int:
        """Return this time, or the end of the broker's throttling if that is later."""
        return max(time_ms, self._not_before_ms)

    def heartbeat_now(self, now_ms: int) -> None:
        """Make a heartbeat due at once, except while the broker throttles."""
        self._due_ms = now_ms

    def speed_up(self) -> None:
        """Start the sequence of fast heartbeats with the next answer: the group may be converging."""
        self._fast_step_ms = FIRST_FAST_BEAT_MS

    def expect_until(self, now_ms: int, until_ms: int) -> None:
        """Pause at most 100 ms between heartbeats until then, because tasks are to come. A time in the past ends it."""
        self._expect_until_ms = until_ms
        if until_ms > now_ms:
            self._due_ms = min(self._due_ms, now_ms + EXPECTING_BEAT_MS)

    def on_sent(self, now_ms: int) -> None:
        """Note that a heartbeat was sent."""
        self._sent_ms.append(now_ms)

    def on_success(self, now_ms: int, *, interval_ms: int, throttle_ms: int, delayed: bool) -> None:
        """Schedule the next heartbeat after a successful one.

        Args:
            now_ms: The time of the answer.
            interval_ms: The coordinator's heartbeat interval.
            throttle_ms: Silence that the broker requests.
            delayed: Whether the coordinator delays an assignment.
        """
        self._interval_ms = min(interval_ms, self._max_interval_ms) if interval_ms > 0 else self._max_interval_ms
        self._backoff_ms = RETRY_BACKOFF_MS
        self._not_before_ms = now_ms + throttle_ms
        # 1. While the coordinator delays an assignment (group.initial.rebalance.delay), it computes it with the first
        #    heartbeat after the delay, not with a timer. So some member must send one soon.
        if delayed and self._fast_step_ms is None:
            self._fast_step_ms = DELAYED_BEAT_MS
        # 2. Then the shorter of the sequence of fast heartbeats and the interval, and 100 ms while tasks are to come.
        step_ms = min(self._next_step(delayed=delayed), self._interval_ms)
        if self._expect_until_ms > now_ms:
            step_ms = min(step_ms, EXPECTING_BEAT_MS)
        self._due_ms = now_ms + self._shortened(step_ms)

    def on_failure(self, now_ms: int, *, throttle_ms: int = 0) -> None:
        """Schedule the next attempt after no answer or a retriable error."""
        self.on_throttle(now_ms, throttle_ms)
        self._due_ms = now_ms + self._shortened(self._backoff_ms)
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def _next_step(self, *, delayed: bool) -> int:
        step_ms = self._fast_step_ms
        if step_ms is None:
            return self._interval_ms
        # The sequence ends when it reaches the interval: from then on nothing is left to find.
        following = min(step_ms * 2, DELAYED_BEAT_MS) if delayed else step_ms * 2
        self._fast_step_ms = following if following < self._interval_ms else None
        return step_ms

    def _shortened(self, delay_ms: int) -> int:
        # Up to a fifth earlier, never later: members that were started together drift apart, no deadline is missed.
        return max(1, round(delay_ms * (1.0 - 0.2 * self._chance())))
