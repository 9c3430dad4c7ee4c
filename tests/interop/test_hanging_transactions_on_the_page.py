"""Transactions that hang for real, on the page beside both brokers: shown, told apart from open ones, and ended.

A broker that does not verify takes records of a transaction to which their partition was never added. Its coordinator
commits the transaction without them, and no timeout ends what lies in that partition.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cli.ui.served_page import PageUnderTest, served_page
from tests.harness.browser import Browser, needs_browser
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_tools import ToolServer

from headrace import Admin, EmbeddedBroker
from headrace.client.sender import Sender, TransactionalIdentity
from headrace.client.transactions import Transactions
from headrace.protocol.record_batches import PlainRecord, encode_batch

pytestmark = [pytest.mark.interop, pytest.mark.slow, needs_browser]

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
LONG_MS = 800_000  # the brokers' limit is 15 minutes
HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def servers(kafka_tools: None) -> Iterator[list[str]]:
    """Apache Kafka and our broker, which do not verify."""
    config = {"transaction.partition.verification.enable": False}
    with KafkaBroker("4.3.1", config) as kafka, EmbeddedBroker(config=config) as ours:
        yield [kafka.bootstrap_servers, ours.bootstrap_servers]


def begin(admin: Admin, name: str) -> tuple[Transactions, TransactionalIdentity]:
    transactions = Transactions(admin.client, transaction_timeout_ms=LONG_MS, version=1)
    (identity,) = transactions.initialise([name]).values()
    assert isinstance(identity, TransactionalIdentity)
    return transactions, identity


def write(admin: Admin, identity: TransactionalIdentity, topic: str, partitions: range) -> None:
    """Write records without adding their partitions to the transaction."""
    sender = Sender(admin.client, identity=identity, register=lambda _partitions: None)
    for partition in partitions:
        sender.add(topic, partition, encode_batch([PlainRecord(value=b"x"), PlainRecord(value=b"y")]))
    sender.flush()


def leave_open(admin: Admin, topic: str) -> None:
    """Partition 1 hangs: partition 0 alone was added, and the transaction is committed. Partition 2 is open."""
    transactions, identity = begin(admin, f"{topic}-hanging")
    transactions.add_partitions(identity, [(topic, 0)])
    write(admin, identity, topic, range(2))
    transactions.end([identity], commit=True)
    # A client that adds a partition, writes, and stops.
    transactions, identity = begin(admin, HOSTILE)
    transactions.add_partitions(identity, [(topic, 2)])
    write(admin, identity, topic, range(2, 3))


def held(page: PageUnderTest) -> dict[int, dict[str, Any]]:
    found = page.collected("/api/transactions")["held"]
    assert isinstance(found, list)
    return {row["partition"]: row for row in found}


def test_a_transaction_that_hangs_is_shown_and_ended(servers: list[str], tools: ToolServer) -> None:
    topic = "hanging"
    with ExitStack() as stack:
        admins = [stack.enter_context(Admin(each)) for each in servers]
        pages = [stack.enter_context(served_page(each)) for each in servers]
        browser = stack.enter_context(Browser())
        for admin in admins:
            admin.create_topics({topic: 3}, replication_factor=1)
            leave_open(admin, topic)
        for page in pages:
            # At first it may be one whose markers are still to be written.
            wait_until(lambda page=page: set(held(page)) == {1, 2}, "both partitions are held", interval_s=0.5)  # type: ignore[misc]
            assert not any(row["hangs"] for row in held(page).values())
        for server, page in zip(servers, pages, strict=True):
            wait_until(lambda page=page: held(page)[1]["hangs"], "it hangs", timeout_s=60, interval_s=0.5)  # type: ignore[misc]
            rows = held(page)
            assert (rows[1]["records"], rows[1]["start_offset"]) == (2, 0)
            assert (rows[2]["hangs"], rows[2]["state"], rows[2]["transactional_id"]) == (False, "Ongoing", HOSTILE)
            browser.open(f"{page.url}/transactions")
            browser.wait("document.querySelector('main tbody .badge.error')?.innerText === 'Hanging'")
            assert HOSTILE in browser.text()
            assert browser.run("document.querySelectorAll('main img').length") == 0
            assert "13 min 20 s" in browser.text()  # after which the open one times out
            # The command of the page ends it.
            command = rows[1]["do"].partition("kafka-transactions.sh ")[2].replace("HOST:PORT", server)
            ended = tools.run(TRANSACTIONS, *shlex.split(command))
            assert ended.code == 0, ended
            wait_until(lambda page=page: set(held(page)) == {2}, "readers of partition 1 go on", interval_s=0.5)  # type: ignore[misc]
            browser.wait("document.querySelector('main tbody .badge.error') === null")
        assert browser.errors == []
