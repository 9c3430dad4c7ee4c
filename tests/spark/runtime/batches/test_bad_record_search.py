"""Prefixes in the order of the input: the first record at which processing fails is found in log2(records) failures."""

import math

import pytest

from headrace.spark.runtime.batches.bad_record_search import PrefixSearch, only_record
from headrace.spark.runtime.batches.plan import InputRange, SlotPlan, TaskPlan

TASKS = {0: {"left": (0, 40), "right": (5, 5)}, 1: {"left": (7, 500), "right": (0, 3)}, 2: {"left": (0, 100)}}


def planned(positions, most=1000):
    slots: dict[int, list[TaskPlan]] = {}
    for task, topics in TASKS.items():
        ranges = tuple(
            InputRange(
                topic=topic, partition=task, start=at, end=max(at, min(end, at + most)), skipped=(), topic_id=topic
            )
            for topic, (_, end) in topics.items()
            for at in [positions[task, topic]]
        )
        slots.setdefault(task % 2, []).append(TaskPlan(partition=task, ranges=ranges))
    return tuple(SlotPlan(slot=slot, tasks=tuple(tasks)) for slot, tasks in sorted(slots.items()))


def widths(slots):
    return sum(task.records for slot in slots for task in slot.tasks)


def search(fails):
    """(the record that is blamed, failed micro-batches); `fails(positions, slots)` tells of each attempt."""
    positions = {(task, topic): start for task, topics in TASKS.items() for topic, (start, _) in topics.items()}
    everything = planned(positions)
    found, failures = PrefixSearch(everything), 1
    while True:
        slots = found.prefix(planned(positions, most=300))
        if not slots:
            return None, failures
        if not fails(positions, slots):
            for slot in slots:
                for task in slot.tasks:
                    positions |= {(task.partition, part.topic): part.end for part in task.ranges}
            continue
        failures += 1
        only = only_record(slots)
        if only is not None:
            return (only[0], only[1].topic, only[1].start), failures
        found.narrow(slots)


@pytest.mark.parametrize(
    "bad", [(0, "left", 0), (0, "left", 39), (1, "left", 7), (1, "left", 400), (1, "right", 2), (2, "left", 99)]
)
def test_a_record_that_fails_wherever_it_stands(bad):
    def fails(_, slots):
        return any(
            task.partition == bad[0] and part.topic == bad[1] and part.start <= bad[2] < part.end
            for slot in slots
            for task in slot.tasks
            for part in task.ranges
        )

    blamed, failures = search(fails)
    assert blamed == bad
    assert failures <= math.ceil(math.log2(636)) + 2


def test_the_record_that_makes_a_total_too_large():
    """The state counts what was processed: the hundredth record of task 1 is the one, however prefixes were cut."""

    def fails(positions, slots):
        count = positions[1, "left"] - 7
        for slot in slots:
            count += sum(part.end - part.start for t in slot.tasks if t.partition == 1 for part in t.ranges[:1])
        return count >= 100

    assert search(fails)[0] == (1, "left", 7 + 99)


def test_a_batch_that_is_only_too_large_blames_no_record():
    assert search(lambda _, slots: widths(slots) > 50)[0] is None


def test_remaining_prefixes_exclude_newer_records():
    positions = {(task, topic): start for task, topics in TASKS.items() for topic, (start, _) in topics.items()}
    found = PrefixSearch(planned(positions, most=10))
    sizes = []
    while slots := found.prefix(planned(positions)):
        sizes.append(widths(slots))
        for slot in slots:
            for task in slot.tasks:
                positions |= {(task.partition, part.topic): part.end for part in task.ranges}
    assert sum(sizes) == 10 + 10 + 3 + 10
    assert sizes == sorted(sizes, reverse=True)
