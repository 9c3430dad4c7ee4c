"""Plans and reports: what goes through JSON comes back, and what a plan takes of each task."""

import pytest
from tests.spark.runtime.plan_samples import BATCH

from headrace.spark.runtime.batches.bad_record_search import find_bad_records
from headrace.spark.runtime.batches.plan import (
    InputRange,
    MicroBatchPlan,
    SlotPlan,
    StageReport,
    TaskPlan,
    TaskReport,
    merged,
)
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.tasks import RunningTask, only, plan_slots


def whole(start, end, topic="flights", partition=0):
    return InputRange(topic=topic, partition=partition, start=start, end=end)


def running(partition, position, end, **more):
    where = ("flights", partition)
    return RunningTask(
        partition=partition,
        positions={where: position},
        ends={where: end},
        slot=partition % 2,
        **more,
    )


def test_a_plan_survives_its_way():
    plan = MicroBatchPlan(
        subtopology_id="by-origin",
        batch=BATCH,
        member_id="m",
        member_epoch=3,
        bootstrap_servers="localhost:9092",
        state_dir="/tmp/x",
        slots=(
            SlotPlan(
                slot=1,
                tasks=(
                    TaskPlan(
                        partition=3,
                        ranges=(InputRange(topic="f", partition=3, start=1, end=9, skipped=(4,), dead={"4": "why"}),),
                        committed=BatchKey(incarnation="i", batch_id=6),
                    ),
                ),
                producer_id=4000,
                producer_epoch=2,
            ),
        ),
        topic_ids={"c": "id"},
    )
    assert MicroBatchPlan.from_json(plan.to_json()) == plan
    assert plan.slot(0).tasks == ()
    assert plan.tasks[0].records == 8


def test_reports_of_stages_add_up():
    fetch = StageReport(
        stage="fetch-0", slot=0, batch=BATCH, tasks=(TaskReport(partition=2, reached={"f-2": 9}, records_in=5),)
    )
    sink = StageReport(stage="sink-0", slot=0, batch=BATCH, tasks=(TaskReport(partition=2, records_out=3),))
    assert StageReport.from_json(fetch.to_json()) == fetch
    [task] = merged([fetch, sink]).values()
    assert (task.reached, task.records_in, task.records_out) == ({"f-2": 9}, 5, 3)


def test_tasks_with_input_are_planned_in_their_slots():
    tasks = [running(0, 5, 5), running(1, 0, 9), running(3, 2, 1_000_000), running(4, 1, 2)]
    slots = plan_slots(tasks, max_records=100)
    assert [(slot.slot, [task.partition for task in slot.tasks]) for slot in slots] == [(0, [4]), (1, [1, 3])]
    [task] = [task for task in slots[1].tasks if task.partition == 3]
    assert (task.ranges[0].start, task.ranges[0].end) == (2, 102)


def test_no_plan_without_new_records():
    assert plan_slots([running(0, 5, 5)], max_records=100) == ()


def test_a_record_that_stops_the_task_bounds_the_range():
    task = running(0, 5, 50, stop_at={("flights", 0): 20})
    assert (task.plan(100).ranges[0].start, task.plan(100).ranges[0].end) == (5, 20)
    task.positions["flights", 0] = 20
    assert plan_slots([task], 100) == ()


def test_skipped_offsets_travel_until_they_are_behind():
    task = running(0, 5, 50, skipped={("flights", 0): {7: "cast", 60: "later"}})
    assert task.plan(100).ranges[0].skipped == (7,)
    task.take(TaskReport(partition=0, reached={"flights-0": 10}), BATCH)
    assert task.positions == {("flights", 0): 10}
    assert task.skipped == {("flights", 0): {60: "later"}}
    assert task.committed == BATCH


def test_only_keeps_slots_and_committed_batches():
    slots = plan_slots([running(0, 0, 9), running(1, 0, 9), running(2, 0, 9)], 100)
    kept = only(slots, {2: (whole(3, 4, partition=2),)})
    assert [(slot.slot, [task.partition for task in slot.tasks]) for slot in kept] == [(0, [2])]


@pytest.mark.parametrize("bad", [{(0, 5)}, {(0, 0), (0, 99)}, {(2, 50), (1, 3), (1, 4)}, set()])
def test_halving_finds_each_bad_record(bad):
    tasks = [running(partition, 0, 100) for partition in range(4)]
    probes = []

    def probe(ranges):
        probes.append(ranges)
        hit = [
            (task, offset)
            for task, offset in bad
            for found in ranges.get(task, ())
            if found.start <= offset < found.end
        ]
        return f"cast at {hit}" if hit else None

    found = find_bad_records(plan_slots(tasks, 1000), probe, most_per_task=10)
    assert {(row.task, row.offset) for row in found} == bad
    assert len(probes) <= 2 + 4 + 16 * len(bad)


def test_halving_stops_at_the_first_where_one_is_enough():
    tasks = [running(0, 0, 1024)]
    found = find_bad_records(
        plan_slots(tasks, 2000),
        lambda ranges: "bad" if any(r.start <= o < r.end for r in ranges[0] for o in (700, 900)) else None,
        most_per_task=1,
    )
    assert [row.offset for row in found] == [700]


def test_records_that_a_table_already_has_are_read_in_separate_batches():
    """Offsets were reset: rows up to the table's positions are for the other sinks only."""
    a, b = ("a", 0), ("b", 0)
    task = RunningTask(
        partition=0,
        positions={a: 0, b: 50},
        ends={a: 100, b: 90},
        ahead={"one": {a: 30, b: 40}, "two": {a: 70}},
    )
    told = []
    while (plan := task.plan(1000)).records:
        told.append((plan.complete_tables, [(found.start, found.end) for found in plan.ranges]))
        for found in plan.ranges:
            task.positions[found.topic, found.partition] = found.end
    assert told == [
        (("one", "two"), [(0, 30), (50, 50)]),
        (("two",), [(30, 70), (50, 50)]),
        ((), [(70, 100), (50, 90)]),
    ]
    assert MicroBatchPlan.from_json(_with(plan).to_json()) == _with(plan)


def _with(task_plan):
    return MicroBatchPlan(
        subtopology_id="s",
        batch=BATCH,
        member_id="m",
        member_epoch=3,
        bootstrap_servers="localhost:9092",
        state_dir="/tmp/x",
        slots=(SlotPlan(slot=0, tasks=(task_plan,)),),
        topic_ids={},
    )
