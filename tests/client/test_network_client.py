"""The network client: against our broker, and against sockets that answer wrongly, late or not at all."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from tests.harness.ports import find_free_port

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.cluster_metadata import parse_bootstrap_servers
from headrace.client.connection import Connection, ConnectionLost, NotKafka, RequestTimedOut
from headrace.client.deadline import Deadline
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, ConfigError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import RequestHeader, decode_request, encode_response

LIST_GROUPS = m.list_groups_request.ListGroupsRequest()


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that lets `answer` deal with each connection; its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=5)


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


def test_metadata_shows_brokers_topics_and_leaders(client: NetworkClient) -> None:
    cluster = client.metadata(["flights", "nowhere"])
    assert list(cluster.topics) == ["flights"]
    assert set(cluster.topics["flights"].partitions) == {0, 1, 2, 3}
    leader = cluster.leader("flights", 0)
    assert leader in cluster.brokers
    assert cluster.topic_name(cluster.topics["flights"].topic_id) == "flights"
    assert cluster.leader("nowhere", 0) is None


def test_a_topic_that_appears_later_is_found(client: NetworkClient) -> None:
    assert "late" not in client.metadata(["late"]).topics
    Admin(client).create_topics({"late": 1})
    assert "late" in client.known_topics(["late"]).topics


def test_a_missing_topic_is_said_in_one_sentence(broker: EmbeddedBroker) -> None:
    with (
        NetworkClient(broker.bootstrap_servers, bootstrap_timeout_ms=200) as client,
        pytest.raises(BrokerError, match="there is no topic nowhere") as caught,
    ):
        client.known_topics(["nowhere"])
    assert caught.value.code == "topic-missing"


def test_a_missing_partition_is_said_in_one_sentence(broker: EmbeddedBroker) -> None:
    with (
        NetworkClient(broker.bootstrap_servers, bootstrap_timeout_ms=200) as client,
        pytest.raises(BrokerError, match="the topic flights has no partition 77"),
    ):
        client.leaders([("flights", 77)])


def test_many_requests_travel_at_once_and_come_back_in_order(client: NetworkClient) -> None:
    requests = [
        (
            None,
            m.metadata_request.MetadataRequest(
                topics=(m.metadata_request.MetadataRequestTopic(topic_id=None, name=name),),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ),
        )
        for name in ("flights", "x", "flights")
    ]
    answers = client.call_all(requests)
    assert [answer.topics[0].name for answer in answers] == ["flights", "x", "flights"]


def test_the_version_is_the_highest_that_both_speak(client: NetworkClient) -> None:
    assert client.supported_range(ApiKey.FETCH) == SUPPORTED[ApiKey.FETCH]


def test_nobody_listens(broker: EmbeddedBroker) -> None:
    address = f"127.0.0.1:{find_free_port()}"
    with (
        NetworkClient(address, bootstrap_timeout_ms=100) as client,
        pytest.raises(CannotConnect, match=rf"No Kafka broker reachable at {address} \(connection refused") as caught,
    ):
        client.metadata()
    assert caught.value.code == "broker-unreachable"
    assert "bootstrap.servers" in caught.value.fix
    assert isinstance(caught.value, ConnectionError)


def test_an_attempt_cut_short_by_the_deadline_does_not_hide_the_reason_before_it() -> None:
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


def test_the_second_address_serves_when_the_first_does_not(broker: EmbeddedBroker) -> None:
    with NetworkClient([f"127.0.0.1:{find_free_port()}", broker.bootstrap_servers]) as client:
        assert client.metadata().brokers


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"\x15\x03\x03\x00\x02\x02\x50"]
)
def test_what_is_no_kafka_broker_is_told_at_once(greeting: bytes) -> None:
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


def test_a_broker_that_dies_and_comes_back_is_found_again(broker: EmbeddedBroker, client: NetworkClient) -> None:
    client.metadata()
    broker.kill()
    back = threading.Timer(0.3, broker.restart)
    back.start()
    try:
        assert client.call(LIST_GROUPS).error_code == ErrorCode.none
    finally:
        back.join()


def test_a_broker_that_stays_away_is_told_after_the_api_timeout(broker: EmbeddedBroker) -> None:
    with NetworkClient(broker.bootstrap_servers, api_timeout_ms=300) as client:
        client.metadata()
        broker.kill()
        with pytest.raises(CannotConnect, match="No Kafka broker reachable"):
            client.metadata()
    broker.restart()


def test_a_pickled_client_opens_its_own_connections(client: NetworkClient) -> None:
    client.metadata()
    with pickle.loads(pickle.dumps(client)) as copy:
        assert copy.metadata().brokers == client.metadata().brokers
        assert copy.client_id == "test-client"


def test_a_forked_child_does_not_use_its_parents_sockets(client: NetworkClient) -> None:
    client.metadata(["flights"])
    pending = client.start(LIST_GROUPS)
    pid = os.fork()
    if pid == 0:  # the child: its answers must not come out of the parent's connection
        try:
            os._exit(0 if client.call(LIST_GROUPS).error_code == ErrorCode.none else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert pending.result().error_code == ErrorCode.none
    assert client.metadata(["flights"], refresh=True).topics


def test_the_coordinator_is_asked_once_until_it_is_forgotten(client: NetworkClient) -> None:
    node = client.coordinator_for("app")
    assert client.coordinator_for("app") == node
    client.forget_coordinator("app")
    assert client.coordinator_for("app") == node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka:9093", [("kafka", 9093)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("kafka", [("kafka", 9092)]),
        ("[::1]:9094", [("::1", 9094)]),
    ],
)
def test_bootstrap_servers_are_read(text: str, expected: list[tuple[str, int]]) -> None:
    assert [(a.host, a.port) for a in parse_bootstrap_servers(text)] == expected


@pytest.mark.parametrize("text", ["", "kafka:port", ":9092", "kafka:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bootstrap_servers(text)


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


def test_a_connection_that_is_being_opened_while_another_thread_closes_the_client_is_closed_too() -> None:
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
