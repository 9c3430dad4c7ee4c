"""Which node coordinates a group: asked with FindCoordinator, forgotten when it says that it is not.

Pure like the member itself: one request at a time, `poll` says when.
"""

from __future__ import annotations

from collections.abc import Callable

from kio.static.primitive import i8

from headrace.client.membership.heartbeat_schedule import RETRY_BACKOFF_MAX_MS, RETRY_BACKOFF_MS
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable

__all__ = ["CoordinatorLookup"]

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
