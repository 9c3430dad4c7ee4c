"""Lines of client and broker logs that name a cause of trouble in a group. Pure.

Recognised: Java's clients and brokers, librdkafka, kafka-python, aiokafka and ours. Lines are matched by the words that
the clients have used for years, without their time format, which every installation configures differently. Each
pattern is covered by a recording of a real client in `tests/cli/doctor/recordings` or by a line of its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["LogCause", "LogLine", "find_causes"]

LogCause = Literal[
    "slow-batches",
    "session-expired",
    "unsuitable-settings",
    "unreachable-coordinator",
    "fenced-instance",
    "inconsistent-assignors",
    "group-max-size",
    "not-authorized",
    "offset-out-of-range",
    "not-ready",
    "topology-change",
]
LONGEST_LINE = 300
LONGEST_SEARCHED = 2_000

# Each pattern has no nested repetition, so a hostile line costs linear time. The first pattern that matches counts.
_PATTERNS: tuple[tuple[LogCause, re.Pattern[str]], ...] = (
    ("slow-batches", re.compile(r"[Cc]onsumer poll timeout has expired")),  # Java, also as the reason of a LeaveGroup
    ("slow-batches", re.compile(r"configured max\.poll\.interval\.ms, exceeded approximately by")),  # Java, KIP-848
    ("slow-batches", re.compile(r"Application maximum poll interval \(\d+ms\) exceeded")),  # librdkafka
    ("slow-batches", re.compile(r"max_poll_interval_ms.{0,40}exceeded|Heartbeat poll expired", re.IGNORECASE)),
    ("slow-batches", re.compile(r"max-poll-exceeded|MaxPollExceeded|_MAX_POLL_EXCEEDED")),  # ours; librdkafka's code
    ("slow-batches", re.compile(r"no poll for \d+ ms, and max\.poll\.interval\.ms is \d+")),  # ours
    ("session-expired", re.compile(r"in group .{1,200} has failed, removing it from the group")),  # broker, classic
    ("session-expired", re.compile(r"fenced from the group because its session expired")),  # broker, KIP-848
    ("session-expired", re.compile(r"session timed out without receiving a heartbeat")),  # Java: of the coordinator
    ("session-expired", re.compile(r"Heartbeat session expired|SESSTMOUT")),  # kafka-python, aiokafka; librdkafka
    ("session-expired", re.compile(r"encountered UNKNOWN_MEMBER_ID from HEARTBEAT response")),  # Java, after a pause
    ("session-expired", re.compile(r"HeartbeatRequest failed because member \S{1,100} is unknown")),  # Java, KIP-848
    ("session-expired", re.compile(r"Heartbeat failed: local member_id was not recognized")),  # aiokafka, kafka-python
    ("fenced-instance", re.compile(r"FENCED_INSTANCE_ID|FencedInstanceId|instance-fenced")),
    ("fenced-instance", re.compile(r"[Ss]tatic consumer fenced by other consumer")),  # librdkafka
    ("inconsistent-assignors", re.compile(r"INCONSISTENT_GROUP_PROTOCOL|InconsistentGroupProtocol")),
    ("inconsistent-assignors", re.compile(r"[Ii]nconsistent group protocol")),
    ("inconsistent-assignors", re.compile(r"protocols? (?:is|are) incompatible with those of existing members")),
    ("group-max-size", re.compile(r"GROUP_MAX_SIZE_REACHED|GroupMaxSizeReached|group-full")),
    ("group-max-size", re.compile(r"[Cc]onsumer group has reached (?:its )?max(?:imum)? size")),
    ("not-authorized", re.compile(r"(?:Group|Topic|Cluster|TransactionalId)Authorization(?:Exception|Failed)")),
    ("not-authorized", re.compile(r"(?:GROUP|TOPIC)_AUTHORIZATION_FAILED|: (?:Group|Topic) authorization failed")),
    ("not-authorized", re.compile(r"Not authorized to access (?:group|topics)")),
    ("offset-out-of-range", re.compile(r"is out of range for partition|OffsetOutOfRange|OFFSET_OUT_OF_RANGE")),
    ("offset-out-of-range", re.compile(r"Offset out of range|[Ff]etch offset .{0,60} is out of range")),
    ("topology-change", re.compile(r"STALE_TOPOLOGY|topology-(?:mismatch|changed)")),
    ("not-ready", re.compile(r"MISSING_SOURCE_TOPICS|MissingSourceTopic|missing source topics?", re.IGNORECASE)),
    ("unreachable-coordinator", re.compile(r"[Cc]onnection to node -?\d+ .{0,120}could not be established")),  # Java
    ("unreachable-coordinator", re.compile(r"Connect to ipv[46]#.{1,80} failed")),  # librdkafka
    ("unreachable-coordinator", re.compile(r"Unable to connect to node|Failed to connect|Connect attempt to")),
    # Lines about a coordinator that is "dead", "unavailable or invalid" or "not correct" are none: clients write them
    # whenever a coordinator moves or loads its groups, as at the first use of a new cluster.
    ("unreachable-coordinator", re.compile(r"broker-unreachable|No Kafka broker reachable")),
)

# aiokafka leaves at max_poll_interval_ms without a message; only its next commit fails. A close does not commit after
# it has left, so the pair means a slow batch.
_LEFT = re.compile(r"LeaveGroup request succeeded")
_COMMIT_FAILED = re.compile(r"OffsetCommit failed for group .{1,250}UnknownMemberId")
_COMMIT_FAILED_WITHIN = 20

# Java prints its configuration at the start of a consumer.
_SETTING = re.compile(r"^\s*(session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\.interval\.ms) = (\d+)\s*$")


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
    settings: dict[str, int] = {}
    left_at = -_COMMIT_FAILED_WITHIN
    for number, line in enumerate(lines, 1):
        # The beginning of a line names the event; stack traces and dumps of settings may be very long.
        head = line[:LONGEST_SEARCHED]
        cause = next((cause for cause, pattern in _PATTERNS if pattern.search(head)), None)
        if cause is None and _LEFT.search(head):
            left_at = number
        elif cause is None and number - left_at < _COMMIT_FAILED_WITHIN and _COMMIT_FAILED.search(head):
            cause, left_at = "slow-batches", -_COMMIT_FAILED_WITHIN
        setting = _SETTING.match(head)
        if setting is not None:
            settings[setting[1]] = int(setting[2])
            cause = _judge_heartbeats(settings) if setting[1] == "session.timeout.ms" else None
        if cause is not None:
            found.append(LogLine(cause=cause, file=file, number=number, text=_shown(head, settings, cause)))
    return found


def _judge_heartbeats(settings: dict[str, int]) -> LogCause | None:
    """Judge the heartbeat of one configuration, which is printed in alphabetical order: the session comes last."""
    heartbeat, session = settings.get("heartbeat.interval.ms"), settings["session.timeout.ms"]
    # One lost or late heartbeat must not end a session: Kafka's documentation asks for a third of it at most.
    return "unsuitable-settings" if heartbeat is not None and 2 * heartbeat > session else None


def _shown(head: str, settings: dict[str, int], cause: LogCause) -> str:
    if cause == "unsuitable-settings":
        return ", ".join(f"{name} = {value}" for name, value in sorted(settings.items()) if "poll" not in name)
    text = head.strip()
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"
