"""Measures how tasks move, from outside: asks the group every few milliseconds until it is as expected."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.cli.demo.stage import GROUP, Stage
from headrace.cli.instances import Instance
from headrace.client.admin import Admin
from headrace.client.admin_results import StreamsGroupDescription
from headrace.errors import HeadraceError

__all__ = ["Takeover", "is_shared", "tasks_by_member", "watch_takeover"]

ASK_SECONDS = 0.02
PATIENCE_SECONDS = 60.0  # more than Kafka's session timeout, should the guardian be gone as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Seconds after the kill: the group knew, the survivor had all tasks, the survivor worked on all of them."""

    noticed_s: float
    owned_s: float
    working_s: float


def watch_takeover(stage: Stage, *, dead_member: str, survivor: Instance, tasks: int, killed_at: float) -> Takeover:
    """Returns when the survivor works on all tasks. `killed_at` is on `time.monotonic`'s clock."""
    with Admin(stage.bootstrap_servers, client_id="headrace-demo-takeover") as admin:

        def group() -> StreamsGroupDescription:
            return admin.describe_streams_groups([GROUP])[GROUP]

        noticed = _when(lambda: dead_member not in tasks_by_member(group()), killed_at, "the group noticing the kill")
        owned = _when(lambda: sum(tasks_by_member(group()).values()) == tasks, killed_at, "the tasks moving")
        working = _when(lambda: survivor.status().task_count == tasks, killed_at, "the survivor opening the tasks")
    return Takeover(noticed_s=noticed, owned_s=owned, working_s=working)


def tasks_by_member(group: StreamsGroupDescription) -> dict[str, int]:
    """Member id → number of active tasks it has now."""
    return {m.member_id: sum(len(partitions) for partitions in m.assignment.active.values()) for m in group.members}


def is_shared(counts: list[int], tasks: int, instances: int) -> bool:
    """Whether so many instances own all tasks, evenly."""
    return len(counts) == instances and sum(counts) == tasks > 0 and max(counts) - min(counts) <= 1


def _when(reached: Callable[[], bool], since: float, what: str) -> float:
    while not reached():
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise HeadraceError("demo-stuck", f"{what} took more than {PATIENCE_SECONDS:.0f} s", "see the log")
        time.sleep(ASK_SECONDS)
    return time.monotonic() - since
