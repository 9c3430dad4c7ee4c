"""One line per request at level debug, a warning for a slow one; and the metrics of both.

Never a record's content, never a secret: API, version, client id, address, times, error code. What waits by its
client's own wish (a fetch for records, a join for the other members) is slow only if the broker's own work was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.broker.monitoring.request_metrics import RequestMetrics
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.request_codec import RequestHeader
from headrace.protocol.request_fast_path import ProduceFrame

__all__ = ["RequestLog"]

requests = logging.getLogger("headrace.broker.requests")

# Those whose answer may be held back without anything being wrong.
_MAY_WAIT = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})


class RequestLog:
    """`slow_ms` is asked for each time: the setting may change; 0 switches the warnings off."""

    def __init__(self, metrics: RequestMetrics, slow_ms: Callable[[], int]) -> None:
        self._metrics = metrics
        self._slow_ms = slow_ms
        self._each = requests.isEnabledFor(logging.DEBUG)

    def answered(
        self,
        header: RequestHeader,
        response: object,
        peer: tuple[str, int],
        *,
        seconds: float,
        queue_seconds: float,
        remote_seconds: float,
    ) -> None:
        """Times as in RequestMetrics.answered."""
        self._metrics.answered(
            header.api_key,
            header.api_version,
            response,
            seconds=seconds,
            queue_seconds=queue_seconds,
            remote_seconds=remote_seconds,
        )
        own_seconds = seconds - remote_seconds if header.api_key in _MAY_WAIT else seconds
        slow = own_seconds > _NEVER_SLOW_SECONDS and 0 < self._slow_ms() <= own_seconds * 1000
        if not slow and not self._each:
            return
        facts = {
            "api": ApiKey(header.api_key).kafka_name,
            "version": header.api_version,
            "client_id": header.client_id,
            "correlation_id": header.correlation_id,
            "peer": f"{peer[0]}:{peer[1]}",
            "error": kafka_name(getattr(response, "error_code", ErrorCode.none)),
            "total_ms": round((seconds + queue_seconds) * 1000, 3),
            "queue_ms": round(queue_seconds * 1000, 3),
            "local_ms": round((seconds - remote_seconds) * 1000, 3),
        }
        if slow:
            requests.warning("A request was slow.", extra={"facts": facts})
        else:
            requests.debug("Answered a request.", extra={"facts": facts})

    def usual(self, request: ProduceFrame, peer: tuple[str, int], seconds: float, queue_seconds: float) -> None:
        """`answered` for a usual Produce request that went well, and waited for nothing."""
        if self._each or seconds > _NEVER_SLOW_SECONDS:
            self.answered(request.header, None, peer, seconds=seconds, queue_seconds=queue_seconds, remote_seconds=0.0)
        else:
            self._metrics.went_well(ApiKey.PRODUCE, request.api_version, seconds, queue_seconds)


# The threshold is never set lower in practice, and looking it up costs more than comparing with this.
_NEVER_SLOW_SECONDS = 0.001
