"""Binary search for the first record at which processing fails, over prefixes in the order of the input.

Some failures belong to no row: a result that only several records together make too large, a batch that exceeds a
worker's memory, a sink of the user's that refuses a value. No evaluation of single rows finds them. So the failed
records are processed again, first half first, as micro-batches that are committed when they succeed:

1. A prefix that succeeds is done; the failure lies in the rest.
2. A prefix that fails takes the place of the whole.
3. A single record that fails, with all records before it processed, is the one to blame.

That is at most log2(records) + 1 failed micro-batches for each bad record. The record does not depend on where
micro-batches began. When every prefix succeeds, the batch was only too large as a whole, and no record is blamed.
Rejected: probing prefixes without committing them. It needs a second implementation of stores and sinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.spark.runtime.plan import InputRange, SlotPlan, TaskPlan
from headrace.spark.runtime.tasks import only

__all__ = ["PrefixSearch", "only_record"]

_Input = tuple[int, str, int]  # task, topic, partition


class PrefixSearch:
    """The records among which a micro-batch fails. Mutable."""

    def __init__(self, failed: Sequence[SlotPlan]) -> None:
        self._ends = _ends(failed)

    def narrow(self, failed: Sequence[SlotPlan]) -> None:
        """Note that these records fail as well: a part of those that failed before."""
        self._ends = _ends(failed)

    def prefix(self, planned: Sequence[SlotPlan]) -> tuple[SlotPlan, ...]:
        """Return the first half of what is left of the failed records, one record at least.

        Args:
            planned: What the tasks could process next. Ranges start where the tasks stand.

        Returns:
            The slots to process; none when the search is over.
        """
        left = {
            task.partition: tuple(
                found.cut(max(found.start, min(found.end, self._ends.get(_input(task, found), found.start))))
                for found in task.ranges
            )
            for task in _tasks(planned)
        }
        records = sum(found.end - found.start for ranges in left.values() for found in ranges)
        wanted = (records + 1) // 2
        half = {}
        for partition in sorted(left):
            ranges = []
            for found in left[partition]:
                taken = min(wanted, found.end - found.start)
                ranges.append(found.cut(found.start + taken))
                wanted -= taken
            if any(found.end > found.start for found in ranges):
                half[partition] = tuple(ranges)
        return only(planned, half)


def only_record(slots: Sequence[SlotPlan]) -> tuple[int, InputRange] | None:
    """Return the task and the range of the only record that is planned, None when there are more."""
    found = [(task.partition, found) for task in _tasks(slots) for found in task.ranges if found.end > found.start]
    return found[0] if len(found) == 1 and found[0][1].end - found[0][1].start == 1 else None


def _tasks(slots: Iterable[SlotPlan]) -> Iterator[TaskPlan]:
    return (task for slot in slots for task in slot.tasks)


def _ends(slots: Sequence[SlotPlan]) -> dict[_Input, int]:
    return {_input(task, found): found.end for task in _tasks(slots) for found in task.ranges}


def _input(task: TaskPlan, found: InputRange) -> _Input:
    return task.partition, found.topic, found.partition
