"""One connection's way through the SASL gate: time limit, delay of refusals, the end of a session, a second login.

`take` stands in front of the handlers: it says what becomes of a frame. Sessions end on the broker's own clock, so
that tests can move it; who does not log in at all is closed by the loop's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.monitoring.server_metrics import Login
from headrace.broker.security.listener_security import ListenerSecurity
from headrace.broker.security.principal import Principal
from headrace.broker.security.sasl_session import SaslReply, SaslSession
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import RequestHeader, encode_response

if TYPE_CHECKING:
    from headrace.broker.network.connection import ClientConnection
    from headrace.broker.server import Server

__all__ = ["Authentication"]

logger = logging.getLogger("headrace.broker")

_SHORTEST_BETWEEN_LOGINS_MS: Final = 1000  # Kafka's; a handshake that comes sooner is an ordinary request


class Authentication:
    """Mutable: belongs to one connection."""

    def __init__(self, connection: ClientConnection, server: Server, security: ListenerSecurity) -> None:
        self._connection = connection
        self._server = server
        services = server.services
        assert services is not None
        self._gate = SaslSession(security, services.scram_credentials, self._answer_versions)
        self._session_ends_ms: int | None = None
        self._login_began_ms: int | None = None
        self._again = False  # there was a login on this connection already
        timeout_s = server.configuration.integer("headrace.authentication.timeout.ms") / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._too_late)

    @property
    def authenticated(self) -> bool:
        return self._gate.open

    @property
    def principal(self) -> Principal:
        return self._gate.principal

    def over(self) -> None:
        """The connection is gone."""
        self._timer.cancel()

    def expired(self) -> bool:
        """Whether the client should have logged in again by now."""
        return self._session_ends_ms is not None and self._server.now_ms() >= self._session_ends_ms

    def take(self, frame: bytes) -> bool:
        """Whether the frame was the gate's business: answered, or the connection is being closed."""
        if self._gate.open:
            if self._begins_again(frame):
                self._gate.close_again()
                self._connection.forget_answers()
            elif self.expired():
                self._server.metrics.server.session_expired(self._connection.listener_name)
                self._connection.refuse("its session is over and it did not log in again")
                return True
            else:
                return False
        self._follow(self._gate.take(frame))
        return True

    def _begins_again(self, frame: bytes) -> bool:
        """A handshake, where sessions have an end, not sooner than a second behind the last one."""
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
        if self._gate.open:
            self._timer.cancel()
            lifetime_ms = self._gate.session_lifetime_ms
            self._session_ends_ms = self._server.now_ms() + lifetime_ms if lifetime_ms else None
            self._connection.authenticated_as(self._gate.principal)
            self._count("successful-reauthentication" if self._again else "successful-authentication")
            self._again = True

    def _refuse(self, answer: SaslReply) -> None:
        """In Kafka's order: the immediate response, the delay, the delayed response, the end."""
        self._timer.cancel()
        self._count("failed-reauthentication" if self._again else "failed-authentication")
        reply = answer.reply
        if reply is not None and not answer.late:
            self._connection.write(reply)
            reply = None
        self._connection.stop_listening()
        delay_s = self._server.configuration.integer("connection.failed.authentication.delay.ms") / 1000
        reason = answer.refused or ""

        def end() -> None:
            if reply is not None:
                self._connection.write(reply)
            self._connection.refuse(reason)

        self._timer = asyncio.get_running_loop().call_later(delay_s, end)

    def _count(self, login: Login) -> None:
        self._server.metrics.server.login(self._connection.listener_name, login)

    def _too_late(self) -> None:
        self._count("failed-authentication")
        self._connection.refuse("it did not log in in time")

    def _answer_versions(self, header: RequestHeader, request: object) -> bytes:
        if request is None:
            return self._server.answer_unsupported_version(header) or b""
        handler = self._server.handler(ApiKey.API_VERSIONS)
        assert handler is not None
        return encode_response(header, handler(request, self._connection.call(header)))
