"""SCRAM: the RFC's own example, both sides against each other, and messages that cannot be."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.sasl import SaslError, ScramCredential
from headrace.protocol.sasl.mechanisms import (
    MECHANISMS,
    OAUTHBEARER,
    ScramClient,
    ScramServer,
    bearer_message,
    credential_of,
    mechanism_by_code,
    plain_message,
    read_plain_message,
    salted_password,
)

SHA_256 = MECHANISMS["SCRAM-SHA-256"]
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PENCIL = credential_of(SHA_256, salted_password(SHA_256, "pencil", SALT, 4096), SALT, 4096)


def server(credentials: dict[str, ScramCredential]) -> ScramServer:
    return ScramServer(SHA_256, nonce=SERVER_NONCE, credential=credentials.get, secret=b"secret")


def test_the_example_of_rfc_7677() -> None:
    one = server({"user": PENCIL})
    first = one.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = one.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (one.username, one.complete) == ("user", True)


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
@pytest.mark.parametrize("username", ["alice", "a,b=c", "Jürgen"])
def test_both_sides_believe_each_other(mechanism: object, username: str) -> None:
    scheme = MECHANISMS[mechanism.name]  # type: ignore[attr-defined]
    credential = credential_of(scheme, salted_password(scheme, "pw", SALT, 4096), SALT, 4096)
    one = ScramServer(scheme, nonce="server", credential={username: credential}.get, secret=b"x")
    client = ScramClient(scheme, username, "pw", "client")
    client.verify(one.evaluate(client.final(one.evaluate(client.first()))))
    assert one.username == username


def test_unknown_user_gets_the_same_salt_and_is_refused_last() -> None:
    heard = []
    for _ in range(2):
        one = server({"user": PENCIL})
        client = ScramClient(SHA_256, "nobody", "pw", "client")
        heard.append(one.evaluate(client.first()))
        with pytest.raises(SaslError) as refused:
            one.evaluate(client.final(heard[-1]))
        assert (refused.value.is_for_client, one.complete) == (False, False)
    assert heard[0] == heard[1]


def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    one = server({"user": PENCIL})
    client = ScramClient(SHA_256, "user", "pencil", "client")
    one.evaluate(client.final(one.evaluate(client.first())))
    with pytest.raises(SaslError):
        client.verify(b"v=" + b"A" * 43 + b"=")


def test_a_broker_that_asks_for_too_few_iterations_learns_nothing() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "client")
    with pytest.raises(SaslError):
        client.final(b"r=clientserver,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1")


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_no_bytes_make_a_server_do_anything_but_refuse(messages: list[bytes]) -> None:
    one = server({"user": PENCIL})
    one.evaluate(b"n,,n=user,r=abc")
    for message in messages:
        with pytest.raises(SaslError):
            one.evaluate(message)
    assert not one.complete


def test_plain_in_and_out() -> None:
    assert read_plain_message(plain_message("alice", "p=,w")) == ("", "alice", "p=,w")
    for message in (b"", b"\0a", b"\0\0pw", b"\0a\0", b"\xff\0a\0b", b"a\0b\0c\0d"):
        with pytest.raises(SaslError):
            read_plain_message(message)


@pytest.mark.parametrize(
    ("iterations", "taken"), [(4096, True), (16384, True), (1_000_001, False), (999_999_999, False)]
)
def test_a_client_does_not_work_as_long_as_a_rogue_broker_says(iterations: int, taken: bool) -> None:
    client = ScramClient(MECHANISMS["SCRAM-SHA-256"], "alice", "secret", "abc")
    first = f"r=abcdef,s=c2FsdA==,i={iterations}".encode()
    if taken:
        assert client.final(first).startswith(b"c=biws,r=abcdef,p=")
    else:
        with pytest.raises(SaslError, match="1000000 are the most"):
            client.final(first)


FIRST = b"n,,n=user,r=abc"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\xff", "not UTF-8"),
        (b"hello", "first SCRAM message is not understood"),
        (b"n,,n=user,r=abc,m=must", "mandatory SCRAM extension"),
        (b"n,a=other,n=user,r=abc", "authorization id that is different"),
        (b"n,,n=us=er,r=abc", "not escaped"),
    ],
)
def test_a_first_scram_message_that_is_refused(message: bytes, why: str) -> None:
    with pytest.raises(SaslError, match=why):
        server({"user": PENCIL}).evaluate(message)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("hello", "last SCRAM message is not understood"),
        ("c=biws,r=other,p=AAAA", "another nonce"),
        ("c=cD10bHM=,r={nonce},p=AAAA", "channel binding"),
        ("c=biws,r={nonce},p=%%%", "no base64"),
        ("c=biws,r={nonce},p=AAAA", "wrong length"),
        ("c=biws,r={nonce},p={wrong}", "invalid credentials"),
    ],
)
def test_a_last_scram_message_that_is_refused(message: str, why: str) -> None:
    one = server({"user": PENCIL})
    one.evaluate(FIRST)
    wrong = b64encode(bytes(32)).decode()
    with pytest.raises(SaslError, match=why):
        one.evaluate(message.format(nonce="abc" + SERVER_NONCE, wrong=wrong).encode())
    assert not one.complete


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"hello", "first SCRAM message is not understood"),
        (b"r=other,s=AAAA,i=4096", "another login"),
        (b"r=abc,s=AAAA,i=4096", "another login"),
        (b"r=abcdef,s=AAAA,i=1", "4096 are the least"),
        (b"r=abcdef,s=AAAA,i=999999999", "are the most"),
    ],
)
def test_a_client_refuses_a_server_that_asks_for_too_little_or_too_much(message: bytes, why: str) -> None:
    with pytest.raises(SaslError, match=why):
        ScramClient(SHA_256, "user", "pencil", "abc").final(message)


def test_a_client_does_not_believe_a_server_without_the_password() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "abc")
    client.final(b"r=abcdef,s=AAAA,i=4096")
    for answer in (b"e=other-error", b"v=" + b64encode(bytes(32))):
        with pytest.raises(SaslError, match="could not show"):
            client.verify(answer)


@pytest.mark.parametrize(
    ("token", "extensions"), [("no token", {}), ("token", {"auth": "x"}), ("token", {"name1": "x"}), ("t", {"a": ""})]
)
def test_a_bearer_token_outside_the_rfc_is_refused(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(SaslError, match="token provider"):
        bearer_message(token, extensions)


def test_a_bearer_message_has_the_layout_of_the_rfc() -> None:
    assert bearer_message("abc.def", {"scope": "all"}) == b"n,,\x01auth=Bearer abc.def\x01scope=all\x01\x01"
    assert OAUTHBEARER == "OAUTHBEARER"
    assert mechanism_by_code(2) is MECHANISMS["SCRAM-SHA-512"]
    assert mechanism_by_code(9) is None
    assert "stored" not in repr(PENCIL)
