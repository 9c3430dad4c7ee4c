"""Transactional ids on disk: what a process that died left open is ended by the next one in its state directory."""

from typing import Any

import pyarrow as pa
import pytest
from tests.harness.values import instance_of

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.group_offsets import fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.client.sender import TransactionalIdentity
from headrace.client.transactions import Transactions
from headrace.errors import Fenced, StateError
from headrace.spark.runtime.transaction_journal import FILE, TransactionJournal

TIMEOUT_MS = 800_000


def test_ids_are_kept_until_a_clean_stop(tmp_path):
    journal = TransactionJournal(tmp_path, "delays")
    assert journal.left_behind() == []
    journal.add(["delays-m1-by-id-0", "delays-m1-by-id-1"])
    journal.add(["delays-m1-by-id-1", "delays-m1-flights-0"])
    journal.add(["delays-m1-flights-0"])
    assert (tmp_path / FILE).read_text().splitlines() == [
        f"delays-m1-{slot}" for slot in ("by-id-0", "by-id-1", "flights-0")
    ]
    assert TransactionJournal(tmp_path, "delays").left_behind() == journal.left_behind()
    journal.clear()
    assert not (tmp_path / FILE).exists()
    journal.add(["delays-m1-by-id-0"])
    assert journal.left_behind() == ["delays-m1-by-id-0"], "what was cleared is new again"


def test_ids_that_are_over_are_forgotten(tmp_path):
    journal = TransactionJournal(tmp_path, "delays")
    journal.add(["delays-m1-by-id-0", "delays-m1-by-id-1", "delays-m1-by-id-2"])
    journal.remove(["delays-m1-by-id-1", "delays-m1-of-another"])
    assert journal.left_behind() == ["delays-m1-by-id-0", "delays-m1-by-id-2"]
    journal.add(["delays-m1-by-id-1", "delays-m1-by-id-2"])
    assert journal.left_behind() == ["delays-m1-by-id-0", "delays-m1-by-id-2", "delays-m1-by-id-1"]


def test_ids_of_other_groups_are_ignored(tmp_path):
    (tmp_path / FILE).write_bytes(b"other-m1-by-id-0\n\xff\xfe\ndelays-m1-by-id-0\ndelays-m1-by-id-0\n\n")
    assert TransactionJournal(tmp_path, "delays").left_behind() == ["delays-m1-by-id-0"]


def test_an_unwritable_journal_is_reported(tmp_path):
    journal = TransactionJournal(tmp_path / "nowhere", "delays")
    with pytest.raises(StateError) as raised:
        journal.add(["delays-m1-by-id-0"])
    assert raised.value.code == "disk-full"
    assert journal.left_behind() == []


def test_the_next_process_ends_transactions_left_open(tmp_path):
    where = ("flights", 0)
    with EmbeddedBroker({"flights": 1, "out": 1}) as broker, NetworkClient(broker.bootstrap_servers) as client:
        dead = TransactionJournal(tmp_path, "delays")
        transactions = Transactions(client, transaction_timeout_ms=TIMEOUT_MS)
        dead.add(["delays-m1-flights-0"])
        [outcome] = transactions.initialise(["delays-m1-flights-0"]).values()
        identity = instance_of(TransactionalIdentity, outcome)
        writer = Producer(client, identity=identity)
        writer.send("out", 0, None, pa.array([b"of the dead"]))
        writer.flush()
        told = transactions.commit_offsets("delays", {identity: {where: 7}}, member_id="", member_epoch=-1)
        assert set(told.values()) == {None}
        admin = Admin(client)
        stable: dict[str, Any] = {"isolation_level": "read_committed"}
        assert admin.list_offsets({("out", 0): "latest"}, **stable)["out", 0].offset == 0

        TransactionJournal(tmp_path, "delays").end_left_behind(
            client, topics=["out"], transaction_timeout_ms=TIMEOUT_MS
        )
        end = admin.list_offsets({("out", 0): "latest"}, **stable)["out", 0].offset
        assert end == 3, "the record, its marker, and that of the settling"
        assert fetch_offsets(client, "delays", [where], require_stable=True) == {where: -1}
        assert dead.left_behind() == []
        late = Producer(client, identity=identity, sequences=writer.next_sequences())
        late.send("out", 0, None, pa.array([b"a straggler"]))
        with pytest.raises(Fenced):
            late.flush()
        assert list(broker.records("out")) == []


def test_no_resolution_without_open_transactions(tmp_path):
    with NetworkClient("127.0.0.1:1", bootstrap_timeout_ms=1) as client:
        TransactionJournal(tmp_path, "delays").end_left_behind(
            client, topics=["out"], transaction_timeout_ms=TIMEOUT_MS
        )
