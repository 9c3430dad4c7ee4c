"""One connection: versions, and servers that answer wrongly, late or not at all."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from tests.client.scripted_servers import LIST_GROUPS, answering

from headrace.client.cluster_metadata import parse_bootstrap_servers
from headrace.client.connection import Connection, ConnectionLost, NotKafka, RequestTimedOut
from headrace.client.deadline import Deadline
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import RequestHeader, decode_request, encode_response


def read_request(connection: socket.socket) -> tuple[RequestHeader, object]:
    length = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
    return decode_request(connection.recv(length, socket.MSG_WAITALL))


def versions(*ranges: tuple[ApiKey, int, int], code: ErrorCode = ErrorCode.none) -> object:
    response = m.api_versions_response
    return response.ApiVersionsResponse(
        error_code=code,
        api_keys=tuple(response.ApiVersion(api_key=k, min_version=low, max_version=high) for k, low, high in ranges),
        throttle_time=from_ms(0),
    )


def test_the_version_is_the_highest_that_both_speak(client: NetworkClient) -> None:
    assert client.supported_range(ApiKey.FETCH) == SUPPORTED[ApiKey.FETCH]


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"\x15\x03\x03\x00\x02\x02\x50"]
)
def test_other_server_is_reported_at_once(greeting: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(greeting)
        connection.recv(1000)

    with (
        answering(answer) as address,
        NetworkClient(address, bootstrap_timeout_ms=60_000, request_timeout_ms=2_000) as client,
        pytest.raises(CannotConnect),
    ):
        client.metadata()


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    over = threading.Event()

    def silent(connection: socket.socket) -> None:
        over.wait(10)

    with answering(silent) as address:
        with pytest.raises(RequestTimedOut):
            Connection(*parse_bootstrap_servers(address), client_id="t", deadline=Deadline.after_ms(150))
        over.set()


def test_a_broker_that_hangs_up_in_mid_request_is_tried_again() -> None:
    seen: list[int] = []

    def answer(connection: socket.socket) -> None:
        header, _ = read_request(connection)
        connection.sendall(encode_response(header, versions((ApiKey.LIST_GROUPS, 0, 5))))
        header, _ = read_request(connection)
        seen.append(header.correlation_id)
        if len(seen) < 3:
            connection.sendall(b"\x00\x00")  # half of a length, then nothing
            return
        response = m.list_groups_response.ListGroupsResponse(
            throttle_time=from_ms(0), error_code=ErrorCode.none, groups=()
        )
        connection.sendall(encode_response(header, response))

    with answering(answer) as address, NetworkClient(address) as client:
        assert client.call(LIST_GROUPS).groups == ()
    assert len(seen) == 3


def test_an_old_broker_that_answers_in_version_0_gets_its_own_version() -> None:
    asked: list[int] = []

    def answer(connection: socket.socket) -> None:
        for _ in range(2):
            header, _ = read_request(connection)
            asked.append(header.api_version)
            if header.api_version > 1:
                refused = versions((ApiKey.API_VERSIONS, 0, 1), code=ErrorCode.unsupported_version)
                as_version_0 = RequestHeader(
                    api_key=header.api_key, api_version=0, correlation_id=header.correlation_id, client_id=None
                )
                connection.sendall(encode_response(as_version_0, refused))
            else:
                connection.sendall(encode_response(header, versions((ApiKey.METADATA, 0, 8))))

    with answering(answer) as address, NetworkClient(address) as client:
        assert client.supported_range(ApiKey.METADATA) == (0, 8)
        assert client.supported_range(ApiKey.STREAMS_GROUP_HEARTBEAT) is None
    assert asked == [SUPPORTED[ApiKey.API_VERSIONS].highest, 1]


def test_an_api_that_the_broker_lacks_is_refused_here() -> None:
    def answer(connection: socket.socket) -> None:
        header, _ = read_request(connection)
        connection.sendall(encode_response(header, versions((ApiKey.METADATA, 0, 1))))
        connection.recv(1)

    with (
        answering(answer) as address,
        NetworkClient(address) as client,
        pytest.raises(BrokerError, match="does not offer ListGroups") as caught,
    ):
        client.call(LIST_GROUPS)
    assert caught.value.code == "unsupported-api"


def test_an_answer_to_another_request_closes_the_connection() -> None:
    def answer(connection: socket.socket) -> None:
        header, _ = read_request(connection)
        wrong = RequestHeader(
            api_key=header.api_key, api_version=header.api_version, correlation_id=99, client_id=header.client_id
        )
        connection.sendall(encode_response(wrong, versions((ApiKey.METADATA, 0, 1))))

    with answering(answer) as address, pytest.raises(NotKafka):
        Connection(*parse_bootstrap_servers(address), client_id="t", deadline=Deadline.after_ms(5_000))


def test_connection_opened_during_close_is_closed_too() -> None:
    """A membership's thread may be in the handshake of a slow broker when its consumer is closed."""
    opening, closed = threading.Event(), threading.Event()
    after: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        header, _ = read_request(connection)
        opening.set()
        assert closed.wait(20)
        connection.sendall(encode_response(header, versions((ApiKey.LIST_GROUPS, 0, 5))))
        after.append(connection.recv(1))

    failures: list[ConnectionLost] = []

    def ask(client: NetworkClient) -> None:
        try:
            client.start(LIST_GROUPS)
        except ConnectionLost as error:
            failures.append(error)

    with answering(answer) as address:
        client = NetworkClient(address)
        asking = threading.Thread(target=ask, args=(client,), daemon=True)
        asking.start()
        assert opening.wait(20)
        client.close()
        closed.set()
        asking.join(20)
    assert after == [b""], "the client sends nothing more and hangs up"
    assert "closed while it connected" in str(failures[0])
