"""Driver-side view of a subtopology's running tasks: their positions, and their share of the next micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.spark.runtime.batches.fetch_stage import name_of
from headrace.spark.runtime.batches.plan import InputRange, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.stores.store import BatchKey

__all__ = ["RunningTask", "TopicPartition", "plan_slots"]

TopicPartition = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class RunningTask:
    """One task that this instance owns and has opened."""

    partition: int
    positions: dict[TopicPartition, int]
    slot: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    committed: BatchKey | None = None
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    skipped: dict[TopicPartition, dict[int, str]] = field(default_factory=dict)  # undigestible offsets → reason
    stop_at: dict[TopicPartition, int] = field(default_factory=dict)  # the record at which the application fails
    # by table: how far it has the rows, where that is further than the group's offsets
    ahead: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    state_keys: int = 0
    state_bytes: int = 0
    due_ms: int | None = 0  # when its next timer of processing time is due; None: it has none. 0 until it is known

    @property
    def lag(self) -> int:
        return sum(max(0, end - self.positions.get(where, 0)) for where, end in self.ends.items())

    def plan(self, max_records: int) -> TaskPlan:
        """Return the next input: every input partition, with an empty range if it has no new records."""
        ranges = tuple(self._range(where, start, max_records) for where, start in sorted(self.positions.items()))
        ranges, had = self._alike(ranges) if self.ahead else (ranges, ())
        return TaskPlan(partition=self.partition, ranges=ranges, committed=self.committed, complete_tables=had)

    def _alike(self, ranges: tuple[InputRange, ...]) -> tuple[tuple[InputRange, ...], tuple[str, ...]]:
        """Ranges that the same tables have already, each as a whole; the others wait for the next micro-batch."""
        chosen: tuple[str, ...] | None = None
        found = []
        for given in ranges:
            where = (given.topic, given.partition)
            further = {name: at[where] for name, at in self.ahead.items() if at.get(where, 0) > given.start}
            # 1. Up to where the nearest table is ahead: beyond it the set of tables that need the rows changes.
            cut = given.cut(min([given.end, *further.values()]))
            if cut.end > cut.start:
                had = tuple(sorted(further))
                # 2. One plan names one set of tables for all ranges of the task. The first range with records decides,
                #    others wait.
                chosen = had if chosen is None else chosen
                cut = cut if had == chosen else given.cut(given.start)
            found.append(cut)
        return tuple(found), chosen or ()

    def _range(self, where: TopicPartition, start: int, max_records: int) -> InputRange:
        end = max(start, min(self.ends.get(where, start), start + max_records))
        # A record at which the application will fail is not read; everything before it is.
        end = min(end, max(start, self.stop_at.get(where, end)))
        bad = {offset: reason for offset, reason in self.skipped.get(where, {}).items() if start <= offset < end}
        return InputRange(
            topic=where[0],
            partition=where[1],
            start=start,
            end=end,
            skipped=tuple(sorted(bad)),
            dead={str(offset): reason for offset, reason in bad.items()},
            topic_id=self.topic_ids.get(where[0], ""),
        )

    def remember(self, before: RunningTask) -> None:
        """Keep the records that a micro-batch failed on, which an earlier opening of this task knows.

        A record that fails in a slot on an executor ends the slot, and with it the opening that learned of the record.
        """
        if before.topic_ids != self.topic_ids:  # offsets of a topic that was created again are other records
            return
        for where, position in self.positions.items():
            self.skipped[where] = {at: why for at, why in before.skipped.get(where, {}).items() if at >= position}
            if before.stop_at.get(where, -1) >= position:
                self.stop_at[where] = before.stop_at[where]

    def take(self, report: TaskReport, batch: BatchKey) -> None:
        """Advance to the offsets that a committed batch reached."""
        for where in self.positions:
            self.positions[where] = report.reached.get(name_of(*where), self.positions[where])
            # Offsets that were passed over are forgotten once they lie behind the position.
            known = self.skipped.get(where)
            if known:
                self.skipped[where] = {at: why for at, why in known.items() if at >= self.positions[where]}
        self.committed = batch
        self.state_keys, self.state_bytes = report.state_keys, report.state_bytes
        self.due_ms = report.next_due_ms


def plan_slots(tasks: Iterable[RunningTask], max_records: int) -> tuple[SlotPlan, ...]:
    """Return a plan for each slot with a task that has new input."""
    rows: dict[int, list[TaskPlan]] = {}
    for task in sorted(tasks, key=lambda found: found.partition):
        plan = task.plan(max_records)
        if plan.records:
            rows.setdefault(task.slot, []).append(plan)
    return tuple(SlotPlan(slot=slot, tasks=tuple(rows[slot])) for slot in sorted(rows))


def only(slots: Sequence[SlotPlan], tasks: Mapping[int, tuple[InputRange, ...]]) -> tuple[SlotPlan, ...]:
    """Return the same slots with only these tasks and ranges."""
    kept = []
    for slot in slots:
        rows = tuple(replace(task, ranges=tasks[task.partition]) for task in slot.tasks if task.partition in tasks)
        if rows:
            kept.append(SlotPlan(slot=slot.slot, tasks=rows))
    return tuple(kept)
