"""Several users of the page: each logs in with the own user and password of the cluster, and sees what these may see.

The cluster itself checks the login, by SASL. Each user has a session: a collector and documents of its own, read with
the rights of that user, so that nothing is shown to a user that the cluster would refuse.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from headrace.cli.ui.access import WRONG_LOGIN_SECONDS, Access, AccessRules, basic_credentials, login_required
from headrace.client.security import ClientSecurity
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.cli.ui.cluster_watch import ClusterWatch
    from headrace.cli.ui.web_application import WebPage
    from headrace.client.admin import Admin

__all__ = ["ClusterLogin", "UserPage", "security_of_user"]

MOST_USERS = 16
# Each costs a connection to the cluster, and a wrong one half a second: four guesses a second, of all browsers.
LOGINS_AT_A_TIME = 2
LOGIN_WAIT_SECONDS = 5.0
IDLE_SECONDS = 600.0
# A password that was changed, or a user that was removed, ends here at the latest: the next request logs in anew.
SESSION_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class UserPage:
    """The page of one user, and its collector."""

    page: WebPage
    watch: ClusterWatch


@dataclass(slots=True)
class _Session:
    page: UserPage
    began_s: float
    used_s: float
    requests: int = 0  # under way, streams included
    stop: threading.Event = field(default_factory=threading.Event)


def security_of_user(security: ClientSecurity, user: str, password: str) -> ClientSecurity:
    """Return the same connection settings with another login.

    Raises:
        ConfigError: `bad-value`: the connection has no user and password.
    """
    mechanism = security.values.get("sasl.mechanism", "")
    if not security.protocol.startswith("SASL_") or not (mechanism == "PLAIN" or mechanism.startswith("SCRAM-")):
        raise ConfigError(
            "bad-value",
            "--cluster-login: users of this connection have no password that the cluster could check.",
            "Set security.protocol=SASL_SSL and sasl.mechanism (PLAIN or SCRAM-SHA-256/512) in --command-config.",
        )
    kept = {name: value for name, value in security.to_settings().items() if name != "sasl.jaas.config"}
    return ClientSecurity.from_settings({**kept, "sasl.username": user, "sasl.password": password})


class ClusterLogin:
    """The ASGI application in front of the pages of all users. Mutable; its sessions belong to the server's loop."""

    def __init__(
        self,
        rules: AccessRules,
        open_admin: Callable[[str, str], Admin],
        open_page: Callable[[Callable[[], Admin]], UserPage],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without sessions.

        Args:
            rules: Hosts, for all users; without a login of their own.
            open_admin: Opens the cluster as a user with a password.
            open_page: Makes a page that reads the cluster through the given function.
            clock: Seconds that only go forward.
        """
        self._open_admin, self._open_page, self._clock = open_admin, open_page, clock
        self._key = secrets.token_bytes(32)
        self._sessions: dict[bytes, _Session] = {}
        self._logins = asyncio.Semaphore(LOGINS_AT_A_TIME)
        self.application: ASGIApp = Access(self._serve, rules)

    def close(self) -> None:
        """End the streams of all users. On the thread of the server."""
        for session in self._sessions.values():
            self._end(session)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = await self._session_of(Headers(scope=scope).get("authorization", ""))
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        found.requests += 1
        try:
            await found.page.page.application(scope, receive, send)
        finally:
            found.requests -= 1
            found.used_s = self._clock()

    async def _session_of(self, authorization: str) -> _Session | Response:
        credentials = basic_credentials(authorization)
        if credentials is None:
            return login_required()
        # The password itself is no key of a dictionary that a traceback or a debugger would show.
        key = hmac.digest(self._key, "\0".join(credentials).encode(), hashlib.sha256)
        self._end_old()
        if key in self._sessions:
            return self._sessions[key]
        try:
            await asyncio.wait_for(self._logins.acquire(), LOGIN_WAIT_SECONDS)
        except TimeoutError:
            return PlainTextResponse("Others are logging in; try again.\n", status_code=503)
        try:
            # A browser sends several requests at once: the first one has logged in meanwhile.
            if key in self._sessions:
                return self._sessions[key]
            refused = await self._refusal(*credentials)
            return refused if refused is not None else self._begin(key, *credentials)
        finally:
            self._logins.release()

    async def _refusal(self, user: str, password: str) -> Response | None:
        try:
            await run_in_threadpool(self._check, user, password)
        except ConfigError:  # such as a user that SASLprep refuses
            pass
        except HeadraceError as error:
            if error.code != "authentication-failed":
                return PlainTextResponse(f"The cluster cannot check the login: {error.message}\n", status_code=503)
        else:
            return None
        await asyncio.sleep(WRONG_LOGIN_SECONDS)
        return login_required()

    def _check(self, user: str, password: str) -> None:
        with self._open_admin(user, password) as admin:
            admin.client.metadata([])

    def _begin(self, key: bytes, user: str, password: str) -> _Session | Response:
        if len(self._sessions) >= MOST_USERS:
            idle = min(
                (name for name, session in self._sessions.items() if not session.requests),
                key=lambda name: self._sessions[name].used_s,
                default=None,
            )
            if idle is None:
                return PlainTextResponse(f"{MOST_USERS} users are logged in already.\n", status_code=503)
            self._end(self._sessions.pop(idle))
        now = self._clock()
        session = _Session(self._open_page(lambda: self._open_admin(user, password)), began_s=now, used_s=now)
        self._sessions[key] = session
        threading.Thread(
            target=session.page.watch.run, args=(session.stop,), name="headrace-ui-collector", daemon=True
        ).start()
        return session

    def _end_old(self) -> None:
        now = self._clock()
        for key, session in list(self._sessions.items()):
            is_idle = not session.requests and now - session.used_s > IDLE_SECONDS
            if is_idle or now - session.began_s > SESSION_SECONDS:
                self._end(self._sessions.pop(key))

    def _end(self, session: _Session) -> None:
        session.page.page.close()
        session.stop.set()
