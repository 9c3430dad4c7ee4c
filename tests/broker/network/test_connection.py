"""Whatever bytes arrive, the broker answers or closes that one connection, and nobody else notices."""

from __future__ import annotations

import random
import socket
import struct

import pytest
from tests.broker.network.request_frames import framed, header
from tests.harness.brokers import Connect
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.requests.api_table import SERVED
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.request_codec import decode_response

LIST_TOPICS = m.metadata_request.MetadataRequest(
    topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
)


HOSTILE = {
    "negative length": struct.pack(">i", -5) + b"abc",
    "huge length": struct.pack(">i", 2**31 - 1) + b"abc",
    "just above the limit": struct.pack(">i", 104857601),
    "empty frame": framed(b""),
    "half a header": framed(b"\x00\x12\x00"),
    "unknown api": framed(header(999, 0)),
    "negative api": framed(header(-1, 0)),
    "an api that is known but not served": framed(header(ApiKey.END_TXN, 0)),
    "unknown version of a known api": framed(header(ApiKey.METADATA, 99)),
    "client id longer than the frame": framed(struct.pack(">hhih", 3, 1, 7, 30000) + b"x"),
    "metadata that ends too early": framed(header(ApiKey.METADATA, 1) + struct.pack(">i", 3) + b"\x00"),
    "an array of two thousand million topics": framed(header(ApiKey.METADATA, 1) + struct.pack(">i", 2**31 - 1)),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls hello": bytes.fromhex("160301020001000001fc0303") + bytes(200),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_close_their_own_connection_only(name: str, broker: EmbeddedBroker, connect: Connect) -> None:
    neighbour, hostile = connect(broker), connect(broker)
    assert neighbour.call(ApiKey.METADATA, LIST_TOPICS).error_code is ErrorCode.none
    hostile.socket.sendall(HOSTILE[name])
    assert hostile.is_closed_by_peer()
    assert neighbour.call(ApiKey.METADATA, LIST_TOPICS).error_code is ErrorCode.none


def test_random_bytes(broker: EmbeddedBroker, connect: Connect) -> None:
    neighbour = connect(broker)
    chance = random.Random(20261121)
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as hostile:
            body = chance.randbytes(chance.randrange(1, 400))
            framing = chance.random() < 0.7
            try:
                hostile.sendall(framed(body) if framing else body)
                hostile.shutdown(socket.SHUT_WR)
                while hostile.recv(4096):
                    pass
            except (ConnectionResetError, BrokenPipeError):
                continue
        assert neighbour.call(ApiKey.METADATA, LIST_TOPICS).error_code is ErrorCode.none


def test_every_served_api_survives_random_bodies(broker: EmbeddedBroker, connect: Connect) -> None:
    neighbour = connect(broker)
    chance = random.Random(1071)
    for api_key in SERVED:
        for version in (SUPPORTED[api_key].lowest, SUPPORTED[api_key].highest):
            with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as hostile:
                hostile.sendall(framed(header(api_key, version) + chance.randbytes(chance.randrange(0, 120))))
                hostile.shutdown(socket.SHUT_WR)
                try:
                    while hostile.recv(65536):
                        pass
                except ConnectionResetError:
                    continue
    assert neighbour.call(ApiKey.METADATA, LIST_TOPICS).error_code is ErrorCode.none


def test_half_a_frame_waits_and_is_answered_when_it_is_whole(broker: EmbeddedBroker, connect: Connect) -> None:
    slow, neighbour = connect(broker), connect(broker)
    request = framed(header(ApiKey.METADATA, 1) + struct.pack(">i", 0))
    for byte in request[:-1]:
        slow.socket.sendall(bytes([byte]))
    assert neighbour.call(ApiKey.METADATA, LIST_TOPICS).error_code is ErrorCode.none
    slow.socket.sendall(request[-1:])
    correlation_id, answer = decode_response(ApiKey.METADATA, 1, slow.read_frame())
    assert correlation_id == 7
    assert isinstance(answer, m.metadata_response.MetadataResponse)
    assert answer.topics == ()


def test_two_hundred_connections_opened_and_dropped(broker: EmbeddedBroker, connect: Connect) -> None:
    neighbour = connect(broker)
    for number in range(200):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as dropped:
            if number % 3:
                dropped.sendall(framed(header(ApiKey.METADATA, 1) + struct.pack(">i", 0))[: number % 16])
            if number % 2:
                # Reset instead of an orderly end.
                dropped.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert neighbour.call(ApiKey.METADATA, LIST_TOPICS).error_code is ErrorCode.none
    wait_until(lambda: broker.connection_count == 1)


def test_a_client_that_does_not_read_is_not_read_from(broker: EmbeddedBroker, connect: Connect) -> None:
    broker.create_topics({"wide": 200})
    lazy, neighbour = connect(broker), connect(broker)
    lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = framed(header(ApiKey.METADATA, 1) + struct.pack(">i", -1))
    lazy.socket.settimeout(1.0)
    sent, most = 0, 48_000_000 // len(request)  # several times what the kernel's socket buffers may grow to
    try:
        while sent < most:
            lazy.socket.sendall(request * 100)
            sent += 100
    except TimeoutError:
        pass
    assert sent < most, "the broker took more requests than it can have answered"
    assert neighbour.call(ApiKey.METADATA, LIST_TOPICS).error_code is ErrorCode.none


def test_pipelined_requests_are_answered_in_order(broker: EmbeddedBroker, connect: Connect) -> None:
    client = connect(broker)
    requests = b"".join(
        framed(header(ApiKey.METADATA, 1, correlation_id) + struct.pack(">i", -1)) for correlation_id in range(500)
    )
    client.socket.sendall(requests)
    answered = [decode_response(ApiKey.METADATA, 1, client.read_frame())[0] for _ in range(500)]
    assert answered == list(range(500))
