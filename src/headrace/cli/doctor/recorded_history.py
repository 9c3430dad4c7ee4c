"""The recorder's history of one group: read from its topic, joined with the coordinator's records, summed up.

A broker of this project writes the topic if `headrace.group.history.records` is set. Its entries hold what the records
of `__consumer_offsets` do not: reasons and authors, standstill by partition, rates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.plain_records import consume
from headrace.coordinator.history.group_changes import GroupEvent
from headrace.coordinator.history.history_record import HISTORY_TOPIC, INTERVENTIONS, Author, HistoryRecord, read_key
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = [
    "PartitionTotal",
    "RecordedStep",
    "join_events",
    "read_history",
    "recorded_steps",
    "standstill_totals",
    "step_lines",
    "total_lines",
]

_EVENT_KINDS = frozenset({"joined", "left", "replaced", "rebalance", "subscription", "metadata", "topology"})
# A classic group writes the leave of a member with its next generation, up to a rebalance timeout later.
SAME_WITHIN_MS = 600_000
# Without authentication every client has this principal, which says nothing.
_ANONYMOUS = "User:ANONYMOUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTotal:
    """Standstill of one partition over several rebalances.

    Attributes:
        topic: The topic.
        partition: Its number.
        times: How often it stood still.
        at_least_ms: Sum of the lower bounds.
        at_most_ms: Sum of the upper bounds; None if one of them is unknown.
        longest_ms: The longest standstill: its upper bound, else its lower one.
    """

    topic: str
    partition: int
    times: int
    at_least_ms: int
    at_most_ms: int | None
    longest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One rebalance, or several that follow one another: its cause and what it cost.

    Attributes:
        at_ms: Time of its first entry.
        cause: The first entry in words, with reason and author.
        interventions: Changes from outside: deletions, positions, settings, in words.
        waited_for: Requests that the group waited for, or what its topology lacks.
        partition_count: Partitions that stood still.
        longest_ms: The longest standstill of one of them.
        rate_before: Records per second in the minute before; None if it is unknown, as the following ones.
        rate_during: Records per second during the step.
        rate_after: Records per second in the minute after it.
    """

    at_ms: int
    cause: str
    interventions: tuple[str, ...]
    waited_for: tuple[str, ...]
    partition_count: int
    longest_ms: int
    rate_before: float | None
    rate_during: float | None
    rate_after: float | None


def read_history(admin: Admin, group_id: str) -> list[HistoryRecord]:
    """Return the group's entries in order; empty if there is no recorder, or its topic may not be read."""
    try:
        topic = admin.describe_topics([HISTORY_TOPIC]).get(HISTORY_TOPIC)
        if topic is None:
            return []
        keys = [(HISTORY_TOPIC, number) for number in range(len(topic.partitions))]
        starts = admin.list_offsets(dict.fromkeys(keys, "earliest"))
        positions = {key: starts[key].offset for key in keys}
        found = [
            record.value
            for _, _, record in consume(admin.client, positions, isolation_level="read_uncommitted")
            if record.key is not None and record.value is not None and _is_of(record.key, group_id)
        ]
    except BrokerError:
        return []
    return sorted(_entries(found), key=lambda entry: entry.sequence)


def join_events(events: Sequence[GroupEvent], history: Sequence[HistoryRecord]) -> list[GroupEvent]:
    """Return the changes of both sources in order of time, each once; the recorder's come with reason and author."""
    recorded = [_event(entry) for entry in history if entry.kind in _EVENT_KINDS]
    unmatched: dict[tuple[str, ...], list[GroupEvent]] = defaultdict(list)
    for event in recorded:
        unmatched[_identity(event)].append(event)
    alone = []
    for event in events:
        twins = unmatched[_identity(event)]
        twin = min(twins, key=lambda each: abs(each.at_ms - event.at_ms), default=None)
        if twin is None or abs(twin.at_ms - event.at_ms) > SAME_WITHIN_MS:
            alone.append(event)
        else:
            twins.remove(twin)
    return sorted([*alone, *recorded], key=lambda event: event.at_ms)


def standstill_totals(history: Iterable[HistoryRecord]) -> list[PartitionTotal]:
    """Return the standstill of each partition, the longest first."""
    found: dict[tuple[str, int], PartitionTotal] = {}
    for entry in history:
        for each in entry.partitions:
            key = each.topic, each.partition
            before = found.get(key) or PartitionTotal(
                topic=each.topic, partition=each.partition, times=0, at_least_ms=0, at_most_ms=0, longest_ms=0
            )
            known = before.at_most_ms is not None and each.at_most_ms is not None
            found[key] = PartitionTotal(
                topic=each.topic,
                partition=each.partition,
                times=before.times + 1,
                at_least_ms=before.at_least_ms + each.at_least_ms,
                at_most_ms=(before.at_most_ms or 0) + (each.at_most_ms or 0) if known else None,
                longest_ms=max(before.longest_ms, each.at_most_ms or each.at_least_ms),
            )
    return sorted(found.values(), key=lambda each: (-each.longest_ms, each.topic, each.partition))


def recorded_steps(history: Sequence[HistoryRecord]) -> list[RecordedStep]:
    """Return the steps of a history in order."""
    steps: dict[int, list[HistoryRecord]] = defaultdict(list)
    for entry in history:
        steps[entry.step].append(entry)
    return [_step(entries) for _, entries in sorted(steps.items())]


def step_lines(steps: Sequence[RecordedStep], time_text: Callable[[int], str]) -> list[str]:
    """Return a line for each step that cost something or came from outside: its time, its cause, standstill, rates."""
    return [
        f"{time_text(step.at_ms)} {step.cause}" + "".join(f"; {part}" for part in parts)
        for step in steps
        if (parts := _costs(step)) or step.interventions
    ]


def total_lines(totals: Sequence[PartitionTotal]) -> list[str]:
    """Return the standstill of each partition in a line."""
    lines = []
    for each in totals:
        times = "once" if each.times == 1 else f"{each.times} times"
        most = "no bound above" if each.at_most_ms is None else f"at most {_seconds(each.at_most_ms)}"
        longest = "" if each.times == 1 else f" in all, the longest {_seconds(each.longest_ms)}"
        lines.append(f"{each.topic}-{each.partition} {times}: at least {_seconds(each.at_least_ms)}, {most}{longest}")
    return lines


def _costs(step: RecordedStep) -> list[str]:
    parts = [each for each in step.interventions if each != step.cause]
    if step.waited_for:
        parts.append(f"waited for {', '.join(step.waited_for)}")
    if step.partition_count:
        number = "1 partition" if step.partition_count == 1 else f"{step.partition_count} partitions"
        parts.append(f"{number} stood still, up to {_seconds(step.longest_ms)}")
    rates = ((step.rate_before, "before"), (step.rate_during, "during"), (step.rate_after, "after"))
    known = [f"{rate:,.0f} {when}" for rate, when in rates if rate is not None]
    if known:
        parts.append(f"records per second: {', '.join(known)}")
    return parts


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.1f} s"


def _step(entries: Sequence[HistoryRecord]) -> RecordedStep:
    first = entries[0]
    standstills = [entry for entry in entries if entry.kind == "standstill"]
    rates = next((entry for entry in entries if entry.kind == "rate"), first)
    return RecordedStep(
        at_ms=first.at_ms,
        cause=_cause(first),
        interventions=tuple(_cause(each) for each in entries if each.kind in INTERVENTIONS),
        waited_for=tuple(
            dict.fromkeys(entry.detail for entry in entries if entry.kind in ("waiting", "not-ready") and entry.detail)
        ),
        partition_count=sum(entry.partition_count for entry in standstills),
        longest_ms=max(
            (each.at_most_ms or each.at_least_ms for entry in standstills for each in entry.partitions), default=0
        ),
        rate_before=rates.rate_before,
        rate_during=rates.rate_during,
        rate_after=rates.rate_after,
    )


def _cause(entry: HistoryRecord) -> str:
    if entry.kind == "waiting":
        reason = entry.reason.removesuffix("; client reason: not provided")
        return f"rebalance began: {reason}" + (f" ({_by(entry.author)})" if _by(entry.author) else "")
    who = f" {entry.client_id} at {entry.client_host}" if entry.client_id else ""
    detail = f" {entry.detail}" if entry.detail and not who else ""
    parts = [part for part in (entry.reason, _by(entry.author)) if part]
    return f"{entry.kind}{who}{detail}" + (f" ({'; '.join(parts)})" if parts else "")


def _by(author: Author) -> str:
    text = _author_text(author)
    return f"by {text}" if text else ""


def _author_text(author: Author) -> str:
    if not author.client_id and not author.client_host:
        return ""
    request = f"{author.request} of " if author.request else ""
    principal = f" as {author.principal}" if author.principal not in ("", _ANONYMOUS) else ""
    return f"{request}{author.client_id} at {author.client_host}{principal}"


def _event(entry: HistoryRecord) -> GroupEvent:
    return GroupEvent(
        at_ms=entry.at_ms,
        kind=entry.kind,  # type: ignore[arg-type] # one of _EVENT_KINDS
        member_id=entry.member_id,
        client_id=entry.client_id,
        client_host=entry.client_host,
        instance_id=entry.instance_id,
        detail=entry.detail,
        group_type=entry.group_type,
        session_timeout_ms=entry.session_timeout_ms,
        rebalance_timeout_ms=entry.rebalance_timeout_ms,
        assignor=entry.assignor,
        reason=entry.reason,
        author=_author_text(entry.author),
    )


def _identity(event: GroupEvent) -> tuple[str, ...]:
    match event.kind:
        case "joined" | "replaced":
            return "joined", event.member_id
        case "left":
            return "left", event.member_id
    return event.kind, event.member_id, event.detail


def _is_of(key: bytes, group_id: str) -> bool:
    try:
        return read_key(key)[0] == group_id
    except ValueError:
        return False


def _entries(values: Iterable[bytes]) -> Iterable[HistoryRecord]:
    # Compaction runs from time to time: a slot may have several entries. All of them are history.
    for value in values:
        try:
            yield HistoryRecord.from_json(value)
        except ValueError:
            continue
