"""Refusals of a broker and the rights that they ask for."""

from __future__ import annotations

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.client.transactions import Transactions
from headrace.errors import BrokerError


def test_missing_transactional_id_right_is_named():
    config = {"authorizer.class.name": "on", "super.users": "User:root"}
    with (
        EmbeddedBroker(config=config) as broker,
        NetworkClient(broker.bootstrap_servers, bootstrap_timeout_ms=60_000) as client,
    ):
        refused = Transactions(client).initialise(["delays-x-0"])["delays-x-0"]
    assert isinstance(refused, BrokerError)
    assert refused.code == "not-authorized"
    assert "WRITE on the transactional id" in refused.fix
