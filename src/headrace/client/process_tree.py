"""Processes and their descendants, to be killed when their driver is gone. Linux (/proc) and macOS (ps).

A process is identified by pid *and* start time, because pids are reused. Descendants are looked for regularly, not only
at the end: when a JVM dies first, its Python workers are adopted by init and no longer related to it. A process group
with a known leader counts as well: Spark's Python daemon makes one for itself and its workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessEntry", "ProcessTree", "process_table"]

_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process; `started` is only compared for equality."""

    pid: int
    parent: int
    group: int
    started: str


def process_table() -> dict[int, ProcessEntry]:
    """Return all living processes by pid, without zombies."""
    return _table_from_proc() if sys.platform.startswith("linux") else _table_from_ps()


def _table_from_proc() -> dict[int, ProcessEntry]:
    table: dict[int, ProcessEntry] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            entry = _entry_from_proc(int(directory.name))
            if entry is not None:
                table[entry.pid] = entry
    return table


def _entry_from_proc(pid: int) -> ProcessEntry | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None  # it ended while we looked
    # The command's name may hold blanks and brackets; the last bracket ends it. Field 3 follows (proc(5)).
    fields = line[line.rfind(")") + 2 :].split()
    if fields[0] in {"Z", "X"}:
        return None
    return ProcessEntry(pid=pid, parent=int(fields[1]), group=int(fields[2]), started=fields[19])


def _table_from_ps() -> dict[int, ProcessEntry]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="], capture_output=True, text=True, check=False, timeout=10
    )
    table: dict[int, ProcessEntry] = {}
    for line in listing.stdout.splitlines():
        pid, parent, group, state, started = line.split(maxsplit=4)
        if not state.startswith("Z"):
            table[int(pid)] = ProcessEntry(pid=int(pid), parent=int(parent), group=int(group), started=started)
    return table


class ProcessTree:
    """Watched processes and their descendants, as far as known. Mutable."""

    def __init__(self) -> None:
        self._known: dict[int, ProcessEntry] = {}

    def watch(self, pid: int) -> bool:
        """Watch a process; False if it does not exist."""
        entry = process_table().get(pid)
        if entry is None or pid in _never_killed():
            return False
        self._known[pid] = entry
        return True

    @property
    def known(self) -> tuple[int, ...]:
        """The known pids, for tests and logs."""
        return tuple(sorted(self._known))

    def observe(self) -> list[int]:
        """Look for descendants, forget processes that ended, and return the new pids."""
        if not self._known:
            return []
        table = process_table()
        # The kernel does not reuse a group's number while it has members, so the group of a dead leader is still ours.
        groups = {entry.pid for entry in self._known.values()}
        self._known = {pid: table[pid] for pid, entry in self._known.items() if _is_same(entry, table.get(pid))}
        # Parents are known before their children only by luck of the listing's order, so the scan repeats until nothing
        # is new. Descendants are found by parent, or by process group: a daemon that was orphaned has init as its
        # parent.
        found: list[int] = []
        spared = _never_killed()
        growing = True
        while growing:
            growing = False
            for entry in table.values():
                if entry.pid in self._known or entry.pid in spared:
                    continue
                if entry.parent in self._known or entry.group in groups:
                    self._known[entry.pid] = entry
                    groups.add(entry.pid)
                    found.append(entry.pid)
                    growing = True
        return found

    def kill(self) -> tuple[int, ...]:
        """Stop all processes, so that none can fork any more, then send SIGKILL; return their pids."""
        # A process can fork between the listing and its SIGKILL, and its child would survive. So everything is stopped
        # first: a stopped process cannot fork. The listing is repeated until it shows no process that is not stopped;
        # in each round only children forked before their parent stopped can be new, so a few rounds suffice.
        self.observe()
        stopped: set[int] = set()
        for _ in range(_ROUNDS):
            fresh = [pid for pid in self._known if pid not in stopped]
            if not fresh:
                break
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
                stopped.add(pid)
            self.observe()
        killed = tuple(sorted(self._known))
        for pid in killed:
            _signal(pid, signal.SIGKILL)
        self._known.clear()
        return killed


def _is_same(entry: ProcessEntry, now: ProcessEntry | None) -> bool:
    """Return whether it is the same process; parent and group may have changed by adoption or `setpgid`."""
    return now is not None and now.started == entry.started


def _never_killed() -> frozenset[int]:
    return frozenset({0, 1, os.getpid(), os.getppid()})


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
