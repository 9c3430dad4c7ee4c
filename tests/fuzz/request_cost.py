"""The price of one request: CPU of the broker's event loop, memory at its peak, and how it was answered.

CPU is the loop thread's own time, memory is counted by `tracemalloc` in a second sending: neither depends on what else
the machine does.
"""

from __future__ import annotations

import gc
import socket
import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.harness.wire import read_frame

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.request_codec import decode_response, encode_request

__all__ = ["BYSTANDER", "HALF", "ROOT", "STRANGER", "Cost", "MeteredBroker", "connect", "read_frame"]

PATIENCE_S = 120.0
STRANGER, ROOT, HALF, BYSTANDER = "stranger", "root", "half", "bystander"
"""Not logged in; a super user; a user with rights on names that begin with `open`; a user without any right."""

_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="pw"' for name in (ROOT, HALF, BYSTANDER))
    + ";"
)
_CONFIG = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
    "authorizer.class.name": "on",
    "super.users": f"User:{ROOT}",
    "headrace.request.log.slow.ms": 0,
    "connection.failed.authentication.delay.ms": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`answer_bytes` 0: the connection was closed without an answer. `peak_bytes` -1: not measured."""

    cpu_ms: float
    peak_bytes: int
    answer_bytes: int
    seconds: float


class MeteredBroker:
    """Mutable: a broker with logins and access rules in this process."""

    def __init__(self, topics: Mapping[str, int], config: Mapping[str, object] | None = None) -> None:
        self.broker = EmbeddedBroker(topics, config={**_CONFIG, **(config or {})})

    def __enter__(self) -> Self:
        self.broker.start()
        acls = m.create_acls_request
        self.call(
            ROOT,
            ApiKey.CREATE_ACLS,
            acls.CreateAclsRequest(
                creations=tuple(
                    acls.AclCreation(
                        resource_type=kind,
                        resource_name="open",
                        resource_pattern_type=4,
                        principal=f"User:{HALF}",
                        host="*",
                        operation=2,
                        permission_type=3,
                    )
                    for kind in (2, 3, 5)
                )
            ),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.broker.stop()

    def call(self, user: str, api_key: ApiKey, request: object) -> Any:
        """The answer to an honest request."""
        from headrace.protocol.api_keys import SUPPORTED

        version = SUPPORTED[api_key].highest
        with self.connect(user) as connection:
            connection.sendall(encode_request(api_key, version, 1, "honest", request))
            return decode_response(api_key, version, read_frame(connection))[1]

    def connect(self, user: str) -> socket.socket:
        """See `connect`."""
        return connect(self.broker.ports["SASL_PLAINTEXT"], user)

    def cost(self, frame: bytes, user: str, *, memory: bool = False) -> Cost:
        """Of one frame on a connection of its own; waits for its answer, or for the end of the connection."""
        with self.connect(user) as connection:
            gc.collect()
            if memory:
                tracemalloc.start()
                held, _ = tracemalloc.get_traced_memory()
            began_cpu, began = self._loop_cpu(), time.monotonic()
            answered = _exchange(connection, frame)
            cpu_s, seconds = self._loop_cpu() - began_cpu, time.monotonic() - began
            peak = -1
            if memory:
                peak = tracemalloc.get_traced_memory()[1] - held
                tracemalloc.stop()
        return Cost(cpu_ms=1000 * cpu_s, peak_bytes=peak, answer_bytes=answered, seconds=seconds)

    def least_cpu_ms(self, frame: bytes, user: str) -> float:
        """CPU time of the cheapest of three: other work on the machine makes the same request dearer, never cheaper."""
        return min(self.cost(frame, user).cpu_ms for _ in range(3))

    def _loop_cpu(self) -> float:
        return self.broker._call(lambda _services: time.thread_time())


def connect(port: int, user: str) -> socket.socket:
    """A connection that is logged in; a stranger has shaken hands and not more."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    handshake = m.sasl_handshake_request.SaslHandshakeRequest(mechanism="PLAIN")
    connection.sendall(encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "hostile", handshake))
    read_frame(connection)
    if user != STRANGER:
        token = m.sasl_authenticate_request.SaslAuthenticateRequest(auth_bytes=f"\0{user}\0pw".encode())
        connection.sendall(encode_request(ApiKey.SASL_AUTHENTICATE, 2, 2, "hostile", token))
        _, answer = decode_response(ApiKey.SASL_AUTHENTICATE, 2, read_frame(connection))
        assert getattr(answer, "error_code", None) is ErrorCode.none, answer
    return connection


def _exchange(connection: socket.socket, frame: bytes) -> int:
    """Bytes of the answer; nothing of it is kept."""
    sink = memoryview(bytearray(1 << 16))
    try:
        connection.sendall(frame)
        head = b""
        while len(head) < 4:
            part = connection.recv(4 - len(head))
            if not part:
                return 0
            head += part
        left = int.from_bytes(head, "big")
        total = left + 4
        while left:
            count = connection.recv_into(sink, min(left, len(sink)))
            if not count:
                return 0
            left -= count
    except ConnectionError:
        return 0
    return total
