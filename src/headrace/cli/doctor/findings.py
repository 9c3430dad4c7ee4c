"""Causes of a group's trouble, ranked, with evidence and what prevents each. Pure.

A finding's score is the weight of its evidence (`causes`), so the cause of most trouble is first. Events may come from
any source: the coordinator's records, or a recorder that knows more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from statistics import median

from headrace.cli.doctor.causes import CAUSES, EFFECT, NAMED
from headrace.cli.doctor.client_logs import LogCause, LogLine
from headrace.cli.doctor.group_events import GroupEvent
from headrace.cli.doctor.group_state import GroupState, PartitionState

__all__ = ["MOST_EVIDENCE", "REASONS", "Finding", "diagnose", "event_line"]

MOST_EVIDENCE = 5
# Beyond this count more evidence of one cause does not raise its rank: a client that tries every 100 ms would outrank
# everything.
MOST_WEIGHED = 20
# A client that comes back so often under new member ids is flapping, not being deployed.
FLAPPING_TIMES = 3
FLAPPING_WINDOW_MS = 3_600_000
# Members that leave and are followed by others within this time were replaced.
REPLACED_WITHIN_MS = 180_000
# Transactions of healthy producers are shorter; Kafka Streams' own limit is 10 s.
HANGING_AFTER_MS = 10_000
# A hot partition has most of the lag, and much more of it than a busy second leaves behind.
HOT_SHARE, HOT_RECORDS = 0.8, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause.

    Attributes:
        cause: Stable name, such as `flapping-member`: a key of `CAUSES`.
        score: Weight of its evidence.
        summary: One sentence.
        evidence: Events and log lines, the first few.
        fix: What prevents it.
    """

    cause: str
    score: int
    summary: str
    evidence: tuple[str, ...]
    fix: str


def diagnose(
    events: Sequence[GroupEvent],
    logs: Sequence[LogLine],
    state: GroupState | None = None,
    *,
    time_text: Callable[[int], str] = str,
) -> list[Finding]:
    """Return the findings, the most important one first; empty for a group without trouble.

    Members that start, scale out once or stop for good are no finding: their rebalances are intended.

    Args:
        events: Changes of the group in order of time, from any source.
        logs: Lines of client and broker logs.
        state: Present state of the group; None leaves out the causes that only the state shows.
        time_text: Writes a time in ms for the evidence.
    """
    found = [*_log_findings(logs)]
    logged = {finding.cause for finding in found}
    found += [finding for finding in _recorded_reasons(events, time_text) if finding.cause not in logged]
    flapping, removed = _flapping(events, time_text), _removed(events, time_text)
    if removed is not None and not _EXPLAIN_REMOVAL & {finding.cause for finding in found}:
        found.append(removed)
    elif flapping is not None:
        found.append(flapping)
    elif removed is None:
        # A crash loop looks like many small deploys; naming both would be naming one cause twice.
        found += _rolling(events, time_text)
    found += _changed(events, time_text)
    if state is not None:
        named = {finding.cause for finding in found}
        found += [finding for finding in _state_findings(state, time_text) if finding.cause not in named]
    return sorted(found, key=lambda finding: -finding.score)


def _finding(
    cause: str, count: int, evidence: Sequence[str], *, summary: str | None = None, fix: str | None = None
) -> Finding:
    known = CAUSES[cause]
    return Finding(
        cause=cause,
        score=known.weight * min(count, MOST_WEIGHED),
        summary=summary or f"{known.summary} ({count} times).",
        evidence=tuple(evidence[:MOST_EVIDENCE]),
        fix=fix or known.fix,
    )


# Causes that end sessions as a consequence: heartbeats that are too rare, and heartbeats that the cluster refuses.
_ENDS_SESSIONS: tuple[LogCause, ...] = ("not-authorized", "unsuitable-settings")


def _log_findings(logs: Sequence[LogLine]) -> list[Finding]:
    explained = {cause: {line.file for line in logs if line.cause == cause} for cause in _ENDS_SESSIONS}
    by_cause: dict[LogCause, list[LogLine]] = defaultdict(list)
    for line in logs:
        root = next((cause for cause in _ENDS_SESSIONS if line.file in explained[cause]), line.cause)
        by_cause[root if line.cause == "session-expired" else line.cause].append(line)
    return [
        _finding(
            cause,
            len(lines),
            [f"{line.file}:{line.number}: {line.text}" for line in lines],
            summary=f"{CAUSES[cause].summary} ({len(lines)} lines).",
        )
        for cause, lines in by_cause.items()
    ]


def _state_findings(state: GroupState, time_text: Callable[[int], str]) -> list[Finding]:
    found = [*_hanging(state, time_text), *_hot(state)]
    if state.obstacles:
        found.append(
            _finding(
                "not-ready",
                len(state.obstacles),
                [f"{why}" for why, _ in state.obstacles],
                summary=f"The streams group is {state.state} and has no tasks: {state.obstacles[0][0]}.",
                fix=f"{state.obstacles[0][1].strip()[:1].upper()}{state.obstacles[0][1].strip()[1:].rstrip('.')}.",
            )
        )
    return found


def _hanging(state: GroupState, time_text: Callable[[int], str]) -> list[Finding]:
    """Open transactions that are old, and behind which records wait."""
    waiting = {
        (each.topic, each.partition): each.end - each.stable_end
        for each in state.partitions
        if each.committed >= each.stable_end < each.end
    }
    held = [
        (each, sum(waiting.get(key, 0) for key in each.partitions))
        for each in state.transactions
        if each.begun_ms is None or state.at_ms - each.begun_ms >= HANGING_AFTER_MS
    ]
    held = [(transaction, records) for transaction, records in held if records]
    if not held:
        return []
    evidence = [
        f"{'unknown' if each.begun_ms is None else time_text(each.begun_ms)} transactional.id {each.transactional_id} "
        f"began, transaction.timeout.ms {each.timeout_ms}: {records} records wait behind it"
        for each, records in held
    ]
    transaction, records = held[0]
    summary = (
        f"The transaction of {transaction.transactional_id} is open, and {records} records behind it cannot be read "
        "by readers of committed data."
    )
    return [_finding("hanging-transaction", len(held), evidence, summary=summary)]


def _hot(state: GroupState) -> list[Finding]:
    """One partition with nearly all of the lag, although the group reads it as fast as the others."""
    lags = {each: max(0, each.stable_end - each.committed) for each in state.partitions}
    if len(lags) < 2:
        return []
    hot = max(lags, key=lambda each: lags[each])
    others = [each for each in lags if each is not hot]
    if lags[hot] < HOT_RECORDS or lags[hot] < HOT_SHARE * sum(lags.values()):
        return []
    # A partition whose reader is stuck has lag, too, but no more records than the others.
    if _received(hot) < 3 * median(map(_received, others)):
        return []
    evidence = [
        f"{each.topic}-{each.partition}: lag {lags[each]}, {_received(each)} records in the log"
        for each in (hot, *others)
    ]
    summary = (
        f"The partition {hot.topic}-{hot.partition} holds {lags[hot] * 100 // sum(lags.values())} % of the group's lag "
        f"({lags[hot]} records)."
    )
    return [_finding("hot-partition", len(others), evidence, summary=summary)]


def _received(partition: PartitionState) -> int:
    return partition.end - partition.log_start


def _client(event: GroupEvent) -> tuple[str, str]:
    return event.client_id, event.client_host


def _flapping(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> Finding | None:
    """A client that joins again and again: a crash loop, or a member that is thrown out and comes back."""
    again: dict[tuple[str, str], list[GroupEvent]] = defaultdict(list)
    gone: Counter[tuple[str, str]] = Counter()
    for event in events:
        # Several members of one process share client id and host, so only a join that follows a leave counts.
        client = _client(event)
        if event.kind == "left":
            gone[client] += 1
        elif event.kind == "joined" and gone[client]:
            gone[client] -= 1
            again[client].append(event)
    worst: list[GroupEvent] = []
    for joined in again.values():
        within = [event for event in joined if event.at_ms >= joined[-1].at_ms - FLAPPING_WINDOW_MS]
        if len(within) >= FLAPPING_TIMES and len(within) > len(worst):
            worst = within
    if not worst:
        return None
    client_id, host = _client(worst[0])
    return _finding(
        "flapping-member",
        len(worst),
        _evidence(worst, time_text),
        summary=f"The client {client_id} at {host} left and joined again {len(worst)} times within an hour.",
    )


# Reasons of the coordinator and of Java's clients (`LeaveGroupRequest`), as a recorder writes them.
REASONS = (
    ("session-expired", ("the member session expired", "its session timed out")),
    ("slow-batches", ("the rebalance timeout expired", "it did not join again in time", "poll timeout has expired")),
)


def _recorded_reasons(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> list[Finding]:
    """Causes of leaves whose reason was recorded."""
    found = []
    for cause, texts in REASONS:
        left = [event for event in events if event.kind == "left" and any(text in event.reason for text in texts)]
        if left:
            # A client that crashes again and again loses a session each time: its flapping weighs more than that.
            weight = EFFECT if cause == "session-expired" else NAMED
            found.append(
                replace(
                    _finding(cause, len(left), _evidence(left, time_text)), score=weight * min(len(left), MOST_WEIGHED)
                )
            )
    return found


# Causes from logs that say more about a member that was removed than its return does.
_EXPLAIN_REMOVAL = frozenset({"session-expired", "slow-batches", "unsuitable-settings", "not-authorized"})


def _removed(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> Finding | None:
    """Members that joined again under their old id: only a consumer of KIP-848 that is still running does that.

    It generates its id once. A restarted process has another one.
    """
    gone: dict[str, GroupEvent] = {}
    returned = []
    for event in events:
        if event.kind == "left":
            gone[event.member_id] = event
        elif event.kind == "joined" and event.group_type == "consumer" and event.member_id in gone:
            returned += [gone.pop(event.member_id), event]
    return _finding("removed-member", len(returned) // 2, _evidence(returned, time_text)) if returned else None


def _rolling(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> list[Finding]:
    """Members that were replaced one after another: a deploy whose every step is a rebalance."""
    leaves = [event for event in events if event.kind == "left" and event.instance_id is None]
    joins = [event for event in events if event.kind == "joined" and event.instance_id is None]
    replaced = []
    for left in leaves:
        successor = next((joined for joined in joins if 0 <= joined.at_ms - left.at_ms <= REPLACED_WITHIN_MS), None)
        if successor is not None:
            joins.remove(successor)
            replaced += [left, successor]
    # One replaced member is a restart, and one that is replaced again is in trouble; two and more are a deploy. Members
    # that share a client id and a host can be distinguished only while several of them are present.
    clients = {_client(event) for event in replaced if event.kind == "left"}
    if len(replaced) < 4 or (len(clients) < 2 and not _coexist(events, clients)):
        return []
    return [
        _finding(
            "rolling-deploy-without-static-members",
            len(replaced),
            _evidence(replaced, time_text),
            summary=f"{len(replaced) // 2} members were replaced one after another; each of them left and another one "
            "joined, which is two rebalances.",
        )
    ]


def _coexist(events: Sequence[GroupEvent], clients: AbstractSet[tuple[str, str]]) -> bool:
    """Whether two members of one of these clients were in the group at the same time."""
    present: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.kind in ("joined", "left") and _client(event) in clients:
            present[_client(event)] += 1 if event.kind == "joined" else -1
            if present[_client(event)] > 1:
                return True
    return False


def _changed(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> list[Finding]:
    kinds = (
        ("partition-change", "metadata"),
        ("subscription-change", "subscription"),
        ("topology-change", "topology"),
    )
    concerned = ((cause, [event for event in events if event.kind == kind]) for cause, kind in kinds)
    return [_finding(cause, len(found), _evidence(found, time_text)) for cause, found in concerned if found]


def _evidence(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> tuple[str, ...]:
    return tuple(event_line(event, time_text) for event in events[:MOST_EVIDENCE])


def event_line(event: GroupEvent, time_text: Callable[[int], str]) -> str:
    """Return an event in one line."""
    member = f" {event.client_id} {event.client_host} ({event.member_id})" if event.member_id else ""
    static = f" instance {event.instance_id}" if event.instance_id else ""
    detail = f": {event.detail}" if event.detail else ""
    known = [part for part in (event.reason, event.author and f"by {event.author}") if part]
    return f"{time_text(event.at_ms)} {event.kind}{member}{static}{detail}" + (
        f" ({'; '.join(known)})" if known else ""
    )
