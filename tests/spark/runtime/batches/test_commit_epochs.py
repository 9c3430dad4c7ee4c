"""Batches that run while a classic group begins another generation, on a broker without streams groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.client.streams_members import share_changes, take_changes
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.group_offsets import fetch_offsets
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.streams_member import StreamsMember
from headrace.errors import BrokerError, Fenced
from headrace.spark.machine.batch_outcome import is_retriable
from headrace.spark.runtime.batches.batch_commit import AtLeastOnce
from headrace.spark.runtime.batches.commit_epochs import PLANNED_EPOCH, CommitEpochs, HeldGeneration
from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.slots.slot_transactions import SlotTransactions
from headrace.spark.runtime.stores.store import BatchKey

TASK = ("flights", 0)
TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))
PLANNED = AssignmentSnapshot(member_id="m", member_epoch=3, active={"flights": (0,)}, held_since={TASK: 3})

broker = broker_fixture(
    {"flights": 2, "out": 1},
    config={**CLASSIC_GROUPS_WITHOUT_DELAYS, "group.coordinator.rebalance.protocols": "classic,consumer"},
)


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[NetworkClient]:
    with NetworkClient(broker.bootstrap_servers, api_timeout_ms=20_000) as made:
        yield made


@contextmanager
def joined(broker: EmbeddedBroker) -> Iterator[StreamsMember]:
    with StreamsMember(
        "app",
        TOPOLOGY,
        bootstrap_servers=broker.bootstrap_servers,
        group_protocol="classic",
        heartbeat_interval_ms=100,
    ) as member:
        yield member


def transactions_of(client: NetworkClient, epochs: CommitEpochs, incarnation: str = "i") -> SlotTransactions:
    return SlotTransactions(
        client,
        group_id="app",
        incarnation=incarnation,
        subtopology_id="flights",
        topics=("out",),
        timeout_ms=10_000,
        announce=lambda _: None,
        forget=lambda _: None,
        epochs=epochs,
    )


def plan_of(planned: AssignmentSnapshot, slots: tuple[SlotPlan, ...]) -> MicroBatchPlan:
    return MicroBatchPlan(
        subtopology_id="flights",
        batch=BatchKey(incarnation="i", batch_id=0),
        member_id=planned.member_id,
        member_epoch=planned.member_epoch,
        bootstrap_servers="",
        state_dir="",
        slots=slots,
        topic_ids={},
        group_id="app",
    )


def slot_of(*tasks: int) -> SlotPlan:
    ranges = {number: (InputRange(topic="flights", partition=number, start=0, end=7),) for number in tasks}
    return SlotPlan(slot=0, tasks=tuple(TaskPlan(partition=number, ranges=ranges[number]) for number in tasks))


def next_generation(first: StreamsMember, second: StreamsMember, planned: AssignmentSnapshot) -> AssignmentSnapshot:
    """Wait until the first member knows a later generation, and the second one shares the tasks."""
    share_changes([first, second], 1)
    assert first.assignment.member_epoch > planned.member_epoch
    return first.assignment


def test_a_transaction_is_committed_with_the_newest_generation(broker: EmbeddedBroker, client: NetworkClient) -> None:
    with joined(broker) as first:
        take_changes(first, 2)
        planned = first.assignment
        with joined(broker) as second:
            newest = next_generation(first, second, planned)
            (number,) = newest.active["flights"]
            # 1. The epoch of the plan is no generation of the group any more.
            strict = transactions_of(client, PLANNED_EPOCH, "strict")
            slots = strict.begin((slot_of(number),))
            outcome = strict.commit(plan_of(planned, slots), {0: {("flights", number): 7}})
            assert isinstance(outcome[0], Fenced)
            strict.abort(slots)
            # 2. The task that stayed is committed; the one that has another owner is not.
            held = transactions_of(client, HeldGeneration(lambda: newest))
            slots = held.begin((slot_of(number),))
            assert held.commit(plan_of(planned, slots), {0: {("flights", number): 7}}) == {0: None}
            moved = held.begin((slot_of(1 - number),))
            outcome = held.commit(plan_of(planned, moved), {0: {("flights", 1 - number): 7}})
            assert isinstance(outcome[0], Fenced)
            assert "since generation" in str(outcome[0])
            held.abort(moved)
        assert fetch_offsets(client, "app", [("flights", 0), ("flights", 1)], require_stable=True) == {
            ("flights", number): 7,
            ("flights", 1 - number): -1,
        }


def test_at_least_once_is_committed_with_the_newest_generation(broker: EmbeddedBroker, client: NetworkClient) -> None:
    with joined(broker) as first:
        take_changes(first, 2)
        planned = first.assignment
        with joined(broker) as second:
            newest = next_generation(first, second, planned)
            (number,) = newest.active["flights"]
            plan = plan_of(planned, (slot_of(number),))
            reports = {number: TaskReport(partition=number, reached={f"flights-{number}": 7})}
            assert AtLeastOnce(client, "app", HeldGeneration(lambda: newest)).commit(plan, reports) == {0: None}
        assert fetch_offsets(client, "app", [("flights", number)]) == {("flights", number): 7}


def test_a_generation_that_is_not_known_yet_is_waited_for(broker: EmbeddedBroker, client: NetworkClient) -> None:
    with joined(broker) as first:
        take_changes(first, 2)
        planned = first.assignment
        looks = iter([planned, planned])
        with joined(broker) as second:
            newest = next_generation(first, second, planned)
            (number,) = newest.active["flights"]
            held = transactions_of(client, HeldGeneration(lambda: next(looks, newest)))
            slots = held.begin((slot_of(number),))
            assert held.commit(plan_of(planned, slots), {0: {("flights", number): 7}}) == {0: None}


def test_a_generation_that_stays_unknown_means_that_the_batch_is_planned_again(
    broker: EmbeddedBroker, client: NetworkClient
) -> None:
    with joined(broker) as first:
        take_changes(first, 2)
        planned = first.assignment
        with joined(broker) as second:
            number = next_generation(first, second, planned).active["flights"][0]
            held = transactions_of(client, HeldGeneration(lambda: planned, patience_s=0.1))
            slots = held.begin((slot_of(number),))
            error = held.commit(plan_of(planned, slots), {0: {("flights", number): 7}})[0]
            assert isinstance(error, BrokerError)
            assert not isinstance(error, Fenced), "the tasks are not lost"
            assert is_retriable(error)
            held.abort(slots)


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (PLANNED, [3]),
        (AssignmentSnapshot(member_id="m", member_epoch=5, held_since={TASK: 2}), [5]),
        (AssignmentSnapshot(member_id="m", member_epoch=5, held_since={TASK: 4}), []),
        (AssignmentSnapshot(member_id="m", member_epoch=5, held_since={}), []),
        (AssignmentSnapshot(member_id="other", member_epoch=5, held_since={TASK: 2}), []),
        (AssignmentSnapshot(member_id="m", member_epoch=2, held_since={TASK: 1}), []),
        (None, []),
    ],
    ids=["same", "held on", "given back", "lost", "removed", "group lost", "none"],
)
def test_the_generation_follows_from_the_newest_snapshot(
    newest: AssignmentSnapshot | None, expected: list[int]
) -> None:
    epochs = HeldGeneration(lambda: newest, patience_s=0)
    assert list(epochs.of(plan_of(PLANNED, (slot_of(0),)))) == expected


def test_a_streams_group_is_committed_with_the_epoch_of_the_plan() -> None:
    assert list(PLANNED_EPOCH.of(plan_of(PLANNED, (slot_of(0),)))) == [3]
