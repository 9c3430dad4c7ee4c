"""Deadlines of calls that try again."""

from __future__ import annotations

import socket
import threading

import pytest
from tests.client.scripted_servers import answering

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.errors import CannotConnect


def test_deadline_error_keeps_the_cause_of_earlier_attempts() -> None:
    connections: list[socket.socket] = []

    def close_the_first(connection: socket.socket) -> None:
        connections.append(connection)
        while connection.recv(4096) and len(connections) > 1:  # silent until the client goes away
            pass

    with (
        answering(close_the_first) as address,
        NetworkClient(address, bootstrap_timeout_ms=700) as client,
        pytest.raises(CannotConnect, match="the broker closed the connection") as caught,
    ):
        client.metadata()
    assert "check security.protocol" in caught.value.fix
    assert len(connections) == 2


def test_a_call_that_tries_again_and_again_is_ended_from_outside() -> None:
    broker = EmbeddedBroker({"in": 1})
    with broker, NetworkClient(broker.bootstrap_servers, api_timeout_ms=600_000) as client:
        client.metadata(["in"])
        broker.kill()
        failures: list[CannotConnect] = []

        def ask() -> None:
            try:
                client.metadata(["in"], refresh=True)
            except CannotConnect as error:
                failures.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        client.end()
        asking.join(60)
        assert [error.code for error in failures] == ["broker-unreachable"]
