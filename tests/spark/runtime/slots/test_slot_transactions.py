"""The two transactional ids of a slot: in turn, and other ones after a broker was away."""

from typing import Any

import pyarrow as pa
import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.client.transactions import Transactions
from headrace.errors import CannotConnect, Fenced
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.slots.slot_transactions import SlotTransactions, _identity
from headrace.spark.runtime.stores.store import BatchKey

WHERE = ("flights", 0)
SLOTS = (SlotPlan(slot=0, tasks=()), SlotPlan(slot=1, tasks=()))


@pytest.fixture
def broker(tmp_path):
    with EmbeddedBroker({"flights": 1, "out": 1}, data_dir=tmp_path) as running:
        yield running


class World:
    """A driver's side of transactions, with what it tells others of its ids."""

    def __init__(self, client):
        self.client = client
        self.used: list[Any] = []
        self.over: list[Any] = []
        self.transactions = SlotTransactions(
            client,
            group_id="delays",
            incarnation="m1",
            subtopology_id="by-id",
            topics=("out",),
            timeout_ms=10_000,
            announce=self.used.extend,
            forget=self.over.extend,
        )

    def begin(self, slots=SLOTS):
        return self.transactions.begin(slots)

    def write(self, slot, value):
        producer = Producer(self.client, identity=_identity(slot))
        producer.send("out", 0, None, pa.array([value.encode()]))
        producer.flush()

    def commit(self, slots):
        plan = MicroBatchPlan(
            subtopology_id="by-id",
            batch=BatchKey(incarnation="m1", batch_id=0),
            member_id="",
            member_epoch=-1,
            bootstrap_servers="",
            state_dir="",
            slots=slots,
            topic_ids={},
        )
        return self.transactions.commit(plan, {slot.slot: {WHERE: 1} for slot in slots})


@pytest.fixture
def world(broker):
    with NetworkClient(broker.bootstrap_servers, api_timeout_ms=20_000) as client:
        yield World(client)


def ids(slots):
    return [slot.transactional_id for slot in slots]


def committed(broker):
    return [record.value.decode() for record in broker.records("out")]


def not_heard_once(monkeypatch, method, error):
    """The next call of a method of Transactions is not heard."""
    real = getattr(Transactions, method)

    def deaf(self, *positional, **named):
        monkeypatch.setattr(Transactions, method, real)
        raise error

    monkeypatch.setattr(Transactions, method, deaf)


def test_a_slot_takes_its_two_ids_in_turn(world):
    found = []
    for _ in range(5):
        slots = world.begin()
        assert world.commit(slots) == {0: None, 1: None}
        found.append(ids(slots))
    first, second = found[:2]
    assert found == [first, second, first, second, first]
    assert len({*first, *second}) == 4
    assert sorted(world.used) == sorted({*first, *second}), "announced before they were used, once"
    assert not world.over


def test_a_slot_that_rests_keeps_its_turn(world):
    both = world.begin()
    world.commit(both)
    alone = world.begin(SLOTS[:1])
    world.commit(alone)
    again = world.begin()
    assert again[0].transactional_id == both[0].transactional_id
    assert again[1].transactional_id not in ids(both)


def test_a_batch_that_failed_gets_another_identity_of_the_same_id(world, broker):
    slots = world.begin()
    world.write(slots[0], "not to be")
    world.transactions.renew(slots)
    with pytest.raises(Fenced):
        world.write(slots[0], "a straggler")
    again = world.begin()
    assert ids(again) == ids(slots)
    world.write(again[0], "kept")
    assert world.commit(again) == {0: None, 1: None}
    assert committed(broker) == ["kept"]


def test_after_a_doubt_all_ids_are_over_and_others_follow(world, broker):
    first = world.begin()
    world.write(first[0], "kept")
    world.commit(first)
    second = world.begin()
    world.write(second[0], "not to be")
    world.transactions.mark_unknown()
    world.transactions.renew(second)
    third = world.begin()
    world.write(third[0], "behind")
    world.commit(third)
    assert not set(ids(third)) & set(ids(first) + ids(second))
    assert sorted(world.over) == sorted(ids(first) + ids(second))
    assert committed(broker) == ["kept", "behind"]
    assert world.begin()[0].transactional_id not in world.over, "one doubt, one settling"
    assert len(world.over) == 4


def test_a_broker_that_was_away_is_a_doubt(world, broker):
    first = world.begin()
    world.write(first[0], "kept")
    world.commit(first)
    broker.kill()
    broker.restart()
    world.transactions.resolve_unknown()  # no request was sent since
    with Admin(world.client) as admin:
        admin.list_offsets({WHERE: "latest"})
    world.transactions.resolve_unknown()
    assert set(ids(first)) <= set(world.over)
    second = world.begin()
    world.write(second[0], "behind")
    world.commit(second)
    assert committed(broker) == ["kept", "behind"]


def test_a_settling_that_is_broken_off_is_done_again_and_remembers(world, broker, monkeypatch):
    first = world.begin()
    world.write(first[0], "kept")
    world.commit(first)
    world.transactions.mark_unknown()
    not_heard_once(monkeypatch, "add_offsets", CannotConnect("broker-unreachable", "nobody answers"))
    with pytest.raises(CannotConnect):
        world.begin()
    assert not world.over
    second = world.begin()
    assert set(ids(first)) <= set(world.over)
    assert not set(ids(second)) & set(ids(first))
    assert committed(broker) == ["kept"]
