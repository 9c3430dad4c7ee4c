"""Producer snapshots: Kafka's bytes, and nothing believed that is torn."""

from __future__ import annotations

import os
import tracemalloc
from typing import NoReturn

import pytest
from tests.storage.log_samples import NOW_MS, produced
from tests.storage.producer_samples import noted

from headrace.protocol.record_batches import control_batch, iter_batch_headers
from headrace.storage.errors import OutOfOrderSequence
from headrace.storage.producer_state import ProducerBudget, ProducerState, WrittenBatch


def test_producers_are_forgotten_by_age_unless_a_transaction_is_open() -> None:
    state = noted(produced(0, "a", producer_id=1), produced(0, "a", producer_id=2, transactional=True))
    state.expire(NOW_MS)
    assert len(state) == 2
    state.expire(NOW_MS + 1)
    assert len(state) == 1


def test_beyond_the_bound_those_that_wrote_longest_ago_are_forgotten() -> None:
    """A stranger can invent an id for each batch: 120,000 of them took 136 MB of one partition."""
    state = ProducerState("flights", 0, most=100)
    open_one = produced(0, "a", producer_id=7, transactional=True)
    for header in iter_batch_headers(open_one):
        state.update(header, seen_ms=0)
    for number in range(1000):
        for header in iter_batch_headers(produced(3, "a", producer_id=1000 + number, base_offset=1 + number)):
            state.update(header, seen_ms=NOW_MS + number)
        assert len(state) <= 101
    known = {each.producer_id for each in state.describe()}
    assert 7 in known, "it has a transaction open"
    assert set(range(1910, 2000)) <= known, "the newest"
    assert state.check(iter_batch_headers(produced(50, "a", producer_id=1000))) is None, "forgotten: may begin anywhere"
    with pytest.raises(OutOfOrderSequence):
        state.check(iter_batch_headers(produced(50, "a", producer_id=1999)))


def partitions_under(budget: ProducerBudget, count: int) -> list[ProducerState]:
    states = [ProducerState("flights", number) for number in range(count)]
    for state in states:
        state.budget = budget
        budget.add_partition(state)
    return states


def invent(state: ProducerState, producer_id: int, seen_ms: int) -> None:
    """The five batches that are remembered of a producer."""
    for number in range(5):
        state.record_next(producer_id, 0, WrittenBatch(number, number, number, number, seen_ms), seen_ms=seen_ms)


def test_all_partitions_together_know_a_bounded_number_of_producers() -> None:
    """Memory of invented producer ids, a million of them with HEADRACE_LONG=1."""
    invented, most = (1_000_000, 100_000) if os.environ.get("HEADRACE_LONG") else (30_000, 3_000)
    states = partitions_under(ProducerBudget(most), 200)
    tracemalloc.start()
    try:
        for number in range(invented):
            invent(states[number * 7919 % 200], number, number)
            if number % 5000 == 0:
                assert sum(map(len, states)) <= most
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most * 0.9 <= sum(map(len, states)) <= most
    assert held < most * 1500, f"{held} bytes for {invented} invented producer ids"


def test_a_partition_with_many_producers_displaces_its_own() -> None:
    honest, hostile, other = partitions_under(ProducerBudget(1000), 3)
    for number in range(100):
        invent(honest, number, number)
    for header in iter_batch_headers(produced(0, "a", producer_id=1 << 40, transactional=True)):
        hostile.update(header, seen_ms=0)
    for number in range(20_000):
        invent(hostile if number % 2 else other, 1000 + number, 1000 + number)
    assert len(honest) == 100
    assert hostile.first_unstable_offset == 0, "an open transaction is not forgotten"
    assert len(honest) + hostile.idle + other.idle <= 1000
    assert {each.producer_id for each in hostile.describe()} >= {1000 + 19_999, 1000 + 19_997}


def test_producers_loaded_at_open_count_towards_the_bound() -> None:
    budget = ProducerBudget(100)
    states = [ProducerState("flights", number) for number in range(4)]
    for state in states:
        for number in range(50):
            invent(state, number, number)
        state.budget = budget
        budget.add_partition(state)
        assert sum(each.idle for each in states if each.budget) <= 100
    assert min(map(len, states)) > 10, "the bound is shared"


def test_the_first_open_transaction_is_known_without_a_search() -> None:
    """It was looked for among all producers on every ListOffsets."""
    state = noted(*(produced(0, "a", producer_id=each, base_offset=each, transactional=True) for each in (1, 2, 3)))
    assert (state.first_unstable_offset, list(state.open_transactions())) == (1, [(1, 0, 1), (2, 0, 2), (3, 0, 3)])
    for ended, first in ((2, 1), (1, 3), (3, None)):
        marker = control_batch("commit", producer_id=ended, producer_epoch=0, timestamp_ms=NOW_MS)
        for header in iter_batch_headers(marker):
            state.update(header, seen_ms=NOW_MS)
        assert state.first_unstable_offset == first
    again = noted(*(produced(0, "a", producer_id=each, base_offset=each, transactional=True) for each in (9, 4, 6)))
    loaded = ProducerState("flights", 0)
    loaded.load(again.snapshot())
    assert loaded.first_unstable_offset == 4
    loaded.clear()
    assert loaded.first_unstable_offset is None


def test_the_stable_offset_is_as_cheap_beside_5000_idle_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """ListOffsets asks for it; no walk over producers that have no transaction open."""
    idle = (produced(0, "a", producer_id=each, base_offset=1 + each) for each in range(5000))
    state = noted(produced(0, "a", producer_id=9000, transactional=True), *idle)
    assert len(state) == 5001

    class Unwalked(dict[int, object]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("walked over all producers")

        values = items = keys = __iter__  # type: ignore[assignment]

    monkeypatch.setattr(state, "_producers", Unwalked(state._producers))
    assert state.first_unstable_offset == 0
    with pytest.raises(AssertionError, match="walked"):
        list(state.describe())  # which has to, and shows that a walk is noticed
