"""Raw SASL conversations: what is sent to Apache Kafka and to us, and what comes back, byte for byte but for nonces."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.harness.wire import read_frame

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import to_ms
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.protocol.sasl.mechanisms import MECHANISMS, ScramClient, plain_message

__all__ = ["SEQUENCES", "Conversation"]

NONCE = "fyko+d2lbbFgONRv9qkxdawL"
CLOSED = "closed"


@dataclass
class Conversation:
    """Mutable: one connection, and what was heard on it, in words."""

    port: int
    heard: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def frame(self) -> bytes | None:
        """None: closed."""
        try:
            return read_frame(self._socket)
        except (EOFError, ConnectionError):
            return None

    def ask(self, request: object, version: int) -> object:
        """The answer, or None when the connection was closed instead."""
        key = ApiKey(int(request.__api_key__))  # type: ignore[attr-defined]
        self.send(encode_request(key, version, 7, "c", request))
        frame = self.frame()
        if frame is None:
            self.heard.append(CLOSED)
            return None
        return decode_response(key, version, frame)[1]

    def versions(self, version: int = 3) -> None:
        request = m.api_versions_request.ApiVersionsRequest(client_software_name="a", client_software_version="1")
        answer = self.ask(request, version)
        if answer is not None:
            self.heard.append(("versions", answer.error_code.name))  # type: ignore[attr-defined]

    def handshake(self, mechanism: str, version: int = 1) -> None:
        answer = self.ask(m.sasl_handshake_request.SaslHandshakeRequest(mechanism=mechanism), version)
        if answer is not None:
            self.heard.append(("handshake", answer.error_code.name, sorted(answer.mechanisms)))  # type: ignore[attr-defined]

    def token(self, token: bytes, version: int = 2) -> bytes:
        answer = self.ask(m.sasl_authenticate_request.SaslAuthenticateRequest(auth_bytes=token), version)
        if answer is None:
            return b""
        self.heard.append(
            ("token", answer.error_code.name, answer.error_message, to_ms(answer.session_lifetime))  # type: ignore[attr-defined]
        )
        return bytes(answer.auth_bytes)  # type: ignore[attr-defined]

    def bare(self, token: bytes) -> bytes:
        self.send(len(token).to_bytes(4, "big") + token)
        answer = self.frame()
        self.heard.append(CLOSED if answer is None else ("bare", len(answer) > 0))
        return answer or b""

    def metadata(self) -> None:
        request = m.metadata_request.MetadataRequest(
            topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        answer = self.ask(request, 9)
        if answer is not None:
            self.heard.append(("metadata", [broker.port == self.port for broker in answer.brokers]))  # type: ignore[attr-defined]

    def end(self) -> None:
        """Whether the connection is closed now; it may take the delay of refusals."""
        self.heard.append(CLOSED if self.frame() is None else "something more")

    def scram(self, username: str, password: str, mechanism: str = "SCRAM-SHA-256", *, bare: bool = False) -> None:
        say = self.bare if bare else self.token
        client = ScramClient(MECHANISMS[mechanism], username, password, NONCE)
        client.verify(say(client.final(say(client.first()))))


def _plain(name: str, password: str) -> Callable[[Conversation], None]:
    def talk(c: Conversation) -> None:
        c.handshake("PLAIN")
        c.token(plain_message(name, password))
        c.metadata()

    return talk


def _scram_wrong(c: Conversation) -> None:
    c.handshake("SCRAM-SHA-512")
    client = ScramClient(MECHANISMS["SCRAM-SHA-512"], "bob", "wrong", NONCE)
    c.token(client.final(c.token(client.first())))
    c.end()


def _scram(c: Conversation) -> None:
    c.versions()
    c.handshake("SCRAM-SHA-512")
    c.scram("bob", "pw-bob", "SCRAM-SHA-512")
    c.metadata()


def _again(c: Conversation) -> None:
    _scram(c)
    c.handshake("SCRAM-SHA-512")
    c.scram("bob", "pw-bob", "SCRAM-SHA-512")
    c.metadata()


def _steps(*steps: Callable[[Conversation], object]) -> Callable[[Conversation], None]:
    def talk(c: Conversation) -> None:
        for step in steps:
            step(c)

    return talk


PLAIN_RIGHT = plain_message("alice", "pw-alice")

SEQUENCES: dict[str, Callable[[Conversation], None]] = {
    "plain": _plain("alice", "pw-alice"),
    "plain, wrong password": _plain("alice", "wrong"),
    "plain, unknown user": _plain("nobody", "wrong"),
    "plain, no user": _plain("", "x"),
    "plain, no password": _plain("alice", ""),
    "plain, two tokens": _steps(lambda c: c.handshake("PLAIN"), lambda c: c.token(b"\0alice"), Conversation.end),
    "plain, authorization id": _steps(
        lambda c: c.handshake("PLAIN"), lambda c: c.token(b"bob\0alice\0pw-alice"), Conversation.end
    ),
    "plain, bare tokens": _steps(
        lambda c: c.handshake("PLAIN", 0), lambda c: c.bare(PLAIN_RIGHT), Conversation.metadata
    ),
    "plain, bare tokens, wrong password": _steps(
        lambda c: c.handshake("PLAIN", 0), lambda c: c.bare(plain_message("alice", "no")), lambda _: None
    ),
    "plain, authenticate v0": _steps(
        lambda c: c.handshake("PLAIN"), lambda c: c.token(PLAIN_RIGHT, 0), Conversation.metadata
    ),
    "scram": _scram,
    "scram 256": _steps(
        lambda c: c.handshake("SCRAM-SHA-256"), lambda c: c.scram("bob", "pw-bob"), Conversation.metadata
    ),
    "scram, bare tokens": _steps(
        lambda c: c.handshake("SCRAM-SHA-256", 0), lambda c: c.scram("bob", "pw-bob", bare=True), Conversation.metadata
    ),
    "scram, wrong password": _scram_wrong,
    "scram, nonsense": _steps(lambda c: c.handshake("SCRAM-SHA-256"), lambda c: c.token(b"hello"), Conversation.end),
    "login again": _again,
    "login again, other user": _steps(
        _plain("alice", "pw-alice"),
        lambda c: c.handshake("PLAIN"),
        lambda c: c.token(plain_message("carol", "pw-carol")),
        Conversation.end,
    ),
    "login again, other mechanism": _steps(
        _scram, lambda c: c.handshake("SCRAM-SHA-256"), lambda c: c.token(b"n,,n=bob,r=abc")
    ),
    "login again, wrong password": _steps(
        _plain("alice", "pw-alice"),
        lambda c: c.handshake("PLAIN"),
        lambda c: c.token(plain_message("alice", "no")),
        Conversation.end,
    ),
    "login again, twice within a second": _steps(
        _plain("alice", "pw-alice"), *(_plain("alice", "pw-alice"),) * 2, Conversation.metadata
    ),
    "authenticate without a handshake": _steps(_plain("alice", "pw-alice"), lambda c: c.token(PLAIN_RIGHT)),
    "unknown mechanism": _steps(lambda c: c.handshake("GSSAPI"), Conversation.end),
    "nothing before the login": _steps(Conversation.metadata),
    "metadata between versions and login": _steps(Conversation.versions, Conversation.metadata),
    "metadata within the login": _steps(lambda c: c.handshake("PLAIN"), Conversation.metadata, Conversation.end),
    "versions twice": _steps(Conversation.versions, Conversation.versions),
    "versions of the future": _steps(
        lambda c: c.send(b"\0\0\0\x0c\0\x12\0\x63\0\0\0\7\0\1c\0"), lambda c: c.heard.append((c.frame() or b"")[:6])
    ),
    "versions behind the handshake": _steps(lambda c: c.handshake("PLAIN"), Conversation.versions),
    "authenticate first": _steps(lambda c: c.token(PLAIN_RIGHT), Conversation.end),
    "two handshakes": _steps(lambda c: c.handshake("PLAIN"), lambda c: c.handshake("PLAIN"), Conversation.end),
    "too large": _steps(lambda c: c.send((600000).to_bytes(4, "big")), Conversation.end),
}
