"""Course of every simulated world: chaos, then calm until it has settled, then the rules that hold in calm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from headrace.simulator.checkers import RuleBroken
from headrace.simulator.event_queue import ClockStalled, EventQueue
from headrace.simulator.transcript import Outcome, Transcript

__all__ = ["STEP_MS", "GroupWorld", "run_world", "settle"]

STEP_MS = 100
"""How often a world that settles is looked at."""

Member = TypeVar("Member")


def run_world(
    course: Callable[[], int],
    *,
    seed: int,
    groups: str,
    transcript: Transcript,
    did: Counter[str],
    checks: Callable[[], int],
    findings: tuple[type[Exception], ...] = (RuleBroken, ClockStalled),
) -> Outcome:
    """Run the course of one world. A broken rule is part of the outcome and is never raised.

    Args:
        course: Runs the world and returns how much moved in calm.
        seed: The world's seed.
        groups: The kind of group, as `--groups` names it.
        transcript: The world's transcript.
        did: How often chaos took each action.
        checks: Returns the number of checks so far.
        findings: Exceptions that are broken rules. Any other one is a crash of the code under simulation and is raised
            with its traceback.
    """
    broken: str | None = None
    moved = 0
    try:
        moved = course()
    except findings as rule:
        broken = repr(rule) if isinstance(rule, KeyError) else str(rule)
        transcript.note(f"BROKEN: {broken}")
    return Outcome(
        seed=seed,
        groups=groups,
        broken=broken,
        digest=transcript.digest(),
        transcript=transcript.lines(),
        did=did,
        checks=checks(),
        moved=moved,
    )


def settle(events: EventQueue, look: Callable[[], str | None], *, patience_ms: int, cause: str) -> None:
    """Let time pass in steps until `look` returns None.

    Args:
        events: The world's clock.
        look: Called after each step; returns why the world has not settled yet.
        patience_ms: How long that may take.
        cause: What the world settles after, for the message.

    Raises:
        RuleBroken: The world has not settled after `patience_ms`.
    """
    end_ms = events.now_ms + patience_ms
    why: str | None = "no time has passed"
    while why is not None:
        if events.now_ms >= end_ms:
            raise RuleBroken(f"{cause}: not settled after {patience_ms} ms: {why}")
        events.run_until(events.now_ms + STEP_MS)
        why = look()


class _Checkers(Protocol):
    def check(self) -> None: ...


class GroupWorld(Generic[Member]):
    """Base of the worlds of one group, with their course in calm. Mutable."""

    settling_ms: int
    """Several sessions, rebalance timeouts and API timeouts one after the other: a world that needs longer is stuck."""

    seed: int
    events: EventQueue
    transcript: Transcript
    _watched: bool

    def note(self, text: str) -> None:
        self.transcript.note(text)

    def advance(self, duration_ms: int) -> None:
        self.events.run_until(self.events.now_ms + duration_ms)

    def settle(self, cause: str) -> None:
        """Let time pass until everything is as it should be. Raises RuleBroken."""
        settle(self.events, self._unsettled_reason, patience_ms=self.settling_ms, cause=cause)
        self._check_balance()
        self.note(f"settled: {cause}")

    def check_movement(self) -> int:
        """Add a member, then remove one: each moves only what it must. Returns how much moved."""
        before = self._owners()
        joiner = self._start_member()
        self.settle("one member more")
        after = self._owners()
        moved = self._check_moves(before, after, "one member more")
        self._end_member(joiner)
        self.settle("one member less")
        return moved + self._check_moves(after, self._owners(), "one member less")

    # --- by kind of group ---

    @property
    def checkers(self) -> _Checkers:
        raise NotImplementedError

    def _check(self) -> None:
        if self._watched:
            self.checkers.check()

    def _unsettled_reason(self) -> str | None:
        """Start members that are missing, and return why the world has not settled."""
        raise NotImplementedError

    def _check_balance(self) -> None:
        raise NotImplementedError

    def _owners(self) -> Mapping[Any, str]:
        raise NotImplementedError

    def _check_moves(self, before: Mapping[Any, str], after: Mapping[object, str], cause: str) -> int:
        raise NotImplementedError

    def _start_member(self) -> Member:
        raise NotImplementedError

    def _end_member(self, member: Member) -> None:
        raise NotImplementedError
