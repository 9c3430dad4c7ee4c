"""Null in every place of every request, sent to a broker.

Where the schema has no null, the connection is closed with one line in the log; where it has, the request is answered.
Neither is a fault of the broker, which would be an error with a traceback in the log.
"""

from __future__ import annotations

import logging

import pytest
from tests.harness.brokers import broker_fixture
from tests.harness.wire import WireClient
from tests.protocol.message_samples import EVERY_MESSAGE, message_id
from tests.protocol.request_samples import Message
from tests.protocol.test_null_fields import frames_with_null

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.requests.api_table import SERVED

broker = broker_fixture({"t": 1}, scope="module")

REQUESTS = [message for message in EVERY_MESSAGE if message[2] == "request" and message[0] in SERVED]


def connect_and_send(broker: EmbeddedBroker, frame: bytes) -> WireClient:
    client = WireClient(broker.port, timeout_s=10)
    client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
    return client


@pytest.mark.parametrize("message", REQUESTS, ids=message_id)
def test_null_where_there_is_none_closes_the_connection(
    broker: EmbeddedBroker, message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    sent = 0
    with caplog.at_level(logging.WARNING):
        for place, frame in frames_with_null(message, nullable=False):
            client = connect_and_send(broker, frame)
            try:
                assert client.is_closed_by_peer(), place
            finally:
                client.close()
            sent += 1
    assert len(caplog.records) == sent
    name = f"{message[0].kafka_name} v{message[1]}"
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert record.exc_info is None
        assert name in record.getMessage()


@pytest.mark.parametrize("message", REQUESTS, ids=message_id)
def test_null_where_it_is_allowed_is_answered(
    broker: EmbeddedBroker, message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for place, frame in frames_with_null(message, nullable=True):
            client = connect_and_send(broker, frame)
            try:
                assert client.read_frame(), place
            finally:
                client.close()
    assert not caplog.records
