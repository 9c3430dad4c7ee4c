"""What a coordinator of Apache Kafka leaves open in a partition (KAFKA-20734) is ended as it was decided.

A partition without a leader gets no marker. That is played here without a restart that hits the right millisecond: a
broker that does not verify takes records of a transaction to which their partition was never added, and so writes no
marker there. The test without settling shows what is at stake.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker

from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.group_offsets import fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.sender import Sender, TransactionalIdentity
from headrace.client.transaction_resolution import note_decisions, resolve_transactions
from headrace.client.transactions import TransactionDescription, Transactions
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol.record_batches import PlainRecord, encode_batch

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker("4.3.1", {"transaction.partition.verification.enable": False}) as broker:
        yield broker


@pytest.fixture
def client(kafka: KafkaBroker) -> Iterator[NetworkClient]:
    with NetworkClient(kafka.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(client: NetworkClient) -> str:
    name = f"flights-{uuid.uuid4().hex[:8]}"
    Admin(client).create_topics({name: 2})
    client.leaders((name, partition) for partition in range(2))
    return name


def write(
    client: NetworkClient, identity: TransactionalIdentity, topic: str, values: dict[int, str], added: int
) -> None:
    """A value into each partition; of them only `added` becomes part of the transaction."""
    ends = Transactions(client, transaction_timeout_ms=TIMEOUT_MS, version=1)
    ends.add_partitions(identity, [(topic, added)])
    queue = Sender(client, identity=identity, register=lambda _partitions: None)
    for partition, value in values.items():
        queue.add(topic, partition, encode_batch([PlainRecord(value=value.encode())]))
    queue.flush()


def end(client: NetworkClient, identity: TransactionalIdentity, *, commit: bool) -> None:
    ends = Transactions(client, transaction_timeout_ms=TIMEOUT_MS, version=1)
    told = ends.end([identity], commit=commit)
    assert isinstance(told[identity.transactional_id], TransactionalIdentity)
    # markers are on their way
    wait_until(lambda: state_of(ends.describe(told), identity).startswith("Complete"), "a complete transaction")


def state_of(found: Mapping[str, TransactionDescription | HeadraceError], identity: TransactionalIdentity) -> str:
    description = found[identity.transactional_id]
    assert isinstance(description, TransactionDescription), description
    return description.state


def begin(client: NetworkClient, tid: str) -> TransactionalIdentity:
    found = Transactions(client, transaction_timeout_ms=TIMEOUT_MS, version=1).initialise([tid])[tid]
    assert isinstance(found, TransactionalIdentity)
    return found


def read(client: NetworkClient, topic: str) -> list[list[str]]:
    """What readers of committed records get of both partitions."""
    wheres = [(topic, partition) for partition in range(2)]
    ends = Admin(client).list_offsets(dict.fromkeys(wheres, "latest"), isolation_level="read_committed")
    found: dict[int, list[str]] = {0: [], 1: []}
    for batch in Fetcher(client).fetch_ranges({where: (0, row.offset) for where, row in ends.items()}):
        found[batch.partition] += [value.decode() for value in batch.table.column("value").to_pylist()]
    return [found[0], found[1]]


def settled(client: NetworkClient, tid: str, topic: str) -> None:
    told = resolve_transactions(client, [tid], group_id="readers", topics=[topic], transaction_timeout_ms=TIMEOUT_MS)
    assert told == {tid: None}


def test_an_aborted_transaction_does_not_change_a_commit_before_it(client: NetworkClient, topic: str) -> None:
    identity = begin(client, f"{topic}-x")
    write(client, identity, topic, {0: "kept", 1: "left open"}, added=0)
    end(client, identity, commit=True)
    assert read(client, topic) == [["kept"], []]
    identity = begin(client, f"{topic}-x")
    write(client, identity, topic, {1: "not to be"}, added=1)
    end(client, identity, commit=False)
    begin(client, f"{topic}-x")
    assert read(client, topic) == [["kept"], []], "this Kafka keeps them apart: the two ids of a slot are needless"


def test_a_decided_commit_is_completed_in_every_partition(client: NetworkClient, topic: str) -> None:
    identity = begin(client, f"{topic}-x")
    write(client, identity, topic, {0: "kept", 1: "left open"}, added=0)
    end(client, identity, commit=True)
    assert read(client, topic) == [["kept"], []]
    settled(client, f"{topic}-x", topic)
    assert read(client, topic) == [["kept"], ["left open"]]


def test_a_commit_behind_the_look_at_an_ongoing_transaction_counts(
    client: NetworkClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed driver's EndTxn may lie in a broken connection while its transactions are looked at."""
    identity = begin(client, f"{topic}-x")
    write(client, identity, topic, {0: "kept", 1: "left open"}, added=0)
    real = Transactions.describe

    def describe(self: Transactions, *args: Any, **named: Any) -> Any:
        found = real(self, *args, **named)
        monkeypatch.setattr(Transactions, "describe", real)
        assert state_of(found, identity) == "Ongoing"
        end(client, identity, commit=True)
        return found

    monkeypatch.setattr(Transactions, "describe", describe)
    settled(client, f"{topic}-x", topic)
    assert read(client, topic) == [["kept"], ["left open"]]


def test_a_commit_behind_the_abort_of_an_ongoing_transaction_is_refused(client: NetworkClient, topic: str) -> None:
    tid = f"{topic}-x"
    ends = Transactions(client, transaction_timeout_ms=TIMEOUT_MS)
    identity = ends.initialise([tid])[tid]
    assert isinstance(identity, TransactionalIdentity)
    queue = Sender(client, identity=identity)  # transaction.version 2
    queue.add(topic, 0, encode_batch([PlainRecord(value=b"not to be")]))
    queue.flush()
    known: dict[str, bool] = {}
    assert note_decisions(ends, [tid], known) == {}
    assert known == {tid: False}
    assert isinstance(ends.end([identity], commit=True)[tid], BrokerError)
    assert read(client, topic) == [[], []]


def test_a_decided_abort_is_completed_in_every_partition_without_waiting(client: NetworkClient, topic: str) -> None:
    identity, other = begin(client, f"{topic}-x"), begin(client, f"{topic}-y")
    write(client, identity, topic, {0: "not to be", 1: "nor this"}, added=0)
    end(client, identity, commit=False)
    write(client, other, topic, {1: "behind it"}, added=1)
    end(client, other, commit=True)
    assert read(client, topic) == [[], []]
    settled(client, f"{topic}-x", topic)
    assert read(client, topic) == [[], ["behind it"]]


def test_a_known_commit_is_completed_after_the_identity_was_renewed(client: NetworkClient, topic: str) -> None:
    """An InitProducerId wipes out what the coordinator knew: a round that was broken off behind it must not forget."""
    identity = begin(client, f"{topic}-x")
    write(client, identity, topic, {0: "kept", 1: "left open"}, added=0)
    end(client, identity, commit=True)
    begin(client, f"{topic}-x")
    known = {f"{topic}-x": True}
    resolve_transactions(
        client,
        known,
        group_id="readers",
        topics=[topic, "deleted-meanwhile"],
        committed=known,
        transaction_timeout_ms=TIMEOUT_MS,
    )
    assert read(client, topic) == [["kept"], ["left open"]]


def test_pending_offsets_of_a_committed_transaction_count(client: NetworkClient, topic: str) -> None:
    identity = begin(client, f"{topic}-x")
    ends = Transactions(client, transaction_timeout_ms=TIMEOUT_MS)  # version 2: the offsets add themselves
    told = ends.commit_offsets("readers", {identity: {(topic, 0): 7}}, member_id="", member_epoch=-1)
    assert told == {identity.transactional_id: None}
    end(client, identity, commit=True)
    settled(client, f"{topic}-x", topic)
    assert fetch_offsets(client, "readers", [(topic, 0)], require_stable=True) == {(topic, 0): 7}


def test_resolving_without_open_transactions_changes_nothing(client: NetworkClient, topic: str) -> None:
    settled(client, f"{topic}-of-nobody", topic)
    identity = begin(client, f"{topic}-x")
    write(client, identity, topic, {0: "kept"}, added=0)
    end(client, identity, commit=True)
    settled(client, f"{topic}-x", topic)
    settled(client, f"{topic}-x", topic)
    assert read(client, topic) == [["kept"], []]
    identity = begin(client, f"{topic}-x")
    write(client, identity, topic, {0: "open"}, added=0)
    settled(client, f"{topic}-x", topic)
    assert read(client, topic) == [["kept"], []]


def test_reader_reports_a_hanging_transaction_and_continues_after_it(client: NetworkClient, topic: str) -> None:
    """As a restore reads a changelog: to an end that was asked for READ_UNCOMMITTED."""
    identity, other = begin(client, f"{topic}-x"), begin(client, f"{topic}-y")
    write(client, identity, topic, {0: "kept", 1: "left open"}, added=0)
    end(client, identity, commit=True)
    write(client, other, topic, {1: "behind it"}, added=1)
    end(client, other, commit=True)
    where = (topic, 1)
    ranges = {where: (0, Admin(client).list_offsets({where: "latest"})[where].offset)}
    with pytest.raises(BrokerError) as caught:
        list(Fetcher(client).fetch_ranges(ranges, timeout_ms=500))
    error = caught.value
    assert (error.code, error.retriable) == ("range-unreachable", True)
    assert f"a transaction of {topic}-x is open there since offset 0" in error.message
    assert f"producer id {identity.producer_id}, epoch {identity.producer_epoch}" in error.message
    assert "CompleteCommit" in error.message
    assert f"abort --topic {topic} --partition 1 --start-offset 0" in error.fix

    def settle_later() -> None:
        with NetworkClient(client.bootstrap_servers) as own:
            settled(own, f"{topic}-x", topic)

    later = threading.Timer(0.5, settle_later)
    later.start()
    found = [
        value.decode()
        for batch in Fetcher(client).fetch_ranges(ranges, timeout_ms=20_000)
        for value in batch.table.column("value").to_pylist()
    ]
    later.join()
    assert found == ["left open", "behind it"]
