"""Search by halving for the records that Spark SQL cannot process, where they cannot be tried in the driver.

A cast, division or UDF error fails the whole Spark job and names no row. `driver_evaluation` finds such rows without
jobs, by means of Spark's internal classes. This is the way for a Spark release that lacks one of them: the failed
batch's input is read and put through the user's SQL, nothing written. First each slot, then each task, then halves of
its ranges, down to single offsets: about log2(records) jobs for one bad record, each as long as a small micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.spark.runtime.plan import InputRange, SlotPlan

__all__ = ["Probe", "Undigestible", "find_undigestible"]

Probe = Callable[[Mapping[int, tuple[InputRange, ...]]], str | None]
"""Tasks and ranges → what Spark said about them, None when it digests them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undigestible:
    """One record and what Spark said about it."""

    task: int
    topic: str
    partition: int
    offset: int
    reason: str
    code: str = "undigestible"  # of the error that names it


def find_undigestible(slots: tuple[SlotPlan, ...], probe: Probe, *, most_per_task: int) -> list[Undigestible]:
    """The bad records in order of task, topic, partition, offset; the first `most_per_task` of a task."""
    found: list[Undigestible] = []
    for slot in slots:
        everything = {task.partition: task.ranges for task in slot.tasks}
        if len(slots) > 1 and probe(everything) is None:
            continue
        for task in slot.tasks:
            of_task: list[Undigestible] = []
            for one_range in task.ranges:
                if len(of_task) < most_per_task and one_range.end > one_range.start:
                    of_task += _in_range(task.partition, one_range, probe, most_per_task - len(of_task))
            found += of_task
    return found


def _in_range(task: int, one_range: InputRange, probe: Probe, most: int) -> list[Undigestible]:
    """Depth first and in order of offsets, so that stopping early leaves out only later ones."""
    found: list[Undigestible] = []
    waiting = [one_range]
    while waiting and len(found) < most:
        part = waiting.pop()
        reason = probe({task: (part,)})
        if reason is None:
            continue
        if part.end - part.start == 1:
            found.append(
                Undigestible(task=task, topic=part.topic, partition=part.partition, offset=part.start, reason=reason)
            )
            continue
        middle = (part.start + part.end) // 2
        waiting.append(_between(part, middle, part.end))
        waiting.append(_between(part, part.start, middle))
    return found


def _between(whole: InputRange, start: int, end: int) -> InputRange:
    return InputRange(
        topic=whole.topic, partition=whole.partition, start=start, end=end, skipped=whole.skipped, dead=whole.dead
    )
