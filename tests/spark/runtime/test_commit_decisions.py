"""The exactly-once decision of a micro-batch against a scripted coordinator: what is committed, undone, opened anew.

The script is a coordinator whose transactions commit, do not, or whose answer is lost after either. The truth is where
its offsets stand; whatever a driver is told, its decision must agree with that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.admin_results import CommittedOffset
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.spark.runtime import batch_commit
from headrace.spark.runtime.batch_commit import AtLeastOnce, Committed, ExactlyOnce, Patience
from headrace.spark.runtime.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.store import BatchKey
from headrace.spark.runtime.table_sinks import metadata_of

ANSWERS = {
    "committed": (True, None),
    "refused": (False, BrokerError("broker-refused", "abortable", transaction="abortable")),
    "fenced": (False, Fenced("member-fenced", "another epoch")),
    "lost-after-commit": (True, CannotConnect("broker-unreachable", "no answer")),
    "lost-before-commit": (False, CannotConnect("broker-unreachable", "no answer")),
}


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


@dataclass
class Coordinator:
    """Stands for SlotTransactions and for the group's offsets. `answers`: by slot, a name of ANSWERS."""

    answers: Mapping[int, str]
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    unreachable: int = 0  # so many questions fail first
    renewed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    waits: list[bool] = field(default_factory=list)

    def commit(
        self, plan: MicroBatchPlan, offsets: Mapping[int, Mapping[tuple[str, int], int]], *, metadata: str
    ) -> dict[int, HeadraceError | None]:
        self.metadata.append(metadata)
        outcomes: dict[int, HeadraceError | None] = {}
        for slot in plan.slots:
            takes_effect, outcomes[slot.slot] = ANSWERS[self.answers.get(slot.slot, "committed")]
            if takes_effect:
                self.offsets |= offsets[slot.slot]
        return outcomes

    def renew(self, slots: tuple[SlotPlan, ...]) -> None:
        if self.unreachable:
            self.unreachable -= 1
            raise CannotConnect("broker-unreachable", "away")
        self.renewed += [slot.slot for slot in slots]

    def settle_ended(self, *, wait: bool) -> None:
        self.waits.append(wait)

    def abort(self, slots: tuple[SlotPlan, ...]) -> None:
        self.aborted += [slot.slot for slot in slots]

    def stamped(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        return tuple(replace(slot, producer_id=50, producer_epoch=slot.slot) for slot in slots)

    def fetch(self, client: object, group_id: str, wanted: Any, *, require_stable: bool) -> dict[tuple[str, int], int]:
        assert (client, group_id, require_stable) == (CLIENT, "group", True)
        assert self.renewed, "offsets are only final behind a new identity"
        return {where: self.offsets.get(where, -1) for where in wanted}


CLIENT = object()
PATIENT = Patience(goes_on=lambda: True, bear=lambda _: None)
Decide = Callable[..., Committed]


@pytest.fixture
def exactly_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coordinator], ExactlyOnce]:
    def made(coordinator: Coordinator) -> ExactlyOnce:
        monkeypatch.setattr(batch_commit, "fetch_offsets", coordinator.fetch)
        return ExactlyOnce(CLIENT, "group", coordinator)  # type: ignore[arg-type]

    return made


def batch(answers: list[str]) -> MicroBatchPlan:
    """A slot for each answer, with two tasks: one of two inputs, one of which has nothing to read."""
    return plan_of(*((task(2 * n, (10, 20), (5, 5)), task(2 * n + 1, (0, 3))) for n in range(len(answers))))


@given(answers=st.lists(st.sampled_from(sorted(ANSWERS)), min_size=1, max_size=4), had_offsets=st.booleans())
def test_the_decision_agrees_with_the_offsets(answers: list[str], had_offsets: bool) -> None:
    plan = batch(answers)
    starts = {(r.topic, r.partition): r.start for found in plan.tasks for r in found.ranges}
    coordinator = Coordinator(dict(enumerate(answers)), offsets=dict(starts) if had_offsets else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_commit, "fetch_offsets", coordinator.fetch)
        decided = ExactlyOnce(CLIENT, "group", coordinator).commit(plan, reports_of(plan), PATIENT)  # type: ignore[arg-type]
    effects = {2 * n + each: ANSWERS[name][0] for n, name in enumerate(answers) for each in (0, 1)}
    assert decided.tasks == {partition for partition, took_effect in effects.items() if took_effect}
    fenced = {2 * n + each for n, name in enumerate(answers) if name == "fenced" for each in (0, 1)}
    assert decided.reopen == fenced, "a fenced slot's tasks rest; every other one goes on from where it stands"
    errors = [ANSWERS[name][1] for name in answers if name in ("refused", "lost-before-commit")]
    assert (decided.trouble is not None) == bool(errors)
    unsure = [n for n, name in enumerate(answers) if name != "committed"]
    assert coordinator.renewed == unsure
    assert coordinator.metadata == [metadata_of(plan)]


def test_a_batch_without_doubt_asks_nothing(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    coordinator = Coordinator({})
    plan = batch(["committed", "committed"])
    assert exactly_once(coordinator).commit(plan, reports_of(plan), PATIENT) == Committed(tasks=frozenset(range(4)))
    assert coordinator.renewed == []


def test_offsets_elsewhere_open_the_task_anew(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    plan = plan_of((task(0, (10, 20)), task(1, (0, 3)), task(2, (7, 9))))
    coordinator = Coordinator({0: "lost-before-commit"}, offsets={("t0", 0): 15, ("t0", 1): 0, ("t0", 2): 9})
    decided = exactly_once(coordinator).commit(plan, reports_of(plan), PATIENT)
    assert (decided.tasks, decided.reopen) == ({2}, {0})
    assert decided.trouble is not None


def test_a_group_that_was_set_back_to_the_beginning_opens_the_task_anew(
    exactly_once: Callable[[Coordinator], ExactlyOnce],
) -> None:
    plan = plan_of((task(0, (10, 20)), task(1, (10, 20))))
    coordinator = Coordinator({0: "lost-before-commit"}, offsets={("t0", 0): 0})
    decided = exactly_once(coordinator).commit(plan, reports_of(plan), PATIENT)
    assert (decided.tasks, decided.reopen) == (frozenset(), {0}), "no offset is where the batch began, offset 0 is not"


# The line is all that an operator has to tell a batch that is repeated from one that is not.
@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        (["lost-after-commit", "committed"], "committed after all"),
        (["lost-after-commit", "lost-after-commit"], "committed after all"),
        (["lost-before-commit", "committed"], "not committed"),
        (["lost-before-commit", "lost-after-commit"], "not committed"),
    ],
)
def test_the_outcome_of_a_doubtful_batch_is_logged(
    exactly_once: Callable[[Coordinator], ExactlyOnce],
    caplog: pytest.LogCaptureFixture,
    answers: list[str],
    outcome: str,
) -> None:
    plan = batch(answers)
    exactly_once(Coordinator(dict(enumerate(answers)))).commit(plan, reports_of(plan), PATIENT)
    (line,) = [record.getMessage() for record in caplog.records if "no answer" in record.getMessage()]
    assert re.search(rf"\bcounts\b.*\b7\b.* {outcome}\b", line)


@pytest.mark.parametrize(
    ("offsets", "committed", "reopened"),
    [({("t0", 0): 20}, [0], []), ({("t0", 0): 15}, [], [0]), ({("t0", 0): 20, ("t0", 1): 2}, [0], [1])],
)
def test_tasks_that_the_offsets_decided_are_logged(
    exactly_once: Callable[[Coordinator], ExactlyOnce],
    caplog: pytest.LogCaptureFixture,
    offsets: dict[tuple[str, int], int],
    committed: list[int],
    reopened: list[int],
) -> None:
    plan = plan_of((task(0, (10, 20)), task(1, (0, 3))))
    exactly_once(Coordinator({0: "lost-before-commit"}, offsets=offsets)).commit(plan, reports_of(plan), PATIENT)
    (line,) = [record.getMessage() for record in caplog.records if "no answer" not in record.getMessage()]
    assert re.findall(r"\[.*?\]", line) == [str(committed), str(reopened)]


def test_a_batch_begins_with_the_identities_of_its_slots(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    plan = batch(["committed", "committed"])
    begun = exactly_once(Coordinator({})).begin(plan.slots)
    assert [(slot.slot, slot.producer_id, slot.producer_epoch) for slot in begun] == [(0, 50, 0), (1, 50, 1)]


def test_a_part_of_the_inputs_is_no_commit(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    plan = plan_of((task(0, (10, 20), (5, 8)),))
    coordinator = Coordinator({0: "lost-before-commit"}, offsets={("t0", 0): 20, ("t1", 0): 5})
    decided = exactly_once(coordinator).commit(plan, reports_of(plan), PATIENT)
    assert (decided.tasks, decided.reopen) == (frozenset(), {0})


def test_a_commit_with_a_lost_response_counts_as_committed(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    plan = batch(["lost-after-commit", "lost-after-commit"])
    decided = exactly_once(Coordinator({0: "lost-after-commit", 1: "lost-after-commit"})).commit(
        plan, reports_of(plan), PATIENT
    )
    assert decided == Committed(tasks=frozenset(range(4)))


def test_after_a_failed_job_the_offsets_decide_too(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    """Nothing was reported, so nothing can count as committed: a task that stands elsewhere is opened anew."""
    plan = plan_of((task(0, (10, 20)),), (task(1, (0, 3)),))
    coordinator = Coordinator({}, offsets={("t0", 0): 10, ("t0", 1): 3})
    assert exactly_once(coordinator).undo(plan, PATIENT) == Committed(reopen=frozenset({1}))
    assert coordinator.renewed == [0, 1]
    assert coordinator.metadata == []


def test_a_broker_that_is_away_is_borne_until_it_answers(
    exactly_once: Callable[[Coordinator], ExactlyOnce],
) -> None:
    plan, borne = batch(["committed"]), list[HeadraceError]()
    coordinator = Coordinator({}, unreachable=3)
    decided = exactly_once(coordinator).undo(plan, Patience(goes_on=lambda: True, bear=borne.append))
    assert decided == Committed()
    assert [error.code for error in borne] == ["broker-unreachable"] * 3
    assert coordinator.aborted == []


def test_a_stop_with_unknown_outcomes_reopens_all_tasks(
    exactly_once: Callable[[Coordinator], ExactlyOnce],
) -> None:
    plan, patience = batch(["committed", "committed"]), [True, False]
    coordinator = Coordinator({}, unreachable=5)
    decided = exactly_once(coordinator).undo(plan, Patience(goes_on=lambda: patience.pop(0), bear=lambda _: None))
    assert decided == Committed(reopen=frozenset(range(4)))
    assert coordinator.aborted == [0, 1]


def test_an_error_of_the_retry_policy_ends_the_undo(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    def bear(error: HeadraceError) -> None:
        raise error

    with pytest.raises(CannotConnect):
        exactly_once(Coordinator({}, unreachable=1)).undo(
            batch(["committed"]), Patience(goes_on=lambda: True, bear=bear)
        )


def test_an_abandoned_batch_is_aborted(exactly_once: Callable[[Coordinator], ExactlyOnce]) -> None:
    coordinator = Coordinator({})
    exactly_once(coordinator).abandon(batch(["committed", "committed"]))
    assert coordinator.aborted == [0, 1]


def test_between_batches_markers_are_awaited_only_where_asked(
    exactly_once: Callable[[Coordinator], ExactlyOnce],
) -> None:
    coordinator = Coordinator({})
    exactly_once(coordinator).settle_ended()
    exactly_once(coordinator).settle_ended(wait=True)
    assert coordinator.waits == [False, True]


# At least once.


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What OffsetCommit was asked for; an error put in as `fails` is raised once."""
    asked: list[dict[str, Any]] = []

    def commit(client: object, group_id: str, offsets: Any, **given: Any) -> None:
        assert client is CLIENT
        asked.append({"group": group_id, "offsets": dict(offsets), **given})
        if isinstance(error := FAILS.pop("next", None), HeadraceError):
            raise error

    monkeypatch.setattr(batch_commit, "commit_offsets", commit)
    return asked


FAILS: dict[str, HeadraceError] = {}


def test_at_least_once_commits_reached_offsets_with_the_epoch_of_the_plan(commits: list[dict[str, Any]]) -> None:
    plan = plan_of((task(0, (10, 20), (5, 5)),), (task(1, (0, 3)),))
    reports = reports_of(plan)
    reports[0].reached["t0-0"] = 17
    assert AtLeastOnce(CLIENT, "group").commit(plan, reports, PATIENT) == Committed(tasks=frozenset({0, 1}))  # type: ignore[arg-type]
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
    ("error", "is_trouble"),
    [
        (Fenced("member-fenced", "another epoch"), False),
        (BrokerError("broker-refused", "no"), True),
        (CannotConnect("broker-unreachable", "away"), True),
    ],
)
def test_at_least_once_opens_everything_anew_behind_a_commit_that_failed(
    commits: list[dict[str, Any]], error: HeadraceError, is_trouble: bool
) -> None:
    plan = batch(["committed"])
    FAILS["next"] = error
    decided = AtLeastOnce(CLIENT, "group").commit(plan, reports_of(plan), PATIENT)  # type: ignore[arg-type]
    assert decided == Committed(reopen=frozenset({0, 1}), trouble=error if is_trouble else None)
    assert len(commits) == 1


def test_at_least_once_has_nothing_to_undo() -> None:
    once = AtLeastOnce(CLIENT, "group")  # type: ignore[arg-type]
    plan = batch(["committed"])
    assert once.undo(plan, PATIENT) == Committed()
    assert once.begin(plan.slots) is plan.slots
