"""One connection to one broker: version negotiation, pipelined requests, responses in order. Blocking, for one thread.

A request becomes a `PendingReply`; its `result()` reads from the socket until its response arrived. Brokers answer the
requests of a connection in order, so responses that arrive before it are kept for their own callers. Any failure closes
the connection and fails every pending reply: `ConnectionLost` for the network, `RequestTimedOut` for the time limit.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from headrace.client.deadline import Deadline
from headrace.client.security import PLAINTEXT, ClientSecurity, authentication_failed, tls_failed
from headrace.errors import BrokerError, UserCodeError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey, VersionRange
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import MalformedResponse, RequestMessage
from headrace.protocol.kio_units import to_ms
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.protocol.sasl import SaslError

__all__ = ["BrokerAddress", "Connection", "ConnectionLost", "NotKafka", "PendingReply", "RequestTimedOut"]

_LENGTH = struct.Struct(">i")
MAX_RESPONSE_BYTES = 1 << 30
IDLE_S = 60.0  # brokers close idle connections after minutes (connections.max.idle.ms)
MAX_VERSIONS_BYTES = 1 << 20  # the first response is short: a longer one comes from another protocol
SOFTWARE_NAME = "headrace"
SESSION_SHARE = 0.85  # part of a SASL session after which the next login begins (Kafka: 85 to 95 %)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Host and port of a broker's listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ConnectionLost(ConnectionError):
    """The connection was refused, reset, or closed by the other side; `why` is a short phrase."""

    def __init__(self, address: BrokerAddress, why: str) -> None:
        super().__init__(f"{address}: {why}")
        self.address = address
        self.why = why


class RequestTimedOut(ConnectionLost):
    """No response within the request's time. The connection is closed, because a late response would be taken for the
    next.
    """


class NotKafka(ConnectionLost):
    """The server at the address does not answer as a Kafka broker."""


Response: TypeAlias = Any
"""The newest class of a response. Callers name it: `response: m.x_response.XResponse = client.call(request)`."""


class PendingReply:
    """Response to come to one request."""

    __slots__ = ("_connection", "_error", "_response", "api_key", "api_version", "correlation_id", "deadline", "done")

    def __init__(
        self, connection: Connection, api_key: ApiKey, api_version: int, correlation_id: int, deadline: Deadline
    ) -> None:
        self._connection = connection
        self._response: Response = None
        self._error: Exception | None = None
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.deadline = deadline
        self.done = False

    @property
    def connection(self) -> Connection:
        """The connection that will deliver the response; closing it abandons everything in flight on it."""
        return self._connection

    def result(self) -> Response:
        """Wait for the response and return it as the newest class.

        Raises:
            ConnectionLost: The connection broke.
            RequestTimedOut: The request's time was up.
            MalformedResponse: The response cannot be decoded.
        """
        while not self.done:
            self._connection.read_one_reply(self.deadline)
        if self._error is not None:
            raise self._error
        return self._response

    def settle(self, response: Response, error: Exception | None) -> None:
        """Set the response or the error."""
        self._response = response
        self._error = error
        self.done = True


class Connection:
    """Open connection to a broker. Not shared between threads or processes (`NetworkClient` ensures that)."""

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        deadline: Deadline,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """Connect, negotiate versions and log in.

        Raises:
            ConnectionLost: The connection failed; it may be tried again.
            CannotConnect: `tls-failed` or `authentication-failed`; trying again would not help.
        """
        self.address = address
        self._security = security
        self._log_in_again_s: float | None = None
        self._client_id = client_id
        self._next_correlation_id = 0
        self._pending: deque[PendingReply] = deque()
        self._closed_here, self._used_s = False, time.monotonic()
        self._versions: Mapping[int, VersionRange] = {}
        # TLS before the first byte of Kafka's protocol; ApiVersions before the login, because the version of
        # SaslHandshake is negotiated too. Brokers answer ApiVersions to clients that have not logged in.
        self._socket = self._connect(deadline)
        try:
            if security.uses_tls:
                self._socket = self._secured(self._socket)
            self._versions = self._negotiate(deadline)
            if security.uses_sasl:
                self._log_in(deadline)
        except BaseException:
            self._socket.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.fileno() < 0

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for several things at once; -1 when closed."""
        return self._socket.fileno()

    @property
    def has_read_ahead(self) -> bool:
        """Whether TLS has decrypted bytes already, which `poll` on the socket would not show."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def version_range(self, api_key: ApiKey) -> VersionRange | None:
        """Return the versions of an API that both sides support; None if there are none."""
        theirs = self._versions.get(api_key)
        if theirs is None:
            return None
        ours = SUPPORTED[api_key]
        common = VersionRange(max(ours.lowest, theirs.lowest), min(ours.highest, theirs.highest))
        return common if common.lowest <= common.highest else None

    def send(self, request: RequestMessage, deadline: Deadline, at_most: int | None = None) -> PendingReply:
        """Send a request in the newest common version, but none above `at_most`.

        Raises:
            BrokerError: `unsupported-api` if no version is common.
            ConnectionLost: The connection broke.
        """
        api_key = ApiKey(int(request.__api_key__))
        common = self.version_range(api_key)
        if common is None:
            raise BrokerError(
                "unsupported-api",
                f"the broker at {self.address} does not offer {api_key.kafka_name} in a version that headrace speaks",
                "use a newer broker (Apache Kafka 4.2 or later for streams groups) and enable the feature there",
                kafka_code=int(ErrorCode.unsupported_version),
                kafka_name="UNSUPPORTED_VERSION",
                retriable=False,
                api=api_key.kafka_name,
            )
        # KIP-368: a broker closes a connection whose SASL session has ended. The client logs in again before that; no
        # other request may be in flight then, because the tokens must be the only responses.
        if self._log_in_again_s is not None and time.monotonic() >= self._log_in_again_s:
            while self._pending:
                self.read_one_reply(deadline)
            self._log_in(deadline)
        version = common.highest if at_most is None else min(common.highest, at_most)
        return self._send(api_key, version, request, deadline)

    def read_one_reply(self, deadline: Deadline) -> None:
        """Read the next response and settle the oldest pending reply with it."""
        if not self._pending:
            raise ConnectionLost(self.address, "no request is in flight")
        pending = self._pending[0]
        frame = self._read_frame(deadline)
        try:
            correlation_id, response = decode_response(pending.api_key, pending.api_version, frame)
        except MalformedResponse as error:
            self._fail(
                NotKafka(self.address, f"its answer to {pending.api_key.kafka_name} cannot be decoded ({error})")
            )
            return
        if correlation_id != pending.correlation_id:
            self._fail(NotKafka(self.address, f"answer {correlation_id} came instead of {pending.correlation_id}"))
            return
        self._pending.popleft()
        self._used_s = time.monotonic()
        pending.settle(response, None)

    @property
    def broke_off(self) -> bool:
        """Whether the connection ended unexpectedly: not closed by this side, and not after being idle."""
        return self.closed and not self._closed_here and time.monotonic() - self._used_s < IDLE_S

    def close(self) -> None:
        """Close the connection and fail what is pending. Calling it again has no effect."""
        self._closed_here = self._closed_here or not self.closed
        self._fail(ConnectionLost(self.address, "the connection was closed on this side"))

    def interrupt(self) -> None:
        """End the connection from another thread: reads and writes in progress fail."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close this process' copy of the socket only: after a fork the parent continues to use it."""
        with suppress(OSError):
            self._socket.close()

    # The wire.

    def _connect(self, deadline: Deadline) -> socket.socket:
        try:
            connected = socket.create_connection(
                (self.address.host, self.address.port), timeout=max(deadline.remaining_s, 0.001)
            )
        except TimeoutError:
            raise RequestTimedOut(self.address, "no answer to the connection attempt") from None
        except ConnectionRefusedError:
            raise ConnectionLost(self.address, "connection refused") from None
        except OSError as error:
            raise ConnectionLost(self.address, (error.strerror or str(error)).lower()) from None
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # macOS refuses options of a connection that the other side has reset
            connected.close()
            raise ConnectionLost(self.address, (error.strerror or str(error)).lower()) from None
        return connected

    def _secured(self, connected: socket.socket) -> socket.socket:
        try:
            return self._security.secure(connected, self.address.host)
        except TimeoutError:
            raise RequestTimedOut(self.address, "the TLS handshake got no answer") from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise ConnectionLost(self.address, "the broker closed the connection during the TLS handshake") from None
        except ssl.SSLError as error:
            raise tls_failed(self.address, error) from None
        except OSError as error:
            raise ConnectionLost(self.address, f"the TLS handshake was broken off: {_reason(error)}") from None

    def _log_in(self, deadline: Deadline) -> None:
        """Send SaslHandshake, then the mechanism's tokens in SaslAuthenticate; also again on an open connection
        (KIP-368).
        """
        handshake = m.sasl_handshake_request.SaslHandshakeRequest(mechanism=self._security.mechanism)
        answer = self._ask(handshake, deadline)
        if answer.error_code != ErrorCode.none:
            offered = ", ".join(answer.mechanisms)
            self.close()
            raise authentication_failed(self.address, self._security, f"the broker offers {offered or 'nothing'}")
        lifetime_ms = 0

        def ask(token: bytes) -> bytes:
            nonlocal lifetime_ms
            reply = self._ask(m.sasl_authenticate_request.SaslAuthenticateRequest(auth_bytes=token), deadline)
            if reply.error_code != ErrorCode.none:
                raise SaslError(reply.error_message or "the broker refuses")
            lifetime_ms = to_ms(reply.session_lifetime)
            return bytes(reply.auth_bytes)

        try:
            self._security.log_in(ask)
        except SaslError as refused:
            self.close()
            raise authentication_failed(self.address, self._security, refused.message) from None
        except UserCodeError:
            self.close()
            raise
        self._log_in_again_s = time.monotonic() + lifetime_ms / 1000 * SESSION_SHARE if lifetime_ms > 0 else None

    def _ask(self, request: RequestMessage, deadline: Deadline) -> Response:
        api_key = ApiKey(int(request.__api_key__))
        common = self.version_range(api_key)
        if common is None:
            raise authentication_failed(self.address, self._security, "the broker's listener does not use SASL")
        return self._send(api_key, common.highest, request, deadline).result()

    def _negotiate(self, deadline: Deadline) -> Mapping[int, VersionRange]:
        """Negotiate versions with ApiVersions (KIP-35, KIP-511)."""
        request = m.api_versions_request.ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=_software_version()
        )
        # 1. The newest version first: modern brokers answer it in one round trip.
        # 2. A broker that does not support it answers UNSUPPORTED_VERSION in the layout of v0, and names the versions
        #    of ApiVersions that it supports (KIP-511). Brokers before 2.4 name none: then v0 is tried.
        version = SUPPORTED[ApiKey.API_VERSIONS].highest
        response = self._ask_versions(version, request, deadline)
        if response.error_code == ErrorCode.unsupported_version:
            offered = [key.max_version for key in response.api_keys if int(key.api_key) == ApiKey.API_VERSIONS]
            response = self._ask_versions(min([version - 1, *offered]) if offered else 0, request, deadline)
        if response.error_code != ErrorCode.none or not response.api_keys:
            raise NotKafka(self.address, f"it refuses ApiVersions with {response.error_code.name.upper()}")
        return {int(key.api_key): VersionRange(int(key.min_version), int(key.max_version)) for key in response.api_keys}

    def _ask_versions(
        self, version: int, request: RequestMessage, deadline: Deadline
    ) -> m.api_versions_response.ApiVersionsResponse:
        pending = self._send(ApiKey.API_VERSIONS, version, request, deadline)
        frame = self._read_frame(deadline, MAX_VERSIONS_BYTES)
        self._pending.clear()
        # The error code stands first in every version, and this one error comes in the layout of v0.
        if frame[4:6] == int(ErrorCode.unsupported_version).to_bytes(2, "big"):
            version = 0
        try:
            correlation_id, response = decode_response(ApiKey.API_VERSIONS, version, frame)
        except MalformedResponse:
            raise NotKafka(self.address, "its answer to ApiVersions cannot be decoded") from None
        if correlation_id != pending.correlation_id:
            raise NotKafka(self.address, "its answer to ApiVersions belongs to another request")
        return cast("m.api_versions_response.ApiVersionsResponse", response)

    def _send(self, api_key: ApiKey, version: int, request: RequestMessage, deadline: Deadline) -> PendingReply:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFF_FFFF
        frame = encode_request(api_key, version, correlation_id, self._client_id, request)
        pending = PendingReply(self, api_key, version, correlation_id, deadline)
        self._pending.append(pending)
        try:
            self._socket.settimeout(max(deadline.remaining_s, 0.001))
            self._socket.sendall(frame)
        except TimeoutError:
            raise self._fail(RequestTimedOut(self.address, "the broker does not take the request")) from None
        except OSError as error:
            raise self._fail(ConnectionLost(self.address, _reason(error))) from None
        return pending

    def _read_frame(self, deadline: Deadline, max_bytes: int = MAX_RESPONSE_BYTES) -> bytes:
        (length,) = _LENGTH.unpack(self._read_exactly(4, deadline))
        if not 0 < length <= max_bytes:
            raise self._fail(NotKafka(self.address, "the server does not speak Kafka's protocol"))
        return bytes(self._read_exactly(length, deadline))

    def _read_exactly(self, count: int, deadline: Deadline) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        # `recv_into` a buffer of the final size: a response of 16 MB is received without joining pieces.
        position = 0
        try:
            while position < count:
                self._socket.settimeout(max(deadline.remaining_s, 0.001))
                received = self._socket.recv_into(view[position:])
                if received == 0:
                    raise self._fail(ConnectionLost(self.address, "the broker closed the connection"))
                position += received
        except TimeoutError:
            raise self._fail(RequestTimedOut(self.address, "no answer in time")) from None
        except ConnectionLost:
            raise
        except OSError as error:
            lost = self._fail(ConnectionLost(self.address, _reason(error)))
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                # In TLS 1.3 the handshake ends before the broker checks the client's certificate; its refusal arrives
                # as an alert with the first read.
                raise tls_failed(self.address, error) from None
            raise lost from None
        return buffer

    def _fail(self, error: ConnectionLost) -> ConnectionLost:
        with suppress(OSError):
            self._socket.close()
        while self._pending:
            self._pending.popleft().settle(None, error)
        return error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _software_version() -> str:
    from headrace.version import __version__

    return __version__
