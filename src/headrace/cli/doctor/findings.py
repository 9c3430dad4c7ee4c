"""Causes of a group's rebalances, ranked, with evidence and what prevents each. Pure.

A finding's score is the number of rebalances or log lines that it explains, so the cause of most trouble is first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.cli.doctor.client_logs import LogCause, LogLine
from headrace.cli.doctor.group_events import GroupEvent

__all__ = ["MOST_EVIDENCE", "Finding", "diagnose", "event_line"]

MOST_EVIDENCE = 5
# A client that comes back so often under new member ids is flapping, not being deployed.
FLAPPING_TIMES = 3
FLAPPING_WINDOW_MS = 3_600_000
# Members that leave and are followed by others within this time were replaced.
REPLACED_WITHIN_MS = 180_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause.

    Attributes:
        cause: Stable name, such as `flapping-member`.
        score: How many rebalances or log lines it explains.
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
    events: Sequence[GroupEvent], logs: Sequence[LogLine], *, time_text: Callable[[int], str] = str
) -> list[Finding]:
    """Return the findings, the most important one first; empty for a group without trouble.

    Members that start, scale out once or stop for good are no finding: their rebalances are intended.

    Args:
        events: Changes of the group in order of time.
        logs: Lines of client and broker logs.
        time_text: Writes a time in ms for the evidence.
    """
    found = [*_log_findings(logs)]
    flapping = _flapping(events, time_text)
    if flapping is not None:
        found.append(flapping)
    else:
        # A crash loop looks like many small deploys; naming both would be naming one cause twice.
        found += _rolling(events, time_text)
    found += _changed(events, time_text)
    return sorted(found, key=lambda finding: -finding.score)


_LOGGED: dict[LogCause, tuple[str, str]] = {
    "slow-batches": (
        "Members left because max.poll.interval.ms passed between two polls: batches take too long",
        (
            "Lower max.poll.records, or raise max.poll.interval.ms above the longest batch, or process apart "
            "from polls (ParallelConsumer). `headrace advise --worst-batch TIME` writes the configuration."
        ),
    ),
    "session-expired": (
        "Sessions expired: no heartbeat arrived within session.timeout.ms",
        (
            "Look for pauses of the process (garbage collection, CPU limits, a suspended host) and for a network "
            "between client and broker that fails. `headrace advise --longest-pause TIME` writes one that fits."
        ),
    ),
    "fenced-instance": (
        "Two processes used the same group.instance.id",
        "Give each instance its own group.instance.id, such as the name of its pod in a StatefulSet.",
    ),
    "unreachable-coordinator": (
        "Clients lost the group coordinator",
        "Look at the brokers at these times: restarts, overload, network. Sessions should outlast a broker's restart.",
    ),
}


def _log_findings(logs: Sequence[LogLine]) -> list[Finding]:
    by_cause: dict[LogCause, list[LogLine]] = defaultdict(list)
    for line in logs:
        by_cause[line.cause].append(line)
    return [
        Finding(
            cause=cause,
            # A line of a log names the cause itself; events only show its effect. So a line weighs more than a
            # rebalance, and a slow batch is ranked before the flapping that it causes.
            score=len(lines) * 10,
            summary=f"{_LOGGED[cause][0]} ({len(lines)} lines).",
            evidence=tuple(f"{line.file}:{line.number}: {line.text}" for line in lines[:MOST_EVIDENCE]),
            fix=_LOGGED[cause][1],
        )
        for cause, lines in by_cause.items()
    ]


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
    return Finding(
        cause="flapping-member",
        score=2 * len(worst),
        summary=f"The client {client_id} at {host} left and joined again {len(worst)} times within an hour.",
        evidence=_evidence(worst, time_text),
        fix="Read the log of that client: a crash loop, max.poll.interval.ms, or an expired session. Pass it with "
        "--logs. A member with group.instance.id that restarts within session.timeout.ms causes no rebalance.",
    )


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
    # One replaced member is a restart; two and more are a deploy.
    if len(replaced) < 4:
        return []
    return [
        Finding(
            cause="rolling-deploy-without-static-members",
            score=len(replaced),
            summary=f"{len(replaced) // 2} members were replaced one after another; each of them left and another one "
            "joined, which is two rebalances.",
            evidence=_evidence(replaced, time_text),
            fix="Set group.instance.id to a name that an instance keeps over its restart (a StatefulSet's pod name), "
            "and a session.timeout.ms longer than a restart: `headrace advise --deploy kept-names --restart TIME`.",
        )
    ]


def _changed(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> list[Finding]:
    rows = (
        (
            "partition-change",
            "metadata",
            "The partitions of the subscribed topics changed",
            (
                "Nothing to prevent if partitions were added on purpose. Topics that are created and deleted all "
                "the time should not match a subscription by regular expression."
            ),
        ),
        (
            "subscription-change",
            "subscription",
            "Members changed their subscription",
            (
                "Deploy a changed subscription to all instances at once, or under a new group id: mixed subscriptions "
                "rebalance at each step."
            ),
        ),
        (
            "topology-change",
            "topology",
            "The topology of the streams group changed",
            "Deploy changed topologies with `headrace upgrade`, which keeps positions and stored state.",
        ),
    )
    found = []
    for cause, kind, summary, fix in rows:
        concerned = [event for event in events if event.kind == kind]
        if concerned:
            found.append(
                Finding(
                    cause=cause,
                    score=len(concerned),
                    summary=f"{summary} ({len(concerned)} times).",
                    evidence=_evidence(concerned, time_text),
                    fix=fix,
                )
            )
    return found


def _evidence(events: Sequence[GroupEvent], time_text: Callable[[int], str]) -> tuple[str, ...]:
    return tuple(event_line(event, time_text) for event in events[:MOST_EVIDENCE])


def event_line(event: GroupEvent, time_text: Callable[[int], str]) -> str:
    """Return an event in one line."""
    member = f" {event.client_id} {event.client_host} ({event.member_id})" if event.member_id else ""
    static = f" instance {event.instance_id}" if event.instance_id else ""
    return f"{time_text(event.at_ms)} {event.kind}{member}{static}" + (f": {event.detail}" if event.detail else "")
