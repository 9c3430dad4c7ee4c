"""Shares of restore bandwidth: an instance's, a broker's, and when a transfer ends."""

from __future__ import annotations

from headrace.simulator.event_queue import EventQueue
from headrace.simulator.restore_links import STEP_MS, RestoreLinks

MB = 1_000_000


def links(events: EventQueue, *, brokers: int = 2, instance: float = MB, broker: float = 10 * MB) -> RestoreLinks:
    return RestoreLinks(events, brokers=brokers, instance_bytes_per_s=instance, broker_bytes_per_s=broker)


def ended(events: EventQueue, found: RestoreLinks, *transfers: tuple[str, int, float]) -> dict[tuple[str, int], int]:
    """Start transfers (instance, partition, bytes) and return when each ended."""
    at: dict[tuple[str, int], int] = {}
    for instance, partition, amount in transfers:
        found.start(
            instance,
            ("0", partition),
            amount,
            lambda name=(instance, partition): at.__setitem__(name, events.now_ms),  # type: ignore[misc]
        )
    events.run_until(60_000)
    return at


def test_one_transfer_has_the_bandwidth_of_its_instance() -> None:
    events = EventQueue(now_ms=0)
    found = links(events)
    assert ended(events, found, ("a", 0, 2 * MB)) == {("a", 0): 2_000}
    assert found.received["a"] == found.sent[0] == 2 * MB
    assert found.busy == 0


def test_transfers_of_one_instance_share_its_bandwidth() -> None:
    events = EventQueue(now_ms=0)
    assert ended(events, links(events), ("a", 0, MB), ("a", 1, MB)) == {("a", 0): 2_000, ("a", 1): 2_000}


def test_transfers_of_one_broker_share_its_bandwidth() -> None:
    events = EventQueue(now_ms=0)
    found = links(events, instance=10 * MB, broker=MB)
    # Partitions 0 and 2 are led by broker 0, partition 1 by broker 1.
    at = ended(events, found, ("a", 0, MB), ("b", 2, MB), ("c", 1, MB))
    assert at == {("a", 0): 2_000, ("b", 2): 2_000, ("c", 1): 1_000}


def test_what_a_transfer_leaves_goes_to_the_others_from_the_next_step() -> None:
    events = EventQueue(now_ms=0)
    assert ended(events, links(events), ("a", 0, MB / 2), ("a", 1, MB)) == {("a", 0): 1_000, ("a", 1): 1_500}


def test_an_unreachable_broker_sends_nothing_until_it_is_back() -> None:
    events = EventQueue(now_ms=0)
    found = links(events)
    found.unreachable.add(0)
    events.at(3_001, found.unreachable.clear)
    assert ended(events, found, ("a", 0, MB)) == {("a", 0): 4_000}


def test_a_cancelled_transfer_does_not_end() -> None:
    events = EventQueue(now_ms=0)
    found = links(events)
    events.at(STEP_MS + 1, lambda: found.cancel("a", ("0", 0)))
    assert ended(events, found, ("a", 0, MB)) == {}
    assert found.received["a"] == MB * STEP_MS / 1000
    assert not found.receives("a", ("0", 0))


def test_a_transfer_that_is_cancelled_by_another_ones_end_does_not_end() -> None:
    events = EventQueue(now_ms=0)
    found, at = links(events), list[str]()

    def first() -> None:
        at.append("first")
        found.cancel("a", ("0", 1))

    found.start("a", ("0", 0), MB / 4, first)
    found.start("a", ("0", 1), MB / 4, lambda: at.append("second"))
    events.run_until(10_000)
    assert at == ["first"]


def test_a_transfer_that_starts_after_the_links_were_idle_runs() -> None:
    events = EventQueue(now_ms=0)
    found = links(events)
    assert ended(events, found, ("a", 0, MB)) == {("a", 0): 1_000}
    at = list[int]()
    found.start("a", ("0", 1), MB, lambda: at.append(events.now_ms))
    assert found.receives("a", ("0", 1))
    events.run_until(120_000)
    assert at == [61_000]
