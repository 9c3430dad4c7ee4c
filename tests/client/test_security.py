"""OAUTHBEARER on the client's side: the message of RFC 7628, a token for each login, and no token in any word."""

from __future__ import annotations

import pickle

import pytest

from headrace.client.security import ClientSecurity
from headrace.errors import ConfigError, UserCodeError
from headrace.protocol.sasl import SaslError
from headrace.protocol.sasl.mechanisms import bearer_message

SETTINGS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def provider() -> tuple[str, dict[str, str]]:
    return "secret.token.", {"traceId": "42"}


def test_the_message_is_the_rfcs() -> None:
    assert bearer_message("abc") == b"n,,\x01auth=Bearer abc\x01\x01"
    assert bearer_message("abc", {"traceId": "42"}) == b"n,,\x01auth=Bearer abc\x01traceId=42\x01\x01"


@pytest.mark.parametrize(
    ("token", "extensions"),
    [("", {}), ("two words", {}), ("a\x01b", {}), ("abc", {"auth": "x"}), ("abc", {"n1": "x"}), ("abc", {"n": "\x01"})],
)
def test_invalid_token_is_refused_without_printing_it(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(SaslError) as raised:
        bearer_message(token, extensions)
    assert not token or token not in raised.value.message


def test_each_login_asks_for_a_token() -> None:
    tokens = iter(["one", "two"])
    security = ClientSecurity.from_settings(SETTINGS, token_provider=lambda: next(tokens))
    sent: list[bytes] = []

    def ask(message: bytes) -> bytes:
        sent.append(message)
        return b""

    security.log_in(ask)
    security.log_in(ask)
    assert sent == [bearer_message("one"), bearer_message("two")]


def test_a_refusal_is_acknowledged_so_that_the_broker_can_say_it() -> None:
    security = ClientSecurity.from_settings(SETTINGS, token_provider=provider)
    sent: list[bytes] = []

    def ask(message: bytes) -> bytes:
        sent.append(message)
        return b'{"status":"invalid_token"}'

    with pytest.raises(SaslError) as raised:
        security.log_in(ask)
    assert sent[1:] == [b"\x01"]
    assert "secret" not in raised.value.message


def test_a_provider_is_needed_and_travels_to_other_processes() -> None:
    with pytest.raises(ConfigError, match="token provider"):
        ClientSecurity.from_settings(SETTINGS)
    security = ClientSecurity.from_settings(SETTINGS, token_provider=provider)
    assert "secret" not in repr(security)
    assert pickle.loads(pickle.dumps(security)).token_provider is provider


def test_token_provider_error_is_named_without_its_text() -> None:
    def fails() -> str:
        raise ZeroDivisionError("secret.token.")

    with pytest.raises(UserCodeError) as raised:
        ClientSecurity.from_settings(SETTINGS, token_provider=fails).log_in(lambda _: b"")
    assert "ZeroDivisionError" in raised.value.message
    assert "secret" not in raised.value.render()
