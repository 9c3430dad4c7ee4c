"""Waits of a chaos run that end by what the instances do, not by the clock: a slow machine is not a stuck application.

A wait goes on while something moves. Seconds without progress count by the share of a core that a process gets on this
machine, so that a machine on which twenty processes wait for two cores has more time than a quiet one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["COMMIT_S", "STILL_S", "Patience", "Signs", "phase_of", "share_of_a_core"]

STILL_S = 120.0  # of a whole core, without any sign
COMMIT_S = 600.0  # of a whole core, without a commit: phases that change forever are no progress
LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """State of the group at one moment; a later one that differs is progress.

    Attributes:
        commits: The committed offsets, or None if no broker answered.
        phases: Phase of each instance, see `phase_of`.
    """

    commits: Hashable | None
    phases: Hashable


class Patience:
    """The time without progress in one wait. Mutable."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, share: Callable[[], float] | None = None
    ) -> None:
        self._clock, self._share = clock, share or share_of_a_core
        self._looked = self.began = clock()
        self._seen: Signs | None = None
        self._still_s = self._without_commit_s = 0.0
        self._moved = self._committed = self.began

    def look(self, signs: Signs) -> str:
        """Return why the wait is over without success, in words, or "" while there is hope."""
        now = self._clock()
        counted = (now - self._looked) * self._share()
        self._looked = now
        self._still_s += counted
        self._without_commit_s += counted
        before, self._seen = self._seen, signs
        if before is not None and None not in (signs.commits, before.commits) and signs.commits != before.commits:
            self._still_s = self._without_commit_s = 0.0
            self._moved = self._committed = now
        elif before is not None and signs.phases != before.phases:
            self._still_s = 0.0
            self._moved = now
        if signs.commits is None and before is not None:
            # A moment without a broker must not hide a commit that happened meanwhile.
            self._seen = Signs(commits=before.commits, phases=signs.phases)
        if self._still_s > STILL_S:
            return f"stuck: nothing moved for {now - self._moved:.0f} s ({self._still_s:.0f} s of a core)"
        if self._without_commit_s > COMMIT_S:
            return f"stuck: no commit for {now - self._committed:.0f} s ({self._without_commit_s:.0f} s of a core)"
        return ""


def share_of_a_core() -> float:
    """Return the part of a core that a process which could run gets now, by the load average of a minute."""
    cores = os.cpu_count() or 1
    return max(LEAST_SHARE, min(1.0, cores / max(os.getloadavg()[0], 1e-6)))


def phase_of(status: Mapping[str, Any]) -> Hashable:
    """Return what of a status file changes when an instance gets on. Times, rates and texts are left out."""
    return (
        status.get("pid"),
        status.get("state"),
        status.get("member_epoch"),
        _pairs(status.get("tasks", {})),
        _pairs(status.get("opening", {})),
        _pairs(status.get("restored", {})),
        _pairs(status.get("batches", {})),
        tuple(
            (name, partition, found.get("remaining"))
            for kind in ("restoring", "standby")
            for name, partitions in sorted(status.get(kind, {}).items())
            for partition, found in sorted(partitions.items())
        ),
    )


def _pairs(values: Mapping[str, Any]) -> Hashable:
    return tuple((name, tuple(v) if isinstance(v, Iterable) else v) for name, v in sorted(values.items()))
