"""Buffers of the parallel consumer: full ones pause the partitions."""

from __future__ import annotations

from tests.client.parallel.parallel_handlers import Make
from tests.client.running_pipelines import Journal
from tests.harness.polling import wait_until


def test_a_full_buffer_pauses_and_polls_go_on(topic: Make) -> None:
    there = topic(partitions=2, records=100, keys=100)
    journal = Journal(holds=lambda _: True)
    with there.running(journal, workers=3, buffer_records=10) as running:
        wait_until(lambda: running.pipeline.stats.paused_partitions == 2, "it is full")
        polls = running.consumer.metrics()["polls"]
        wait_until(lambda: running.consumer.metrics()["polls"] > polls + 2, "polls go on")
        stats = running.pipeline.stats
        assert (stats.in_flight, stats.buffered) == (3, 7)
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 100, "everything is processed")
    assert running.error is None
    assert len(set(journal.places)) == 100
    assert there.is_committed


def test_a_buffer_of_bytes(topic: Make) -> None:
    there = topic(records=50, keys=50)
    journal = Journal(holds=lambda _: True)
    with there.running(journal, workers=1, buffer_bytes=1) as running:
        wait_until(lambda: running.pipeline.stats.paused_partitions == 1, "it is full")
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 50, "everything is processed")
    assert there.is_committed
