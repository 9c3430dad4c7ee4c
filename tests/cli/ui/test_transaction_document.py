"""Transactions in progress, and the ones that hang: seen on a real broker."""

from __future__ import annotations

from typing import Any

from tests.cli.ui.served_page import served_page
from tests.client.transaction_ends import write

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.ui.transaction_document import SETTLING_MS, HangingTransactions
from headrace.client.admin import Admin
from headrace.client.sender import TransactionalIdentity
from headrace.client.transaction_markers import OpenTransaction
from headrace.client.transactions import Transactions


def open_transaction(state: str | None, start_offset: int = 7) -> OpenTransaction:
    return OpenTransaction(
        topic="t", partition=0, start_offset=start_offset, producer_id=1, producer_epoch=0, state=state
    )


def test_a_transaction_hangs_only_when_it_stays() -> None:
    hanging = HangingTransactions()
    key = ("t", 0)
    assert hanging.update({key: open_transaction("CompleteCommit")}, 0) == frozenset()
    assert hanging.update({key: open_transaction("CompleteCommit")}, SETTLING_MS - 1) == frozenset()
    assert hanging.update({key: open_transaction(None)}, SETTLING_MS) == {key}
    # Another transaction in the same partition begins anew, and one that is in progress never hangs.
    assert hanging.update({key: open_transaction("CompleteAbort", 9)}, SETTLING_MS + 1) == frozenset()
    assert hanging.update({key: open_transaction("Ongoing", 9)}, 10 * SETTLING_MS) == frozenset()
    assert hanging.update({}, 11 * SETTLING_MS) == frozenset()


def test_an_open_transaction_and_the_records_behind_it(broker: EmbeddedBroker) -> None:
    with served_page(broker.bootstrap_servers) as page, Admin(broker.bootstrap_servers) as admin:
        transactions = Transactions(admin.client, transaction_timeout_ms=60_000)
        (identity,) = transactions.initialise(["orders-<1>"]).values()
        assert isinstance(identity, TransactionalIdentity)
        write(admin.client, transactions, identity, {("flights", 0): ["x", "y"], ("flights", 2): ["z"]})
        page.watch.collect()
        found: dict[str, Any] = page.get("/api/transactions").body
        (row,) = found["transactions"]
        assert (row["transactional_id"], row["state"], row["is_overdue"]) == ("orders-<1>", "Ongoing", False)
        assert [(each["topic"], each["partition"]) for each in row["partitions"]] == [("flights", 0), ("flights", 2)]
        assert 0 <= row["age_ms"] < 60_000 == row["timeout_ms"]
        assert [(each["partition"], each["records"], each["hangs"]) for each in found["held"]] == [
            (0, 2, False),
            (2, 1, False),
        ]
        assert "Wait" in found["held"][0]["do"]
        # It is read once per frame, however many browsers there are.
        before = broker.metrics()
        assert page.get("/api/transactions").body == found
        after = broker.metrics()
        requests = [name for name in before if name.startswith("kafka_network_RequestMetrics_Count")]
        assert [name for name in requests if after[name] != before[name]] == []
        transactions.end([identity], commit=True)
        page.watch.collect()
        assert page.get("/api/transactions").body["transactions"] == []


def test_records_are_served_within_limits(broker: EmbeddedBroker) -> None:
    broker.produce("flights", [b'{"a": 1}'], key=b"\xff", partition=1)
    with served_page(broker.bootstrap_servers) as page:
        page.watch.collect()
        found = page.get("/api/records", {"topic": "flights", "partition": "1"}).body
        assert [(each["key"]["kind"], each["value"]["kind"]) for each in found["records"]] == [("hex", "json")]
        for query, status in (
            ({"topic": "none"}, 404),
            ({"topic": "flights", "partition": "4"}, 404),
            ({"topic": "flights", "partition": "-1"}, 400),
            ({"topic": "flights", "count": "201"}, 400),
            ({"topic": "flights", "count": "0"}, 400),
            ({"topic": "flights", "as": "xml"}, 400),
            ({"topic": "flights", "isolation": "serializable"}, 400),
            ({"topic": "flights", "before": "9" * 30}, 400),
        ):
            assert page.get("/api/records", query).status == status, query
    with served_page(broker.bootstrap_servers, shows_records=False) as page:
        page.watch.collect()
        assert page.get("/api/records", {"topic": "flights"}).status == 403
