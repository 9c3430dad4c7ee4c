"""Rules about what counts as done: commits, and where a member begins that has no position."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cli.advice.finding import Finding
from headrace.cli.advice.given_configuration import GivenConfiguration
from headrace.cli.advice.situation import Situation

__all__ = ["auto_commit", "first_position"]


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
