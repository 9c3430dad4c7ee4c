"""Delivery guarantees: what is asked of the coordinator for a commit, for its outcome, and for an abort.

What follows from the answers is decided by the machine: `tests/spark/machine/test_batch_outcome.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.client.admin_results import CommittedOffset
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.spark.runtime.batches import batch_commit
from headrace.spark.runtime.batches.batch_commit import AtLeastOnce, ExactlyOnce
from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.table_sinks import metadata_of

CLIENT: Any = object()


def task(partition: int, *ranges: tuple[int, int]) -> TaskPlan:
    """A task that reads topics t0, t1, … of its partition, from and to these offsets."""
    return TaskPlan(
        partition=partition,
        ranges=tuple(
            InputRange(topic=f"t{number}", partition=partition, start=start, end=end)
            for number, (start, end) in enumerate(ranges)
        ),
    )


def plan_of(*slots: tuple[TaskPlan, ...]) -> MicroBatchPlan:
    return MicroBatchPlan(
        subtopology_id="counts",
        batch=BatchKey(incarnation="m1", batch_id=7),
        member_id="member",
        member_epoch=5,
        bootstrap_servers="",
        state_dir="",
        slots=tuple(
            SlotPlan(slot=number, tasks=tasks, transactional_id=f"id-{number}") for number, tasks in enumerate(slots)
        ),
        topic_ids={},
    )


def reports_of(plan: MicroBatchPlan) -> dict[int, TaskReport]:
    """Every task reached the end of its ranges."""
    return {
        task.partition: TaskReport(
            partition=task.partition, reached={f"{r.topic}-{r.partition}": r.end for r in task.ranges}
        )
        for task in plan.tasks
    }


def batch(slots: int) -> MicroBatchPlan:
    """Slots with two tasks: one of two inputs, one of which has nothing to read."""
    return plan_of(*((task(2 * n, (10, 20), (5, 5)), task(2 * n + 1, (0, 3))) for n in range(slots)))


@dataclass
class Coordinator:
    """Stands for SlotTransactions and for the group's offsets."""

    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    outcomes: dict[int, HeadraceError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    metadata: str = ""

    def commit(
        self, plan: MicroBatchPlan, offsets: Mapping[int, Mapping[tuple[str, int], int]], *, metadata: str
    ) -> dict[int, HeadraceError | None]:
        self.metadata = metadata
        for found in offsets.values():
            self.offsets |= found
        return {slot.slot: self.outcomes.get(slot.slot) for slot in plan.slots}

    def renew(self, slots: tuple[SlotPlan, ...]) -> None:
        self.asked.append(f"renew {[slot.slot for slot in slots]}")

    def mark_unknown(self) -> None:
        self.asked.append("doubt")

    def resolve_unknown(self) -> None:
        self.asked.append("settle if in doubt")

    def check_ended(self, *, wait: bool) -> None:
        self.asked.append(f"settle ended, wait={wait}")

    def abort(self, slots: tuple[SlotPlan, ...]) -> None:
        self.asked.append(f"abort {[slot.slot for slot in slots]}")

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        return tuple(replace(slot, producer_id=50, producer_epoch=slot.slot) for slot in slots)

    def fetch(self, client: object, group_id: str, wanted: Any, *, require_stable: bool) -> dict[tuple[str, int], int]:
        assert (client, group_id, require_stable) == (CLIENT, "group", True)
        assert self.asked, "offsets are only final behind a new identity"
        return {where: self.offsets.get(where, -1) for where in wanted}


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    made = Coordinator()
    monkeypatch.setattr(batch_commit, "fetch_offsets", made.fetch)
    return made


@pytest.fixture
def exactly_once(coordinator: Coordinator) -> ExactlyOnce:
    return ExactlyOnce(CLIENT, "group", coordinator)  # type: ignore[arg-type]


def test_a_batch_begins_with_the_identities_of_its_slots(exactly_once: ExactlyOnce) -> None:
    begun = exactly_once.begin(batch(2).slots)
    assert [(slot.slot, slot.producer_id, slot.producer_epoch) for slot in begun] == [(0, 50, 0), (1, 50, 1)]


def test_offsets_that_were_reached_go_into_the_transactions(
    exactly_once: ExactlyOnce, coordinator: Coordinator
) -> None:
    plan = batch(2)
    reports = reports_of(plan)
    reports[0].reached["t0-0"] = 17
    lost = coordinator.outcomes[1] = CannotConnect("broker-unreachable", "no answer")
    assert exactly_once.commit(plan, reports) == {0: None, 1: lost}
    assert coordinator.offsets == {("t0", 0): 17, ("t0", 1): 3, ("t0", 2): 20, ("t0", 3): 3}
    assert coordinator.metadata == metadata_of(plan)


def test_offsets_are_read_behind_new_identities_of_the_slots(
    exactly_once: ExactlyOnce, coordinator: Coordinator
) -> None:
    coordinator.offsets[("t0", 2)] = 20
    found = exactly_once.read_offsets(batch(2), (1,))
    assert found == {("t0", 2): 20, ("t1", 2): -1, ("t0", 3): -1}
    assert coordinator.asked == ["renew [1]"]


def test_transactions_are_checked_resolved_and_aborted(exactly_once: ExactlyOnce, coordinator: Coordinator) -> None:
    exactly_once.mark_unknown()
    exactly_once.resolve_unknown()
    exactly_once.check_ended()
    exactly_once.check_ended(wait=True)
    exactly_once.abort(batch(2))
    assert coordinator.asked == [
        "doubt", "settle if in doubt", "settle ended, wait=False", "settle ended, wait=True", "abort [0, 1]"
    ]  # fmt: skip


# At least once.


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the offsets of OffsetCommit; an error put into FAILS is raised once."""
    asked: list[dict[str, Any]] = []

    def commit(client: object, group_id: str, offsets: Any, **given: Any) -> None:
        assert client is CLIENT
        asked.append({"group": group_id, "offsets": dict(offsets), **given})
        if FAILS:
            raise FAILS.pop()

    monkeypatch.setattr(batch_commit, "commit_offsets", commit)
    return asked


FAILS: list[HeadraceError] = []


def test_at_least_once_commits_reached_offsets_with_the_epoch_of_the_plan(commits: list[dict[str, Any]]) -> None:
    plan = plan_of((task(0, (10, 20), (5, 5)),), (task(1, (0, 3)),))
    reports = reports_of(plan)
    reports[0].reached["t0-0"] = 17
    assert AtLeastOnce(CLIENT, "group").commit(plan, reports) == {0: None, 1: None}
    at = metadata_of(plan)
    assert commits == [
        {
            "group": "group",
            "offsets": {
                ("t0", 0): CommittedOffset(offset=17, metadata=at),
                ("t0", 1): CommittedOffset(offset=3, metadata=at),
            },
            "member_id": "member",
            "member_epoch": 5,
        }
    ]


@pytest.mark.parametrize(
    "error",
    [
        Fenced("member-fenced", "another epoch"),
        BrokerError("broker-refused", "no"),
        CannotConnect("broker-unreachable", "away"),
    ],
    ids=lambda error: error.code,
)
def test_at_least_once_a_failed_commit_concerns_all_slots(commits: list[dict[str, Any]], error: HeadraceError) -> None:
    FAILS.append(error)
    plan = batch(2)
    assert AtLeastOnce(CLIENT, "group").commit(plan, reports_of(plan)) == {0: error, 1: error}
    assert len(commits) == 1


def test_at_least_once_has_no_transactions() -> None:
    once = AtLeastOnce(CLIENT, "group")
    plan = batch(1)
    assert once.begin(plan.slots) is plan.slots
    once.abort(plan)
    with pytest.raises(NotImplementedError):
        once.read_offsets(plan, (0,))
