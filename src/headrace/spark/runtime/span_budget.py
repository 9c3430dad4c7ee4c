"""Limit of the spans that an instance makes in a second, whatever its producers sample. Pure: time is an argument.

A span costs about as much CPU as a hundred records of a copy, so without a limit the cost of traces would grow with the
share of sampled records. Records of traces beyond the limit pass on the context that they came with.
"""

from __future__ import annotations

from typing import Final

from headrace.spark.runtime.batches.trace_contexts import MOST_TRACES

__all__ = ["MOST_SPANS_A_SECOND", "SpanBudget"]

MOST_SPANS_A_SECOND: Final = 100
BURST_S: Final = 10  # of an application that made none for so long
_OF_A_MICRO_BATCH: Final = 9  # its own and those of its steps


class SpanBudget:
    """Token bucket of one instance. Mutable."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._left = float(MOST_SPANS_A_SECOND * BURST_S)

    def traces_per_task(self, tasks: int, now_s: float) -> int:
        """Return how many traces each of the tasks of the next micro-batch may follow: 0 to 32.

        Args:
            tasks: Number of tasks.
            now_s: Monotonic seconds.
        """
        self._refill(now_s)
        return max(0, min(MOST_TRACES, int(self._left - _OF_A_MICRO_BATCH) // max(tasks, 1)))

    def spend(self, spans: int, now_s: float) -> None:
        """Take the spans of a committed micro-batch.

        Micro-batches of several subtopologies may be under way and have been granted the same spans. The bucket is
        below zero then, and the next ones wait until that is made up for.
        """
        self._refill(now_s)
        self._left -= spans

    def _refill(self, now_s: float) -> None:
        # Several threads take turns here, so the time that one read may lie before that of another.
        earned = max(0.0, now_s - self._since_s) * MOST_SPANS_A_SECOND
        self._since_s = max(self._since_s, now_s)
        self._left = min(self._left + earned, float(MOST_SPANS_A_SECOND * BURST_S))
