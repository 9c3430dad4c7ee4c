"""Plan of one micro-batch, sent by the driver to the stages, and their reports. Plain data, serialised as JSON.

A plan is immutable and holds everything a stage needs: a stage asks for nothing else, so one that outlives its batch
cannot act on newer facts. The member epoch is the one captured together with the assignment
when the batch was planned, never the latest (Kafka accepts the current epoch for a partition that another member owns).
Producer identities belong to the driver: a stage writes with the one of its slot, in the slot's transaction; at least
once there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from headrace.spark.runtime.stores.store import BatchKey

__all__ = [
    "PLAN_PROPERTY",
    "FollowedTrace",
    "InputRange",
    "MicroBatchPlan",
    "SlotPlan",
    "StageReport",
    "TaskPlan",
    "TaskReport",
]

PLAN_PROPERTY = "headrace.plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """Offsets `[start, end)` of one input partition. A maximum: the fetch stage reports the offset it reached."""

    topic: str
    partition: int
    start: int
    end: int
    skipped: tuple[int, ...] = ()  # offsets that SQL cannot digest: not handed on
    dead: Mapping[str, str] = field(default_factory=dict)  # of those, "offset" → reason, for the dead-letter topic
    topic_id: str = ""  # when the task was opened: positions mean nothing in another topic of the same name

    def cut(self, end: int) -> InputRange:
        return replace(self, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """One task's part of a plan: its input, and the required position of its stores."""

    partition: int
    ranges: tuple[InputRange, ...]
    committed: BatchKey | None = (
        None  # the batch that the driver knows as committed; a prepared one counts if it is this
    )
    complete_tables: tuple[str, ...] = ()  # tables that have the rows of these ranges already

    @property
    def records(self) -> int:
        return sum(found.end - found.start for found in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """The tasks that one Spark partition runs, one after another."""

    slot: int
    tasks: tuple[TaskPlan, ...]
    transactional_id: str = ""  # empty: at least once
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchPlan:
    """One attempt of one micro-batch of one subtopology."""

    subtopology_id: str
    # Number and attempt: they distinguish reports and stores of this attempt from those of any other.
    batch: BatchKey
    member_id: str
    member_epoch: int
    bootstrap_servers: str
    state_dir: str  # of the application: stores and reports lie below it
    slots: tuple[SlotPlan, ...]
    topic_ids: Mapping[str, str]  # of the changelogs
    group_id: str = ""
    boot_id: str = ""
    compression: str = "none"
    fetch_max_bytes: int = 16 * 1024 * 1024
    fetch_max_partition_bytes: int = 2 * 1024 * 1024
    max_bytes_per_task: int = 64 * 1024 * 1024
    ends_early: bool = True  # whether a fetch stage may stop before `end`; not where several chains read the same range
    exactly_once: bool = False
    fetch_deadline_ms: int = 0  # a fetch stage that may end early does so after this time; 0: never
    transaction_version: int = 2
    transaction_timeout_ms: int = 10_000
    shared_topics: tuple[str, ...] = ()  # written by more than one stage of a slot
    time_ms: int = 0  # processing time of the whole micro-batch
    follows_traces: bool = False  # whether traces of input records are followed
    most_traces: int = 32  # that one task follows
    probe: bool = False  # only find out whether SQL digests the input: no store, no produce

    @property
    def tasks(self) -> tuple[TaskPlan, ...]:
        return tuple(task for slot in self.slots for task in slot.tasks)

    def slot(self, index: int) -> SlotPlan:
        for found in self.slots:
            if found.slot == index:
                return found
        return SlotPlan(slot=index, tasks=())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MicroBatchPlan:
        facts = json.loads(text)
        slots = tuple(_slot(found) for found in facts.pop("slots"))
        facts |= {"batch": BatchKey(**facts["batch"]), "slots": slots, "shared_topics": tuple(facts["shared_topics"])}
        return cls(**facts)


def _slot(facts: dict[str, Any]) -> SlotPlan:
    return SlotPlan(**{**facts, "tasks": tuple(_task(found) for found in facts["tasks"])})


def _task(facts: dict[str, Any]) -> TaskPlan:
    ranges = tuple(InputRange(**{**found, "skipped": tuple(found["skipped"])}) for found in facts["ranges"])
    committed = BatchKey(**facts["committed"]) if facts["committed"] else None
    return TaskPlan(
        **{**facts, "ranges": ranges, "committed": committed, "complete_tables": tuple(facts["complete_tables"])}
    )


class FollowedTrace(NamedTuple):
    """The trace context of some records of one input partition, `traceparent` and `tracestate` as one text."""

    context: str
    topic: str
    partition: int
    offset: int  # of the first of them
    records: int


@dataclass(slots=True, kw_only=True)
class TaskReport:
    """Report of a stage about one task."""

    partition: int
    reached: dict[str, int] = field(default_factory=dict)  # "topic-partition" → next offset (fetch stage)
    records_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead: int = 0
    state_keys: int = 0
    state_bytes: int = 0
    state_updates: int = 0
    changelog_records: int = 0
    late_rows: int = 0
    watermarks_ms: dict[str, int] = field(default_factory=dict)  # event time in ms, by the operator's store
    announced: dict[str, int] = field(default_factory=dict)  # watermark in µs to send on, by the operator's store
    upstream: list[list[Any]] = field(default_factory=list)  # watermarks read from a repartition topic, in log order
    silent: list[list[Any]] = field(default_factory=list)  # (source, upstream task, ms) of those that hold back windows
    next_due_ms: int | None = None  # when the next timer of processing time is due
    table_rows: dict[str, int] = field(default_factory=dict)  # rows written to tables, by the sink's name
    traces: list[FollowedTrace] = field(default_factory=list)  # each context once
    unfollowed: int = 0  # sampled records of more traces than a task follows
    notes: list[str] = field(default_factory=list)  # what the driver is to tell: a store was rebuilt, and why

    def add(self, other: TaskReport) -> None:
        """Add the report of another stage about the same task."""
        # Each input is reported by exactly one fetch stage, so nothing is overwritten.
        self.reached |= other.reached
        self.notes += other.notes
        self.silent += other.silent
        self.table_rows |= other.table_rows
        self.watermarks_ms |= other.watermarks_ms
        for trace in other.traces:
            self.add_trace(trace)
        self.announced |= other.announced
        if other.next_due_ms is not None:  # one operator at most has such timers
            self.next_due_ms = other.next_due_ms
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_trace(self, trace: FollowedTrace) -> None:
        """Add records of a trace; of a known context only their number counts."""
        trace = FollowedTrace(*trace)  # JSON has lists
        for at, known in enumerate(self.traces):
            if known.context == trace.context:
                self.traces[at] = known._replace(records=known.records + trace.records)
                return
        self.traces.append(trace)


_COUNTS = (
    "records_in", "bytes_in", "records_out", "skipped", "dead",
    "state_keys", "state_bytes", "state_updates", "changelog_records", "late_rows", "unfollowed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """Report of one Python stage of one slot. The last stage returns it as a Spark row, the others through a file."""

    stage: str
    slot: int
    batch: BatchKey
    tasks: tuple[TaskReport, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    reconnects: int = 0  # connections to brokers that were opened again: one may have been away
    intervals_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # begin and end by the host's clock
    resident: bool = False  # the stage ran in a resident slot, not in a job of the micro-batch

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StageReport:
        facts = json.loads(text)
        tasks = tuple(TaskReport(**found) for found in facts["tasks"])
        return cls(**{**facts, "batch": BatchKey(**facts["batch"]), "tasks": tasks})


def merged(reports: Iterable[StageReport]) -> dict[int, TaskReport]:
    """Return the reports of all stages, merged by task."""
    tasks: dict[int, TaskReport] = {}
    for report in reports:
        for task in report.tasks:
            tasks.setdefault(task.partition, TaskReport(partition=task.partition)).add(task)
    return tasks
