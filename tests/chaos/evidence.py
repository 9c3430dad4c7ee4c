"""State of a stuck application, written down before anything is ended: offsets, members, status files, stacks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.spark.application.processes import Application, group

from headrace.client.admin import Admin
from headrace.client.process_tree import ProcessEntry
from headrace.errors import HeadraceError

__all__ = ["evidence_of"]

STACKS_S = 5.0  # for processes to write their stacks
LAST_CHARACTERS = 6000
Family = Mapping[str, Sequence[ProcessEntry]]


def evidence_of(
    bootstrap_servers: str, group_id: str, families: Mapping[str, tuple[Application, Family]]
) -> tuple[str, str]:
    """Return what is seen of a stuck group, in short and as a whole.

    JVMs write their stacks on SIGQUIT and go on. Python processes write theirs on SIGABRT and end by it, so this is the
    end of the instances.

    Args:
        bootstrap_servers: Of the broker.
        group_id: Of the streams group.
        families: By instance: the application and its processes by role.
    """
    loads = f"load {os.getloadavg()[0]:.1f}, {os.getloadavg()[1]:.1f}, {os.getloadavg()[2]:.1f}"
    short, whole = [loads], [loads]
    try:
        with Admin(bootstrap_servers, bootstrap_timeout_ms=5000, api_timeout_ms=10_000) as admin:
            lags = _lags(admin, group_id)
            short += lags[:10]
            whole += [*lags, str(group(admin, group_id))]
    except HeadraceError as error:
        short.append(f"no broker: {error}")
        whole.append(short[-1])
    for name, (application, family) in families.items():
        status = application.status
        age = time.time() - status.get("time", 0.0)
        kept = {key: status.get(key) for key in ("state", "tasks", "opening", "restoring", "error", "not_ready")}
        short.append(f"{name}, {age:.0f} s ago: {json.dumps(kept)}")
        whole.append(f"{name}: {json.dumps(status)}")
        whole += [
            f"{name}, {role} {entry.pid}: {_running(entry.pid)}" for role, them in family.items() for entry in them
        ]
    for _, family in families.values():
        _signal(family.get("jvm", ()), signal.SIGQUIT)
    time.sleep(STACKS_S)
    for _, family in families.values():
        for role in ("workers", "replicas", "driver"):
            _signal(family.get(role, ()), signal.SIGABRT)
    time.sleep(STACKS_S)
    whole += [
        f"--- {name}\n{a.log.read_text(errors='replace')[-LAST_CHARACTERS:]}" for name, (a, _) in families.items()
    ]
    return "\n".join(short), "\n".join(whole)


def _lags(admin: Admin, group_id: str) -> list[str]:
    """Return the partitions that are behind their ends, the furthest first."""
    described = group(admin, group_id)
    committed = admin.committed_offsets(group_id)
    if described is None:
        return ["the group is not described"]
    ends = admin.list_offsets(dict.fromkeys(committed, "latest"))
    behind = sorted(((end.offset - committed[where], where) for where, end in ends.items()), reverse=True)
    found = [f"{t}-{p}: {lag} behind, committed {committed[t, p]}" for lag, (t, p) in behind if lag]
    return found or [f"all of {len(committed)} partitions with offsets are at their ends"]


def _running(pid: int) -> str:
    """Return state and CPU seconds of a process."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return f"{fields[0]}, {(int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK'):.1f} CPU seconds"
    return "ended"


def _signal(entries: Sequence[ProcessEntry], number: int) -> None:
    for entry in entries:
        with contextlib.suppress(ProcessLookupError):
            os.kill(entry.pid, number)
