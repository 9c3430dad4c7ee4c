"""Tasks: positions and stores that an opening takes over from an earlier one."""

from headrace.spark.runtime.tasks import RunningTask

WHERE = ("orders", 3)


def opened(position: int, topic_id: str = "one") -> RunningTask:
    return RunningTask(partition=3, positions={WHERE: position}, topic_ids={"orders": topic_id}, ends={WHERE: 100})


def failed() -> RunningTask:
    task = opened(5)
    task.skipped = {WHERE: {4: "bad", 7: "worse"}}
    task.stop_at = {WHERE: 20}
    return task


def test_bad_records_are_known_to_the_next_opening() -> None:
    task = opened(5)
    task.remember(failed())
    (planned,) = task.plan(1000).ranges
    assert (planned.start, planned.end, planned.skipped) == (5, 20, (7,))


def test_an_opening_behind_the_bad_records_forgets_them() -> None:
    task = opened(21)
    task.remember(failed())
    (planned,) = task.plan(1000).ranges
    assert (planned.start, planned.end, planned.skipped) == (21, 100, ())


def test_bad_records_of_a_topic_that_was_created_again_are_forgotten() -> None:
    task = opened(5, "another")
    task.remember(failed())
    (planned,) = task.plan(1000).ranges
    assert (planned.end, planned.skipped) == (100, ())
