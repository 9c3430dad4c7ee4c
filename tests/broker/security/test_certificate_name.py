"""Names of clients out of their certificates."""

from __future__ import annotations

import ssl

import pytest
from tests.broker.network.secured_clients import our_client
from tests.harness.certificates import Certificates

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.security.certificate_name import map_name, parse_mapping_rules, subject_name
from headrace.client.network_client import NetworkClient
from headrace.errors import CannotConnect

pytestmark = pytest.mark.foreign


def test_mutual_tls_asks_for_a_certificate_and_takes_its_name(
    secured_broker: EmbeddedBroker, certificates: Certificates
) -> None:
    trusted = str(certificates.authority)
    pem = certificates.issue("client", "/C=DE/O=Flights, Inc./OU=app/CN=client")
    with our_client(
        secured_broker, "MUTUAL", "SSL", ssl_truststore_location=trusted, ssl_keystore_location=str(pem)
    ) as client:
        assert client.metadata().brokers
    server = f"127.0.0.1:{secured_broker.ports['MUTUAL']}"
    security = {"security.protocol": "SSL", "ssl.truststore.location": trusted}
    with NetworkClient(server, security=security, bootstrap_timeout_ms=1_000) as client, pytest.raises(CannotConnect):
        client.metadata()
    der = ssl.PEM_cert_to_DER_cert("-----BEGIN CERTIFICATE" + pem.read_text().split("-----BEGIN CERTIFICATE")[1])
    name = subject_name(der)
    assert name == "CN=client,OU=app,O=Flights\\, Inc.,C=DE"
    assert map_name(parse_mapping_rules("RULE:^CN=(.*?),OU=app,.*$/$1/U,DEFAULT"), name) == "CLIENT"
    assert map_name(parse_mapping_rules("RULE:^CN=(.*?),OU=other$/$1/, DEFAULT"), name) == name
    assert map_name(parse_mapping_rules("RULE:^CN=(.*?),OU=other$/$1/L"), name) is None
