"""The SASL session of one connection: which requests may come before the login, and the login itself.

The states are Kafka's (SaslServerAuthenticator): ApiVersions comes first or never; a handshake of version 0 is followed
by bare tokens with a length in front, one of version 1 by SaslAuthenticate. Whatever else comes ends the connection:
its API key is looked at first, and nothing of it is decoded. A refusal is answered after
`connection.failed.authentication.delay.ms`, which slows down who guesses. With `connections.max.reauth.ms` a login has
an end (KIP-368): a handshake opens the gate again for the same user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from headrace.broker.requests.error_responses import error_answer
from headrace.broker.security.listener_security import ListenerSecurity
from headrace.broker.security.login import Credentials, Login
from headrace.broker.security.principal import ANONYMOUS, Principal
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
from headrace.protocol.sasl.errors import SaslError

__all__ = ["SaslReply", "SaslSession"]

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
        self._login: Login | None = None
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
        """A new login on the same connection, which must be the same user's by the same mechanism."""
        self._state, self._again = _State.HANDSHAKE, True

    def take(self, frame: bytes) -> SaslReply:
        """The answer to the next frame, while the gate is not open."""
        if self._state is _State.AUTHENTICATE and self._changed_mechanism:
            return self._fail("it changed its mechanism at re-authentication")  # Kafka's moment, and its silence
        if self._state is _State.AUTHENTICATE and self._bare_tokens:
            return self._bare_token(frame)
        try:
            if peek_api_key(frame) not in _OF_LOGINS:
                return self._unexpected(decode_header(frame))
            header, request = decode_request(frame, MOST_ITEMS)
        except UnsupportedVersion as error:
            return self._unsupported(error.header)
        except MalformedRequest as error:
            return self._fail(str(error))
        if self._state is _State.AUTHENTICATE:
            if header.api_key == ApiKey.SASL_AUTHENTICATE:
                return self._authenticate(header, request)
            return self._unexpected(header)
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
        """Refuse without decoding: a stranger must not choose what the broker works on.

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
        return SaslReply(reply=len(token).to_bytes(4, "big") + token)

    def _evaluate(self, message: bytes) -> bytes:
        assert self._login is not None
        answer = self._login.evaluate(message)
        if self._login.complete:
            principal = Principal(name=self._login.username)
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
