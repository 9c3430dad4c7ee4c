"""Markers that Apache Kafka leaves out on a broker to which the application has no connection (KAFKA-20734).

Three brokers, a written topic without replicas, and a broker that dies before a transaction ends and comes back after
it: its partition stays open although the coordinator reports the transaction as complete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_cluster import KafkaCluster

from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.network_client import NetworkClient
from headrace.client.sender import Sender
from headrace.client.transactions import Transactions
from headrace.errors import BrokerError
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.slots.slot_transactions import SlotTransactions, _identity
from headrace.spark.runtime.stores.store import BatchKey

pytestmark = [pytest.mark.interop, pytest.mark.slow]

GROUP = "delays"
WHERES = [("out", partition) for partition in range(3)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    few: dict[str, object] = {
        **dict.fromkeys(("transaction.state.log.num.partitions", "offsets.topic.num.partitions"), 1),  # 2 coordinators
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 500,
    }
    with KafkaCluster(properties=few) as cluster:
        yield cluster


@dataclass
class Driver:
    """The transactions of one slot. Its workers write with clients of their own."""

    client: NetworkClient
    transactions: SlotTransactions

    def begin(self) -> SlotPlan:
        (slot,) = self.transactions.begin((SlotPlan(slot=0, tasks=()),))
        return slot

    def write(self, slot: SlotPlan, values: dict[int, str]) -> None:
        with NetworkClient(self.client.bootstrap_servers) as worker:
            queue = Sender(worker, identity=_identity(slot))
            for partition, value in values.items():
                queue.add("out", partition, encode_batch([PlainRecord(value=value.encode())]))
            queue.flush()

    def commit(self, slot: SlotPlan, offset: int) -> None:
        plan = MicroBatchPlan(
            subtopology_id="by-id",
            batch=BatchKey(incarnation="m1", batch_id=0),
            member_id="",
            member_epoch=-1,
            bootstrap_servers="",
            state_dir="",
            slots=(slot,),
            topic_ids={},
        )
        assert self.transactions.commit(plan, {0: {("in", 0): offset}}) == {0: None}


def driver_of(kafka: KafkaCluster, distant: int) -> Driver:
    """One that is not connected to the broker of this index."""
    others = [broker.bootstrap_servers for index, broker in enumerate(kafka.brokers) if index != distant]
    client = NetworkClient(others, api_timeout_ms=30_000)
    return Driver(
        client,
        SlotTransactions(
            client,
            group_id=GROUP,
            incarnation="m1",
            subtopology_id="by-id",
            topics=("out",),
            timeout_ms=60_000,
            announce=lambda _: None,
            forget=lambda _: None,
        ),
    )


def read(client: NetworkClient) -> dict[int, list[str]]:
    """What readers of committed records get of each partition."""
    ends = Admin(client).list_offsets(dict.fromkeys(WHERES, "latest"), isolation_level="read_committed")
    found: dict[int, list[str]] = {partition: [] for _, partition in WHERES}
    for batch in Fetcher(client).fetch_ranges({where: (0, row.offset) for where, row in ends.items()}):
        found[batch.partition] += [value.decode() for value in batch.table.column("value").to_pylist()]
    return found


def await_leader(admin: Admin, where: tuple[str, int], *, exists: bool) -> None:
    def has_leader() -> bool:
        return admin.client.metadata([where[0]], refresh=True).leader(*where) is not None

    wait_until(lambda: has_leader() == exists, f"{where} {'has a' if exists else 'has no'} leader")


def distant_partition(kafka: KafkaCluster, admin: Admin) -> tuple[int, int]:
    """A partition of "out" on a broker that coordinates nothing here: the broker's index and the partition."""
    busy = {*Transactions(admin.client).coordinators(["any"]).values(), admin.client.coordinator_for(GROUP)}
    leaders = admin.client.leaders(WHERES)
    where = next(where for where, node in sorted(leaders.items()) if node not in busy)
    return leaders[where] - 1, where[1]


def test_a_transaction_left_open_on_another_broker_stays_committed(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Transaction n of id A is left open there, n+1 uses B, n+2 would use A, and fails."""
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({"out": 3, "in": 1}, replication_factor=1)
        admin.client.leaders([*WHERES, ("in", 0)])
        index, distant = distant_partition(kafka, admin)
        near = (distant + 1) % 3
        driver = driver_of(kafka, index)
        first = driver.begin()
        driver.write(first, {distant: "n", near: "n"})
        kafka.brokers[index].kill()
        await_leader(admin, ("out", distant), exists=False)
        reconnects = driver.client.reconnects
        driver.commit(first, 1)
        second = driver.begin()
        driver.write(second, {near: "n+1"})
        driver.commit(second, 2)
        assert driver.client.reconnects == reconnects, "no connection broke"
        with caplog.at_level(logging.WARNING), pytest.raises(BrokerError) as caught:
            driver.transactions.check_ended(wait=True)
        assert caught.value.retriable
        assert f"out-{distant}" in caught.value.message
        assert f"Waiting for a leader of out-{distant}" in caplog.text
        kafka.restart(index)
        await_leader(admin, ("out", distant), exists=True)
        assert read(admin.client)[distant] == [], "this Kafka wrote the marker: none of this is needed"
        third = driver.begin()
        assert third.transactional_id not in {first.transactional_id, second.transactional_id}
        driver.write(third, {distant: "fails", near: "fails"})
        driver.transactions.renew([third])
        found = read(admin.client)
        assert (found[distant], found[near]) == (["n"], ["n", "n+1"])
        driver.client.close()
