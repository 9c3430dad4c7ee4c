"""Positions and pauses of assigned partitions."""

from __future__ import annotations

from tests.client.consumer.consumed_records import T0, T1, Make, read_all


def test_seeking(make: Make) -> None:
    consumer = make()
    consumer.assign([T0])
    consumer.seek(T0, 42)
    assert consumer.position(T0) == 42
    assert consumer.poll_records(5)[0].offset == 42
    consumer.seek_to_beginning([T0])
    assert consumer.poll_records(5)[0].offset == 0
    consumer.seek_to_time(30_500)
    assert consumer.poll_records(5)[0].offset == 31
    consumer.seek_to_time(10**12)
    assert consumer.position(T0) == 100
    consumer.seek_to_beginning()
    consumer.seek_to_end()
    assert consumer.position(T0) == 100


def test_paused_partitions_give_nothing_and_lose_nothing(make: Make) -> None:
    consumer = make(max_poll_records=10)
    consumer.assign([T0, T1])
    consumer.pause([T0])
    assert {record.partition for record in read_all(consumer, 100)} == {1}
    assert consumer.paused() == (T0,)
    consumer.resume([T0])
    assert [record.offset for record in read_all(consumer, 100)] == list(range(100))
