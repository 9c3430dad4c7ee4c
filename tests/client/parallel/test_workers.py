"""Workers of the parallel consumer: time limits for threads and coroutines."""

from __future__ import annotations

import asyncio

from tests.client.parallel.parallel_handlers import FAST, Make
from tests.client.running_pipelines import Journal
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.polling import wait_until

from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.parallel.offset_tracker import decode_finished
from headrace.errors import UserCodeError

broker = broker_fixture({"buried": 1}, config=CLASSIC_GROUPS_WITHOUT_DELAYS, scope="module")


def test_one_that_hangs_holds_nobody_up_but_its_own_key(topic: Make) -> None:
    there = topic(records=30, keys=3)
    journal = Journal(holds=lambda record: record.offset == 0)
    with there.running(journal, workers=4, commit_interval=0.0) as running:
        wait_until(lambda: len(journal.ended) == 20, "the other keys are done")
        wait_until(lambda: running.pipeline.stats.uncommitted == 0, "and committed")
        (committed,) = there.committed().values()
        assert committed is not None
        assert committed.offset == 0
        runs = decode_finished(0, committed.metadata, there.topic_id)
        assert runs is not None
        assert sum(end - start for start, end in runs) == 20
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 30, "its key goes on")
    assert there.is_committed


def test_a_time_limit_for_threads(topic: Make) -> None:
    there = topic(records=10)
    journal = Journal(holds=lambda record: record.offset == 3)
    with there.running(journal, workers=2, handler_timeout=0.3, on_failure="skip") as running:
        wait_until(lambda: len(journal.ended) == 9 and running.pipeline.stats.skipped == 1, "it is given up")
        wait_until(lambda: there.is_committed, "and committed")
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 10, "it returns after all")
        assert running.pipeline.stats.done == 9
    assert running.error is None


def test_too_many_threads_that_hang_stop_it(topic: Make) -> None:
    there = topic(records=30, keys=30)
    journal = Journal(holds=lambda _: True)
    with there.running(journal, workers=2, handler_timeout=0.05, on_failure="skip", drain_timeout=0.1) as running:
        running.wait()
        journal.gate.set()
    assert isinstance(running.error, UserCodeError)
    assert "still run" in running.error.message


def test_a_time_limit_for_coroutines(topic: Make) -> None:
    there = topic(records=10)
    done: list[int] = []

    async def handler(record: ConsumerRecord) -> None:
        if record.offset == 3 and done.count(-3) < 1:
            done.append(-3)
            await asyncio.sleep(60)
        done.append(record.offset)

    stats = there.run(handler, handler_timeout=0.2, retry=FAST).stats
    assert sorted(done) == [-3, *range(10)]
    assert (stats.done, stats.retried) == (10, 1)
