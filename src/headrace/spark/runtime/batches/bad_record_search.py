"""Searches for bad records by running parts of a failed micro-batch, where rows cannot be tried in the driver.

`driver_evaluation` finds the records that Spark SQL cannot process without a Spark job. Two kinds of failures are left.

**Prefixes** (`PrefixSearch`). Some failures belong to no row: a result that only several records together make too
large, a batch that exceeds a worker's memory, a sink of the user's that refuses a value. No evaluation of single rows
finds them. So the failed records are processed again, first half first, as micro-batches that are committed when they
succeed:

1. A prefix that succeeds is done; the failure lies in the rest.
2. A prefix that fails takes the place of the whole.
3. A single record that fails, with all records before it processed, is the one to blame.

That is at most log2(records) + 1 failed micro-batches for each bad record. The record does not depend on where
micro-batches began. When every prefix succeeds, the batch was only too large as a whole, and no record is blamed.
Rejected: probing prefixes without committing them. It needs a second implementation of stores and sinks.

**Halving** (`find_bad_records`). A Spark release may lack an internal class that `driver_evaluation` needs. Then the
failed batch's input is read and put through the user's SQL, nothing written: first each slot, then each task, then
halves of its ranges, down to single offsets. About log2(records) jobs for one bad record, each as long as a small
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.spark.runtime.batches.plan import InputRange, SlotPlan, TaskPlan
from headrace.spark.runtime.tasks import only

__all__ = ["BadRecord", "PrefixSearch", "Probe", "find_bad_records", "only_record"]

Probe = Callable[[Mapping[int, tuple[InputRange, ...]]], str | None]
"""Tasks and ranges → what Spark said about them, None when it digests them all."""
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
        # 1. What is planned now, cut at the ends of the failed ranges: records that arrived since belong to later
        #    micro-batches.
        left = {
            task.partition: tuple(
                found.cut(max(found.start, min(found.end, self._ends.get(_input(task, found), found.start))))
                for found in task.ranges
            )
            for task in _tasks(planned)
        }
        # 2. Half of it, rounded up, so that one record is left at last and not none.
        records = sum(found.end - found.start for ranges in left.values() for found in ranges)
        wanted = (records + 1) // 2
        half = {}
        # 3. Taken in the order of tasks, inputs and offsets. The order has to be the same in every step: the record to
        #    blame is the last one of the shortest failing prefix.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One bad record and Spark's reason."""

    task: int
    topic: str
    partition: int
    offset: int
    reason: str
    code: str = "undigestible"  # of the error that names it


def find_bad_records(slots: tuple[SlotPlan, ...], probe: Probe, *, most_per_task: int) -> list[BadRecord]:
    """The bad records in order of task, topic, partition, offset; the first `most_per_task` of a task."""
    found: list[BadRecord] = []
    for slot in slots:
        everything = {task.partition: task.ranges for task in slot.tasks}
        # A slot that succeeds as a whole needs no look at its tasks.
        if len(slots) > 1 and probe(everything) is None:
            continue
        for task in slot.tasks:
            of_task: list[BadRecord] = []
            for one_range in task.ranges:
                if len(of_task) < most_per_task and one_range.end > one_range.start:
                    of_task += _in_range(task.partition, one_range, probe, most_per_task - len(of_task))
            found += of_task
    return found


def _in_range(task: int, one_range: InputRange, probe: Probe, most: int) -> list[BadRecord]:
    """Depth first and in order of offsets, so that stopping early leaves out only later ones."""
    found: list[BadRecord] = []
    waiting = [one_range]
    while waiting and len(found) < most:
        part = waiting.pop()
        reason = probe({task: (part,)})
        if reason is None:
            continue
        if part.end - part.start == 1:
            found.append(
                BadRecord(task=task, topic=part.topic, partition=part.partition, offset=part.start, reason=reason)
            )
            continue
        middle = (part.start + part.end) // 2
        # A stack: the right half goes first, so the left half is tried first.
        waiting.append(_between(part, middle, part.end))
        waiting.append(_between(part, part.start, middle))
    return found


def _between(whole: InputRange, start: int, end: int) -> InputRange:
    return InputRange(
        topic=whole.topic, partition=whole.partition, start=start, end=end, skipped=whole.skipped, dead=whole.dead
    )
