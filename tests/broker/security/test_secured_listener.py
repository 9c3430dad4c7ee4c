"""TLS listeners: clients without trust, and clients that speak another protocol."""

from __future__ import annotations

import socket
import ssl

import pytest
from tests.broker.network.secured_clients import our_client, trusting
from tests.harness.certificates import Certificates

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.errors import CannotConnect

pytestmark = pytest.mark.foreign


def test_untrusted_broker_certificate_is_refused_by_clients(
    secured_broker: EmbeddedBroker, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Certificates(tmp_path_factory.mktemp("stranger"))
    expired = certificates.issue("expired", "/CN=localhost", "DNS:localhost,IP:127.0.0.1", days=-1)
    elsewhere = certificates.issue("elsewhere", "/CN=elsewhere", "DNS:elsewhere")
    said = {}
    with our_client(secured_broker, "SSL", "SSL", ssl_truststore_location=str(stranger.authority)) as client:
        with pytest.raises(CannotConnect) as raised:
            client.metadata()
        said["untrusted"] = raised.value
    for name, pem in (("expired", expired), ("elsewhere", elsewhere)):
        config = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(pem)}
        with EmbeddedBroker(config=config) as other:
            with our_client(other, "SSL", "SSL", ssl_truststore_location=str(certificates.authority)) as client:
                with pytest.raises(CannotConnect) as raised:
                    client.metadata()
                said[name] = raised.value
            if name == "elsewhere":
                trusting_all = {"ssl.endpoint.identification.algorithm": "", **trusting(certificates, "SSL")}
                security = {"security.protocol": "SSL", **trusting_all}
                with NetworkClient(other.bootstrap_servers, security=security) as client:
                    assert client.metadata().brokers
    assert {error.code for error in said.values()} == {"tls-failed"}
    assert "expired" in said["expired"].message
    assert "127.0.0.1" in said["elsewhere"].message


def test_the_wrong_kind_of_client_is_closed_and_told_why(
    secured_broker: EmbeddedBroker, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    plaintext = ("127.0.0.1", secured_broker.ports["PLAINTEXT"])
    with socket.create_connection(plaintext, timeout=20) as connection, pytest.raises(OSError):
        context.wrap_socket(connection, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", secured_broker.ports["SSL"]), timeout=20) as connection:
        connection.sendall(b"\0\0\0\x0c\0\x12\0\0\0\0\0\7\0\2hi")
        while True:
            try:
                if not connection.recv(1024):
                    break
            except ConnectionError:
                break
    assert "it speaks TLS, and this listener does not" in caplog.text
