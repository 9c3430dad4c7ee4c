"""SASL authentication of one connection: the session's states, and the connection's way through them.

The states are Kafka's (SaslServerAuthenticator): ApiVersions comes first or never; a handshake of version 0 is followed
by bare tokens with a length in front, one of version 1 by SaslAuthenticate. Whatever else comes ends the connection:
its API key is looked at first, and nothing of it is decoded. A refusal is answered after
`connection.failed.authentication.delay.ms`, which slows down guessing. With `connections.max.reauth.ms` a login has
an end (KIP-368): a handshake opens the session again for the same user.

`SaslSession` holds the states and does no I/O. `Authentication` adds what needs the connection: the time limit, the
delay of refusals, the end of a session. Sessions end on the broker's own clock, so that tests can move it; a client
that does not log in at all is closed by the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker.monitoring.server_metrics import Login
from headrace.broker.requests.error_responses import error_answer
from headrace.broker.requests.request_context import ANONYMOUS, Principal
from headrace.broker.security.credentials import Credentials, LoginExchange
from headrace.broker.security.listener_security import ListenerSecurity
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms_i64
from headrace.protocol.request_codec import (
    MalformedRequest,
    RequestHeader,
    UnsupportedVersion,
    decode_header,
    decode_request,
    encode_response,
    peek_api_key,
)
from headrace.protocol.sasl import SaslError

if TYPE_CHECKING:
    from headrace.broker.config.broker_configuration import BrokerConfiguration
    from headrace.broker.monitoring.broker_metrics import BrokerMetrics
    from headrace.broker.requests.api_table import ApiTable
    from headrace.broker.requests.request_context import ClientInformation, RequestContext

__all__ = ["Authentication", "SaslReply", "SaslSession"]


MOST_ITEMS = 100  # of a request before the login; only tagged fields that come later could be some
_OF_LOGINS = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslReply:
    """`reply`: the whole frame, None for nothing. `refused`: why the connection ends; `late`: only after the delay.

    `reply` of a mechanism that is not offered goes out at once, and the connection ends after the delay all the same.
    """

    reply: bytes | None = None
    refused: str | None = None
    late: bool = True


class _State(Enum):
    HANDSHAKE_OR_VERSIONS = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    COMPLETE = auto()
    FAILED = auto()


class SaslSession:
    """Mutable: one connection's login. `open` once it is complete; then `principal` and `session_lifetime_ms` count."""

    def __init__(
        self,
        security: ListenerSecurity,
        credentials: Credentials,
        answer_versions: Callable[[RequestHeader, object], bytes],
    ) -> None:
        self._security = security
        self._credentials = credentials
        self._answer_versions = answer_versions
        self._state = _State.HANDSHAKE_OR_VERSIONS
        self._login: LoginExchange | None = None
        self._mechanism = ""
        self._bare_tokens = False
        self._again = False
        self._changed_mechanism = False
        self.principal: Principal = ANONYMOUS
        self.session_lifetime_ms = 0

    @property
    def open(self) -> bool:
        return self._state is _State.COMPLETE

    @property
    def state_name(self) -> str:
        return self._state.name.lower()

    def close_again(self) -> None:
        """Begin a new login on the same connection, of the same user with the same mechanism."""
        self._state, self._again = _State.HANDSHAKE, True

    def take(self, frame: bytes) -> SaslReply:
        """Return the response to the next frame, before authentication has succeeded."""
        # 1. KIP-368: a new login must use the mechanism of the first. Kafka notices at this frame and not at the
        #    handshake, and closes without a word.
        if self._state is _State.AUTHENTICATE and self._changed_mechanism:
            return self._fail("it changed its mechanism at re-authentication")  # Kafka's moment, and its silence
        # 2. After a handshake of version 0 frames are bare tokens, without a request header.
        if self._state is _State.AUTHENTICATE and self._bare_tokens:
            return self._bare_token(frame)
        try:
            # 3. Only three APIs are decoded before the login. Otherwise any client could make the broker run its most
            #    expensive decoder.
            if peek_api_key(frame) not in _OF_LOGINS:
                return self._unexpected(decode_header(frame))
            header, request = decode_request(frame, MOST_ITEMS)
        except UnsupportedVersion as error:
            return self._unsupported(error.header)
        except MalformedRequest as error:
            return self._fail(str(error))
        # 4. Between handshake and success nothing but tokens is legal.
        if self._state is _State.AUTHENTICATE:
            if header.api_key == ApiKey.SASL_AUTHENTICATE:
                return self._authenticate(header, request)
            return self._unexpected(header)
        # 5. ApiVersions once, and only first, as in Kafka; then the handshake.
        if header.api_key == ApiKey.API_VERSIONS and self._state is _State.HANDSHAKE_OR_VERSIONS:
            self._state = _State.HANDSHAKE
            return SaslReply(reply=self._answer_versions(header, request))
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return self._handshake(header, request)
        return self._unexpected(header)

    def _unsupported(self, header: RequestHeader) -> SaslReply:
        if header.api_key == ApiKey.API_VERSIONS and self._state is _State.HANDSHAKE_OR_VERSIONS:
            return SaslReply(reply=self._answer_versions(header, None))
        return self._fail(f"API key {header.api_key} version {header.api_version} came during the SASL login")

    def _unexpected(self, header: RequestHeader) -> SaslReply:
        """Refuse without decoding: an unauthenticated client must not choose what the broker works on.

        Behind the handshake the answer is ILLEGAL_SASL_STATE as Kafka's, but without an error for each item.
        """
        api = ApiKey(header.api_key)
        if self._state is not _State.AUTHENTICATE:
            return self._fail(f"{api.kafka_name} came before the SASL handshake")
        self._state = _State.FAILED
        reply = encode_response(header, error_answer(api, None, ErrorCode.illegal_sasl_state))
        return SaslReply(reply=reply, refused=f"{api.kafka_name} came during the SASL login")

    def _handshake(self, header: RequestHeader, request: object) -> SaslReply:
        assert isinstance(request, m.sasl_handshake_request.SaslHandshakeRequest)
        offered = self._security.mechanisms
        known = request.mechanism in offered
        code = ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism
        response = m.sasl_handshake_response.SaslHandshakeResponse(error_code=code, mechanisms=offered)
        reply = encode_response(header, response)
        # The response names what is offered, and is sent before the delay.
        if not known:
            self._state = _State.FAILED
            return SaslReply(reply=reply, refused="the client asked for a mechanism that is not offered", late=False)
        self._changed_mechanism = self._again and request.mechanism != self._mechanism
        self._state, self._mechanism = _State.AUTHENTICATE, request.mechanism
        self._bare_tokens = header.api_version == 0
        self._login = self._security.login(request.mechanism, self._credentials)
        return SaslReply(reply=reply)

    def _authenticate(self, header: RequestHeader, request: object) -> SaslReply:
        assert isinstance(request, m.sasl_authenticate_request.SaslAuthenticateRequest)
        try:
            token = self._evaluate(request.auth_bytes)
        except SaslError as refused:
            self._state = _State.FAILED
            return SaslReply(
                reply=encode_response(header, _refusal(self._words(refused))), refused=self._words(refused)
            )
        response = m.sasl_authenticate_response.SaslAuthenticateResponse(
            error_code=ErrorCode.none,
            error_message="",  # Kafka's way to say that there is none
            auth_bytes=token,
            session_lifetime=from_ms_i64(self.session_lifetime_ms if self.open else 0),
        )
        return SaslReply(reply=encode_response(header, response))

    def _bare_token(self, frame: bytes) -> SaslReply:
        try:
            token = self._evaluate(frame)
        except SaslError as refused:
            return self._fail(self._words(refused))
        # After SaslHandshake v0 (KIP-43) a token has its length of 4 bytes in front and no header. SaslAuthenticate,
        # with errors that a client can read, came with KIP-152.
        return SaslReply(reply=len(token).to_bytes(4, "big") + token)

    def _evaluate(self, message: bytes) -> bytes:
        assert self._login is not None
        answer = self._login.evaluate(message)
        if self._login.complete:
            principal = Principal(name=self._login.username)
            # The connection keeps its principal: fetch sessions and cached responses belong to it.
            if self._again and principal != self.principal:
                raise SaslError(
                    f"Cannot change principals during re-authentication from {_dotted(self.principal)}: "
                    f"{_dotted(principal)}",
                    is_for_client=True,
                )
            self.principal, self.session_lifetime_ms = principal, self._security.reauth_ms
            self._state, self._login = _State.COMPLETE, None
        return answer

    def _words(self, refused: SaslError) -> str:
        """The message for the client: never the exact reason."""
        # Unknown user and wrong password look alike, or names could be probed.
        if refused.is_for_client:
            return refused.message
        when = "re-authentication" if self._again else "authentication"
        return f"Authentication failed during {when} due to invalid credentials with SASL mechanism {self._mechanism}"

    def _fail(self, why: str) -> SaslReply:
        self._state = _State.FAILED
        return SaslReply(refused=why)


def _refusal(message: str) -> m.sasl_authenticate_response.SaslAuthenticateResponse:
    return m.sasl_authenticate_response.SaslAuthenticateResponse(
        error_code=ErrorCode.sasl_authentication_failed, error_message=message, auth_bytes=b""
    )


def _dotted(principal: Principal) -> str:
    return f"{principal.type}.{principal.name}"


logger = logging.getLogger("headrace.broker")

_SHORTEST_BETWEEN_LOGINS_MS: Final = 1000  # Kafka's; a handshake that comes sooner is an ordinary request


class AuthenticatedConnection(Protocol):
    """The part of a connection that its authentication uses."""

    listener_name: str
    client_information: ClientInformation

    def write(self, data: bytes) -> None: ...
    def request_context(self, header: RequestHeader) -> RequestContext: ...
    def set_principal(self, principal: Principal) -> None:
        """Answer everything from now on under this principal."""

    def forget_answers(self) -> None:
        """Repeat none of the responses so far: they were given to the former principal."""

    def stop_listening(self) -> None:
        """Ignore everything that the client sends from now on."""

    def refuse(self, reason: str) -> None:
        """Log the reason and close the connection."""


class AuthenticationServices(Protocol):
    """The part of the server that authentication uses."""

    @property
    def configuration(self) -> BrokerConfiguration: ...
    @property
    def metrics(self) -> BrokerMetrics: ...
    @property
    def now_ms(self) -> Callable[[], int]: ...
    @property
    def apis(self) -> ApiTable | None: ...
    def answer_unsupported_version(self, header: RequestHeader) -> bytes | None: ...


class Authentication:
    """Mutable: belongs to one connection."""

    def __init__(
        self,
        connection: AuthenticatedConnection,
        server: AuthenticationServices,
        security: ListenerSecurity,
        credentials: Credentials,
    ) -> None:
        self._connection = connection
        self._server = server
        self._session = SaslSession(security, credentials, self._answer_versions)
        self._session_ends_ms: int | None = None
        self._login_began_ms: int | None = None
        self._again = False  # there was a login on this connection already
        timeout_s = server.configuration.integer("headrace.authentication.timeout.ms") / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._too_late)

    @property
    def principal(self) -> Principal:
        return self._session.principal

    def stop(self) -> None:
        """Cancel the timer, when the connection has ended."""
        self._timer.cancel()

    def expired(self) -> bool:
        """Whether the client should have logged in again by now."""
        return self._session_ends_ms is not None and self._server.now_ms() >= self._session_ends_ms

    def take(self, frame: bytes) -> bool:
        """Return whether the frame belongs to authentication: it is answered, or the connection is being closed."""
        if self._session.open:
            if self._begins_again(frame):
                self._session.close_again()
                self._connection.forget_answers()
            elif self.expired():
                self._server.metrics.server.record_expired_session(self._connection.listener_name)
                self._connection.refuse("its session is over and it did not log in again")
                return True
            else:
                return False
        self._follow(self._session.take(frame))
        return True

    def _begins_again(self, frame: bytes) -> bool:
        """A handshake, where sessions have an end, not sooner than a second behind the last one."""
        # Without connections.max.reauth.ms a second handshake is an ordinary request, and its handler refuses it.
        if self._session_ends_ms is None or int.from_bytes(frame[:2], "big") != ApiKey.SASL_HANDSHAKE:
            return False
        now_ms = self._server.now_ms()
        if self._login_began_ms is not None and now_ms - self._login_began_ms < _SHORTEST_BETWEEN_LOGINS_MS:
            return False
        self._login_began_ms = now_ms
        return True

    def _follow(self, answer: SaslReply) -> None:
        if answer.refused is not None:
            self._refuse(answer)
            return
        if answer.reply is not None:
            self._connection.write(answer.reply)
        if self._session.open:
            self._timer.cancel()
            # 0: no end. Otherwise the client has logged in again by then, or the connection ends (KIP-368).
            lifetime_ms = self._session.session_lifetime_ms
            self._session_ends_ms = self._server.now_ms() + lifetime_ms if lifetime_ms else None
            self._connection.set_principal(self._session.principal)
            self._count("successful-reauthentication" if self._again else "successful-authentication")
            self._again = True

    def _refuse(self, answer: SaslReply) -> None:
        """Refuse a login in Kafka's order: the immediate response, the delay, the delayed response, the end."""
        self._timer.cancel()
        self._count("failed-reauthentication" if self._again else "failed-authentication")
        reply = answer.reply
        # A mechanism that is not offered is no guess at a password: its answer names those that are, and needs no
        # delay.
        if reply is not None and not answer.late:
            self._connection.write(reply)
            reply = None
        self._connection.stop_listening()
        # KIP-306: a client with a wrong password that connects again at once would keep the broker busy with logins.
        # Until the connection ends, nothing more is read from it.
        delay_s = self._server.configuration.integer("connection.failed.authentication.delay.ms") / 1000
        reason = answer.refused or ""

        def end() -> None:
            if reply is not None:
                self._connection.write(reply)
            self._connection.refuse(reason)

        self._timer = asyncio.get_running_loop().call_later(delay_s, end)

    def _count(self, login: Login) -> None:
        self._server.metrics.server.record_login(self._connection.listener_name, login)

    def _too_late(self) -> None:
        self._count("failed-authentication")
        self._connection.refuse("it did not log in in time")

    def _answer_versions(self, header: RequestHeader, request: object) -> bytes:
        if request is None:
            return self._server.answer_unsupported_version(header) or b""
        apis = self._server.apis
        handler = apis[ApiKey.API_VERSIONS] if apis is not None else None
        assert handler is not None
        context = self._connection.request_context(header)
        answer = handler(request, context)
        # Clients of librdkafka send ApiVersions once for a connection, before the login.
        self._connection.client_information = context.client_information
        return encode_response(header, answer)
