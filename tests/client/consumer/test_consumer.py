"""`Consumer` and `AsyncConsumer` on the embedded broker, without a group's help: reading, seeking, committing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.client.consumer.consumed_records import T0, T1, Make

from headrace.client.consumer.consumer import Consumer
from headrace.errors import ConfigError


def test_records_are_the_same_and_both_faces_may_take_turns(make: Make) -> None:
    consumer = make(max_poll_records=7)
    consumer.assign([T0])
    offsets: list[int] = []
    deadline = time.monotonic() + 20
    while len(offsets) < 100 and time.monotonic() < deadline:
        offsets += consumer.poll().column("offset").to_pylist()
        offsets += [record.offset for record in consumer.poll_records(1.0, max_records=3)]
    assert offsets == list(range(100))


def test_asking_about_topics(make: Make) -> None:
    consumer = make()
    assert consumer.partitions_for("t") == (T0, T1)
    assert consumer.beginning_offsets([T0]) == {T0: 0}
    assert consumer.end_offsets([T0, T1]) == {T0: 100, T1: 100}
    assert consumer.offsets_for_times({T0: 500, T1: 10**12}) == {T0: 1, T1: None}


def test_a_wakeup_ends_a_poll_that_waits(make: Make) -> None:
    consumer = make()
    consumer.assign([("empty", 0)])
    consumer.poll_records(0)
    consumer.wakeup()
    began = time.monotonic()
    assert consumer.poll_records(60) == []
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda c: c.poll(), "reads nothing"),
        (lambda c: c.subscribe("t"), "group"),
        (lambda c: c.commit({T0: 1}), "group"),
        (lambda c: c.seek(T0, 1), "not assigned"),
        (lambda c: c.seek(T0, -1), "cannot be"),
        (lambda c: (c.close(), c.assign([T0])), "closed"),
    ],
)
def test_wrong_usage_is_told(make: Make, wrong: Callable[[Consumer], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong(make())


def test_two_threads_are_told() -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([T0])
    with consumer._core._alone():
        import threading

        errors: list[BaseException] = []

        def other() -> None:
            try:
                consumer.poll_records(0)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert isinstance(errors[0], ConfigError)
    consumer.close()
