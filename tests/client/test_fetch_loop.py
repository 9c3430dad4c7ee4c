"""Reads of ranges whose end is not there yet."""

from __future__ import annotations

import threading

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.fetcher import Fetcher
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.errors import BrokerError


def test_an_end_that_does_not_come_is_told(client: NetworkClient) -> None:
    produce(client, "flights", [PlainRecord(value=b"v")], partition=0)
    with pytest.raises(BrokerError, match="cannot be read up to 5") as caught:
        list(Fetcher(client).fetch_ranges({("flights", 0): (0, 5)}, timeout_ms=200))
    assert caught.value.code == "range-unreachable"


def test_records_that_come_while_waiting_are_read(client: NetworkClient, broker: EmbeddedBroker) -> None:
    later = threading.Timer(0.2, lambda: broker.produce("flights", ["x"] * 40))
    later.start()
    counts = sum(
        batch.table.num_rows
        for batch in Fetcher(client).fetch_ranges({("flights", p): (0, 10) for p in range(4)}, timeout_ms=10_000)
    )
    later.join()
    assert counts == 40
