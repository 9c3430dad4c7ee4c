"""Settings of listeners that are refused when the broker starts."""

from __future__ import annotations

import pytest

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import ConfigError

pytestmark = pytest.mark.foreign


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "no certificate"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, "GSSAPI"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}, "knows no user"),
        ({"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": "/nowhere.pem"}, "cannot be read"),
        ({"listeners": "SSL://127.0.0.1:0", "ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "TLS 1.2"),
    ],
)
def test_a_listener_that_cannot_be_is_told_at_the_start(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised, EmbeddedBroker(config=settings):
        pass
    assert said in raised.value.message


def test_a_key_store_of_java_says_how_to_convert_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.mktemp("java") / "store.jks"
    store.write_bytes(bytes.fromhex("feedfeed00000002"))
    with (
        pytest.raises(ConfigError) as raised,
        EmbeddedBroker(config={"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(store)}),
    ):
        pass
    assert "openssl pkcs12" in raised.value.fix


@pytest.mark.parametrize(
    "settings",
    [
        {"listeners": "A://127.0.0.1:0"},
        {"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:1"},
        {"advertised.listeners": "SSL://127.0.0.1:9093"},
        {"listener.name.other.ssl.client.auth": "required"},
        {"listener.security.protocol.map": "PLAINTEXT:TCP"},
    ],
)
def test_listeners_that_contradict_themselves_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfiguration.from_settings("/tmp/x", settings=settings)
