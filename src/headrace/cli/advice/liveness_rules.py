"""Rules about liveness and progress: session, heartbeats, polls, static members, commits and first positions.

Sources: KIP-62 (heartbeats on their own thread, max.poll.interval.ms), KIP-345 (static members), KIP-735 (45 s). Where
a process pauses, 60 s and 15 s; the poll interval above the longest batch; static members where names are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.advice.protocol_rules import is_supported
from headrace.cli.advice.situation import Finding, Level, Situation, in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.advice.given_configuration import GivenConfiguration

__all__ = [
    "auto_commit",
    "first_position",
    "heartbeat_interval",
    "max_poll_interval",
    "session_timeout",
    "static_member",
]

# 45 s has been Kafka's default since 3.0 (KIP-735), because sessions of 10 s ended at ordinary collector pauses and
# network delays. 60 s is proposed where pauses are known; below 15 s (5 lost heartbeats of 3 s) every hiccup is a
# rebalance.
CALM_SESSION_MS = 45_000
PAUSING_SESSION_MS = 60_000
LEAST_SESSION_MS, MOST_SESSION_MS = 6_000, 1_800_000  # what brokers accept by default
SHORT_SESSION_MS = 15_000
MINUTE_MS = 60_000
# Marks of shells, Spring, Helm, Maven and hand-written templates. A group.instance.id without any of them is the same
# in every instance that reads the file.
_PLACEHOLDERS = ("$", "%", "{", "<", "@")


def session_timeout(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """Check the session timeout against broker limits, heartbeats, restarts and batches."""
    session = given.integer("session.timeout.ms")
    # 1. Only classic groups: the other protocols take the session from the broker (rule set-on-the-broker).
    if situation.kind != "classic" or session is None:
        return
    # 2. The first reason that applies is given, the worst first: refused by brokers, ended by a pause that is certain
    #    to come, ended by a restart, merely short.
    needed = _needed_session_ms(given, situation)
    level: Level = "error"
    if session > MOST_SESSION_MS or session < LEAST_SESSION_MS:
        bound, value = ("above", MOST_SESSION_MS) if session > MOST_SESSION_MS else ("below", LEAST_SESSION_MS)
        word = "refused"
        reason = f"It is {bound} what brokers take by default ({in_words(value)}): INVALID_SESSION_TIMEOUT at the join."
    elif situation.longest_pause_ms is not None and session <= situation.longest_pause_ms:
        word = "short"
        reason = f"A pause of {in_words(situation.longest_pause_ms)} is longer: the member is declared dead, and lives."
    elif _is_static(given) and situation.restart_ms is not None and session <= situation.restart_ms:
        level, word = "risk", "short"
        reason = (
            f"A static member that is back after {in_words(situation.restart_ms)} finds its session over: the restart "
            "rebalances all the same."
        )
    elif session < needed:
        level, word = "risk", "short"
        reason = _why_short(given, session, situation)
    else:
        return
    # 3. One proposal satisfies all of them, so that the corrected file has no finding left.
    value_ms = min(max(needed, LEAST_SESSION_MS), MOST_SESSION_MS)
    yield Finding(
        rule="session-timeout",
        setting="session.timeout.ms",
        given=given.given("session.timeout.ms"),
        level=level,
        word=word,
        reason=reason,
        changes={"session.timeout.ms": str(value_ms)},
    )


def _needed_session_ms(given: GivenConfiguration, situation: Situation) -> int:
    """Return the smallest session timeout that satisfies the rules, which is also the value they propose."""
    needed = SHORT_SESSION_MS
    session = given.integer("session.timeout.ms")
    if session is not None and not SHORT_SESSION_MS <= session <= MOST_SESSION_MS:
        needed = CALM_SESSION_MS
    if situation.longest_pause_ms is not None:
        needed = max(needed, _for_pause_ms(situation.longest_pause_ms))
    if _is_static(given) and situation.restart_ms is not None:
        needed = max(needed, _for_restart_ms(situation.restart_ms))
    return min(needed, MOST_SESSION_MS)


def _for_pause_ms(pause_ms: int) -> int:
    # Twice the pause: a member that wakes from it still has as long again to get a heartbeat through.
    return max(PAUSING_SESSION_MS, _rounded_up(2 * pause_ms))


def _for_restart_ms(restart_ms: int) -> int:
    # Half as long again as a usual restart. More would only delay the takeover from an instance that does not come
    # back.
    return max(PAUSING_SESSION_MS, _rounded_up(restart_ms * 3 // 2))


def _why_short(given: GivenConfiguration, session: int, situation: Situation) -> str:
    """Name the cause that asks for the longest session."""
    pause_ms, restart_ms = situation.longest_pause_ms, situation.restart_ms if _is_static(given) else None
    if restart_ms is not None and _for_restart_ms(restart_ms) >= (0 if pause_ms is None else _for_pause_ms(pause_ms)):
        return f"A restart of {in_words(restart_ms)} that is a little slower outlives the session and rebalances."
    if pause_ms is not None:
        return f"A pause of {in_words(pause_ms)} and a lost heartbeat make the member dead."
    return f"One long pause or a slow network of {in_words(session)}, and the member is declared dead."


def heartbeat_interval(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """Check that at least three heartbeats fit into a session."""
    heartbeat, session = given.integer("heartbeat.interval.ms"), given.integer("session.timeout.ms")
    if situation.kind != "classic" or heartbeat is None or session is None:
        return
    level: Level = "error"
    if heartbeat >= session:
        word = "refused"
        reason = f"It must be below the session ({in_words(session)}): Java does not start so."
    elif heartbeat * 3 > session:
        level, word = "risk", "rare"
        reason = f"Of a session of {in_words(session)} two lost heartbeats are the end; a third of it or less."
    else:
        return
    yield Finding(
        rule="heartbeat-interval",
        setting="heartbeat.interval.ms",
        given=given.given("heartbeat.interval.ms"),
        level=level,
        word=word,
        reason=reason,
        changes={"heartbeat.interval.ms": str(session // 4)},
    )


def max_poll_interval(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """Check that the interval allows for twice the worst batch."""
    interval, worst = given.integer("max.poll.interval.ms"), situation.worst_batch_ms
    session = given.integer("session.timeout.ms")
    if interval is None or situation.kind == "streams":
        return
    # The proposal is twice the worst batch; complaints begin below one and a half times. The gap keeps a corrected file
    # from being complained about when the worst batch grows a little.
    needed = 0 if worst is None else _rounded_up(2 * worst)
    level: Level = "error"
    if given.client == "librdkafka" and situation.kind == "classic" and session is not None and interval < session:
        word = "refused"
        reason = f"librdkafka wants it to be at least the session ({in_words(session)})."
        needed = max(needed, session)
    elif worst is None or 2 * interval >= 3 * worst:
        return
    elif interval <= worst:
        word = "too short"
        reason = (
            f"The worst batch takes {in_words(worst)}: the member leaves in the middle of it, its work is done twice, "
            "and all members rebalance."
        )
    else:
        level, word = "risk", "tight"
        reason = f"{in_words(interval - worst)} above the worst batch. A slow day costs a rebalance."
    yield Finding(
        rule="max-poll-interval",
        setting="max.poll.interval.ms",
        given=given.given("max.poll.interval.ms"),
        level=level,
        word=word,
        reason=reason + (" Fewer max.poll.records, or ParallelConsumer, help for good." if worst else ""),
        changes={"max.poll.interval.ms": str(max(needed, 1))},
    )


def static_member(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """A name of its own for each instance: wanted where names are kept, harmful where they are not."""
    text = given.given("group.instance.id")
    if situation.kind == "streams":
        if text:
            yield _static(text, "risk", "unused", "Streams groups have static members from Kafka 4.4 on.", {})
        return
    # Three cases: it would help, it does harm, it is the same for every instance. The last one is certain from the file
    # alone and needs no description of the deployment.
    if not text and situation.deploy == "kept-names" and is_supported(given, "static members"):
        reason = "Instances keep their names: a restart within the session need not rebalance (KIP-345)."
        yield _static(text, "hint", "absent", reason, {"group.instance.id": "${HOSTNAME}"})
    elif text and situation.deploy == "changing-names":
        reason = (
            "Each restart brings a new name: the old one keeps its partitions, unread, until its session is over. "
            "Keep names, or go without."
        )
        yield _static(text, "risk", "harmful", reason, {"group.instance.id": None})
    elif text and not any(mark in text for mark in _PLACEHOLDERS):
        reason = "Every instance that reads this file has the same id, and they fence each other out. One for each."
        yield _static(text, "risk", "fixed", reason, {"group.instance.id": "${HOSTNAME}"})


def _static(text: str | None, level: Level, word: str, reason: str, changes: dict[str, str | None]) -> Finding:
    return Finding(
        rule="static-member",
        setting="group.instance.id",
        given=text,
        level=level,
        word=word,
        reason=reason,
        changes=changes,
    )


def _is_static(given: GivenConfiguration) -> bool:
    return bool(given.given("group.instance.id"))


def _rounded_up(milliseconds: int) -> int:
    """Round up to whole minutes above one, else to five seconds: values people can read."""
    step = MINUTE_MS if milliseconds > MINUTE_MS else 5_000
    return -(-milliseconds // step) * step


def auto_commit(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """Auto-commit commits what was returned by poll, which may not be processed yet."""
    if situation.kind == "streams" or not given.flag("enable.auto.commit"):
        return
    text = given.given("enable.auto.commit")
    if given.client == "librdkafka" and given.flag("enable.auto.offset.store"):
        reason = (
            "librdkafka commits what it has handed out, in the background: a crash loses what was in work. Store "
            "positions yourself when records are done."
        )
        changes: dict[str, str | None] = {"enable.auto.offset.store": "false"}
        yield _risk("enable.auto.offset.store", given.given("enable.auto.offset.store"), reason, changes)
    elif given.client == "java" and situation.hands_over:
        reason = (
            "A poll commits what earlier polls returned, and other threads may still be at it: a crash loses it. "
            "Commit what is finished, or let ParallelConsumer do it."
        )
        # In Java a poll commits what earlier polls returned, in the thread that polls: correct as long as records are
        # finished before the next poll. Hence no finding without `hands_over`.
        yield _risk("enable.auto.commit", text, reason, {"enable.auto.commit": "false"})


def _risk(setting: str, text: str | None, reason: str, changes: dict[str, str | None]) -> Finding:
    return Finding(
        rule="auto-commit", setting=setting, given=text, level="risk", word="risk", reason=reason, changes=changes
    )


def first_position(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """`latest` also counts for partitions that are new, and for positions that have expired."""
    if situation.kind == "streams" or given.text("auto.offset.reset").lower() not in ("latest", "largest", "end"):
        return
    yield Finding(
        rule="first-position",
        setting="auto.offset.reset",
        given=given.given("auto.offset.reset"),
        level="hint",
        word="skips",
        reason="Records that a new partition gets before it is found are never read, nor those behind an expired "
        "position. earliest reads them; keep latest if only news counts.",
    )
