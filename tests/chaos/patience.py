"""Waits of a chaos run that end by what the instances do, not by the clock: a slow machine is not a stuck application.

A wait goes on while something moves. Seconds without progress count by the share of a core that the instances got of
what they could have used: a process that waits for a core all the time is slow, one that waits for an event is stuck.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["COMMIT_S", "STILL_S", "Patience", "ShareOfACore", "Signs", "phase_of"]

STILL_S = 120.0  # of a whole core, without any sign
COMMIT_S = 600.0  # of a whole core, without a commit: phases that change forever are no progress
LEAST_SHARE = 0.02
LIMIT_S = 3600.0  # by the clock, without any sign
EVERY_S = 6.0


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

    def __init__(self, share: Callable[[], float], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._share = clock, share
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
        if self._still_s > STILL_S or now - self._moved > LIMIT_S:
            return f"stuck: nothing moved for {now - self._moved:.0f} s ({self._still_s:.0f} s of a core)"
        if self._without_commit_s > COMMIT_S:
            return f"stuck: no commit for {now - self._committed:.0f} s ({self._without_commit_s:.0f} s of a core)"
        return ""


class ShareOfACore:
    """Share of a core that the threads of some processes got of what they could have used. Mutable.

    The kernel counts how long each thread ran and how long it waited for a core (`/proc/PID/task/TID/schedstat`).
    A thread that waits for a lock, a timer or a socket counts in neither, so an idle process has a share of 1.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], *, root: Path = Path("/proc")) -> None:
        self._pids, self._root = pids, root
        self._before: dict[Path, tuple[int, int]] = {}
        self._looked, self._share = -EVERY_S, 1.0

    def __call__(self) -> float:
        """Return the share between the last two looks, which are `EVERY_S` apart or more."""
        if time.monotonic() - self._looked >= EVERY_S:
            self._looked = time.monotonic()
            self._share = self.look()
        return self._share

    def look(self) -> float:
        """Return the share since the last look."""
        now = dict(self._times())
        ran = waited = 0
        for thread, (running, waiting) in now.items():
            if thread in self._before:
                ran += running - self._before[thread][0]
                waited += waiting - self._before[thread][1]
        self._before = now
        return max(LEAST_SHARE, ran / (ran + waited)) if waited > 0 else 1.0

    def _times(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for pid in self._pids():
            with contextlib.suppress(OSError):  # it ended
                for thread in (self._root / str(pid) / "task").iterdir():
                    with contextlib.suppress(OSError, ValueError):
                        ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
                        yield thread, (ran, waited)


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
