"""Target assignment of this member, read ahead with StreamsGroupDescribe.

The coordinator computes a joiner's target at once, but assigns its tasks only when their owners have given them back. A
member that knows its target can restore state meanwhile. The cost is bounded: requests are sent only during a
rebalance, at most `LOOKS` for each, at growing intervals (longer in large groups, because the answer lists all
members), and never again after the broker refused one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kio.schema.types import GroupId

from headrace.client.membership.assignment import OwnedTasks, Tasks, tasks_of
from headrace.client.membership.request_manager import NEVER_MS
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage

__all__ = ["LOOKS", "TargetAssignment", "TargetAssignmentPoller", "describe_request", "described_group"]

# Ten requests with doubling pauses from 20 ms to 2 s last about 6.5 s. A rebalance that takes longer goes on without
# them: they shorten the restore, they decide nothing.
LOOKS = 10
FIRST_LOOK_MS = 10
LONGEST_PAUSE_MS = 2_000
PAUSE_PER_MEMBER_MS = 2

DescribedGroup = m.streams_group_describe_response.DescribedGroup
DescribeResponse = m.streams_group_describe_response.StreamsGroupDescribeResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignment:
    """Target assignment of one member as of `assignment_epoch`.

    It may change again before it comes true; a task in it is not owned until the assignment contains it.
    """

    group_epoch: int
    assignment_epoch: int
    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def tasks(self) -> OwnedTasks:
        """The tasks of the three roles."""
        return OwnedTasks(active=self.active, standby=self.standby, warmup=self.warmup)

    @property
    def is_final(self) -> bool:
        """Whether it belongs to the group's newest epoch."""
        return self.assignment_epoch >= self.group_epoch


class TargetAssignmentPoller:
    """Schedule of the requests. Mutable. Off until `begin`, and off for good if not permitted."""

    def __init__(self, *, enabled: bool) -> None:
        self._permitted = enabled
        self._looks_left = 0
        self._pause_ms = FIRST_LOOK_MS
        self._due_ms = NEVER_MS

    @property
    def due_ms(self) -> int:
        """Time at which to send the next request; `NEVER_MS` if none is required."""
        return self._due_ms if self._looks_left > 0 else NEVER_MS

    def begin(self, now_ms: int) -> None:
        """Start polling: a rebalance may be going on."""
        # Each change starts the pauses anew: the next step of a rebalance is then most likely soon.
        if self._permitted:
            self._looks_left = LOOKS
            self._pause_ms = FIRST_LOOK_MS
            self._due_ms = now_ms + FIRST_LOOK_MS

    def end(self) -> None:
        """Stop polling: the assignment equals the target, or the membership ended."""
        self._looks_left = 0

    def request_sent(self) -> None:
        """Note that a request was sent."""
        self._looks_left -= 1
        # Until the answer: one request is in flight at a time (`StreamsMembership.poll`).
        self._due_ms = NEVER_MS

    def on_failure(self, now_ms: int) -> None:
        """Wait longer after no answer, or an error."""
        self._wait(now_ms, 0)

    def on_group(self, group: DescribedGroup, member_id: str, now_ms: int) -> TargetAssignment | None:
        """Return this member's target from an answer; None without one."""
        if group.error_code != ErrorCode.none:
            self._wait(now_ms, 0)
            # A refusal (no DESCRIBE permission, an old broker) will not change; a missing group may only not be written
            # yet.
            if not is_retriable(group.error_code) and group.error_code != ErrorCode.group_id_not_found:
                self._permitted = False
                self.end()
            return None
        self._wait(now_ms, len(group.members))
        for member in group.members:
            if member.member_id == member_id:
                target = member.target_assignment
                return TargetAssignment(
                    group_epoch=int(group.group_epoch),
                    assignment_epoch=int(group.assignment_epoch),
                    active=_tasks(target.active_tasks),
                    standby=_tasks(target.standby_tasks),
                    warmup=_tasks(target.warmup_tasks),
                )
        return None

    def _wait(self, now_ms: int, members: int) -> None:
        # In a group of 1,000 members all of them may poll. An interval that grows with the number of members bounds the
        # answers to 500 per second, whatever the group's size. Each lists all members: 157 KB and 1.1 ms of the
        # coordinator for 1,000 members and 10,000 tasks (`benchmarks/unit_costs.py`).
        self._pause_ms = min(self._pause_ms * 2, LONGEST_PAUSE_MS)
        self._due_ms = now_ms + max(self._pause_ms, members * PAUSE_PER_MEMBER_MS)


def describe_request(group_id: str) -> RequestMessage:
    """Return the request, for the coordinator."""
    return m.streams_group_describe_request.StreamsGroupDescribeRequest(
        group_ids=(GroupId(group_id),), include_authorized_operations=False
    )


def described_group(response: DescribeResponse, group_id: str) -> DescribedGroup | None:
    """Return the group of an answer."""
    return next((group for group in response.groups if str(group.group_id) == group_id), None)


def _tasks(task_ids: Iterable[m.streams_group_describe_response.TaskIds]) -> Tasks:
    return tasks_of({ids.subtopology_id: [int(p) for p in ids.partitions] for ids in task_ids})
