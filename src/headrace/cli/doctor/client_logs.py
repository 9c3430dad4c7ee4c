"""Lines of client and broker logs that name a cause of rebalances. Pure.

Recognised: Java's clients and brokers, librdkafka, kafka-python, aiokafka and ours. Lines are matched by the words that
the clients have used for years, without their time format, which every installation configures differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["LogCause", "LogLine", "find_causes"]

LogCause = Literal["slow-batches", "session-expired", "unreachable-coordinator", "fenced-instance"]
LONGEST_LINE = 300

# Each pattern has no nested repetition, so a hostile line costs linear time.
_PATTERNS: tuple[tuple[LogCause, re.Pattern[str]], ...] = (
    ("slow-batches", re.compile(r"consumer poll timeout has expired")),  # Java, also as the reason of a LeaveGroup
    ("slow-batches", re.compile(r"Application maximum poll interval \(\d+ms\) exceeded")),  # librdkafka
    ("slow-batches", re.compile(r"max_poll_interval_ms.{0,40}exceeded|Heartbeat poll expired", re.IGNORECASE)),
    ("slow-batches", re.compile(r"max-poll-exceeded|MaxPollExceeded|_MAX_POLL_EXCEEDED")),  # ours; librdkafka's code
    ("session-expired", re.compile(r"in group .{1,200} has failed, removing it from the group")),  # broker, classic
    ("session-expired", re.compile(r"fenced from the group because its session expired")),  # broker, KIP-848
    ("session-expired", re.compile(r"session timed out without receiving a heartbeat")),  # Java: of the coordinator
    ("session-expired", re.compile(r"Heartbeat session expired|SESSTMOUT")),  # kafka-python, aiokafka; librdkafka
    ("fenced-instance", re.compile(r"FENCED_INSTANCE_ID|FencedInstanceId|instance-fenced")),
    (
        "unreachable-coordinator",
        re.compile(r"Group coordinator .{1,200} is unavailable or invalid|coordinator.{0,80}(dead|unreachable)"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a log with the cause that it names; `number` counts from 1."""

    cause: LogCause
    file: str
    number: int
    text: str


def find_causes(lines: Iterable[str], *, file: str) -> list[LogLine]:
    """Return the lines that name a cause.

    Args:
        lines: The log.
        file: Its name, for the report.
    """
    found = []
    for number, line in enumerate(lines, 1):
        # The beginning of a line names the event; stack traces and dumps of settings may be very long.
        head = line[:2_000]
        cause = next((cause for cause, pattern in _PATTERNS if pattern.search(head)), None)
        if cause is not None:
            found.append(LogLine(cause=cause, file=file, number=number, text=head.strip()[:LONGEST_LINE]))
    return found
