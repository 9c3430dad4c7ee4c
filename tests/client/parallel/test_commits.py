"""Commits of the parallel consumer."""

from __future__ import annotations

from tests.client.parallel.parallel_handlers import Make
from tests.client.running_pipelines import Journal
from tests.harness.polling import wait_until

from headrace.client.consumer.consumer_types import ConsumerRecord


def test_handler_finished_after_revocation_commits_nothing(topic: Make) -> None:
    there = topic(partitions=1, records=5, keys=5)
    journal = Journal(holds=lambda record: record.offset == 2)
    with there.running(journal, drain_timeout=0.1, commit_interval=0.0) as late:
        wait_until(lambda: len(journal.ended) == 4, "all but one are done")
        late.pipeline.stop()
        late.wait()  # one hangs: the group is left without it
        again = Journal(holds=lambda _: True)
        with there.running(again, commit_interval=0.0) as successor:
            wait_until(lambda: len(again.began) == 1, "who follows has what is left")
            journal.gate.set()
            wait_until(lambda: len(journal.ended) == 5, "the late one returns")
            assert there.committed()[there.name, 0].offset == 2  # type: ignore[union-attr]
            again.gate.set()
            wait_until(lambda: there.is_committed, "the successor commits")
            assert successor.pipeline.stats.known_finished == 2
    assert again.places == [(0, 2)]


def test_metadata_of_others_begins_at_the_offset(topic: Make) -> None:
    there = topic(records=5)
    there.commit(3, "somebody else's")
    journal = Journal()
    there.run(journal)
    assert journal.places == [(0, 3), (0, 4)]


def test_a_poll_does_not_wait_past_the_next_commit(topic: Make) -> None:
    """Else a crash repeats what was finished in up to two intervals."""
    waited: list[tuple[float, float]] = []
    there = topic(records=4, keys=4)
    with there.running(lambda _: None, commit_interval=30.0) as running:
        wait_until(lambda: running.pipeline.stats.done == 4, "the first commit has begun the interval")
        commits = running.pipeline._commits
        waited += [(longest_s, commits.poll_timeout_s(longest_s)) for longest_s in (0.5, 60.0)]
    (short, as_long), (long, until_due) = waited
    assert as_long == short
    assert 0 <= until_due <= 30.0 < long


def test_a_repeat_limit_bounds_what_is_not_committed(topic: Make) -> None:
    there = topic(records=40, keys=40)
    most: list[int] = []
    journal = Journal()

    def handler(record: ConsumerRecord) -> None:
        stats = running.pipeline.stats
        most.append(stats.in_flight + stats.uncommitted)
        journal(record)

    with there.running(handler, workers=8, repeat_limit=3, commit_interval=60.0) as running:
        wait_until(lambda: len(journal.ended) == 40, "everything is processed, commits press")
    assert max(most) <= 3
    assert there.is_committed
