"""The network client: against our broker, and against sockets that answer wrongly, late or not at all."""

from __future__ import annotations

import os
import pickle
import threading

import pytest
from tests.client.scripted_servers import LIST_GROUPS
from tests.harness.ports import find_free_port

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.cluster_metadata import parse_bootstrap_servers
from headrace.client.network_client import NetworkClient
from headrace.errors import CannotConnect, ConfigError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


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


def test_refused_connection(broker: EmbeddedBroker) -> None:
    address = f"127.0.0.1:{find_free_port()}"
    with (
        NetworkClient(address, bootstrap_timeout_ms=100) as client,
        pytest.raises(CannotConnect, match=rf"No Kafka broker reachable at {address} \(connection refused") as caught,
    ):
        client.metadata()
    assert caught.value.code == "broker-unreachable"
    assert "bootstrap.servers" in caught.value.fix
    assert isinstance(caught.value, ConnectionError)


def test_the_second_address_serves_when_the_first_does_not(broker: EmbeddedBroker) -> None:
    with NetworkClient([f"127.0.0.1:{find_free_port()}", broker.bootstrap_servers]) as client:
        assert client.metadata().brokers


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
def test_invalid_bootstrap_servers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bootstrap_servers(text)
