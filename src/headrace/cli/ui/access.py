"""Access rules of the page: host names, logins, requests of other sites, and the headers of every response.

The page only reads, but names of topics, lags and records are not for everyone. Three ways in have to be closed: an
address that others reach (a login is required), a site in the user's browser that sends requests to the loopback
(`Sec-Fetch-Site`, `Origin`), and one that makes its own name resolve to the loopback (`Host`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response

from headrace.broker.network.listener import is_loopback
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "LEAST_PASSWORD",
    "SECURITY_HEADERS",
    "Access",
    "AccessRules",
    "Login",
    "basic_credentials",
    "host_name",
    "login_required",
]

# A wrong login costs this long, so that guessing over the few connections that the server has takes years.
WRONG_LOGIN_SECONDS = 0.5
LEAST_PASSWORD = 12

SECURITY_HEADERS = {
    # Scripts and styles are files of this server. Trusted Types forbid `innerHTML` and its like, so that a name of a
    # topic cannot become markup by a mistake in the script.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Names of groups and topics are part of addresses.
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class Login:
    """User and password of HTTP's basic authentication. The password is not in the repr."""

    user: str
    _password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"

    @classmethod
    def parse(cls, text: str, source: str) -> Login:
        """Read `user:password`.

        Args:
            text: The login.
            source: Name of the variable or file, for messages.

        Raises:
            ConfigError: `bad-value`.
        """
        user, colon, password = text.strip().partition(":")
        if not colon or not user or len(password) < LEAST_PASSWORD:
            raise ConfigError(
                "bad-value",
                f"Invalid login in {source}: expected user:password with a password of {LEAST_PASSWORD} characters "
                "or more.",
                "Create one:  python3 -c \"import secrets; print('ops:' + secrets.token_urlsafe(18))\"",
            )
        return cls(user, password)

    def admits(self, authorization: str) -> bool:
        """Return whether a header `Authorization` carries this login."""
        given = _decoded(authorization)
        return given is not None and hmac.compare_digest(given, f"{self.user}:{self._password}".encode())


def _decoded(authorization: str) -> bytes | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def basic_credentials(authorization: str) -> tuple[str, str] | None:
    """Return user and password of a header `Authorization`; None without both."""
    try:
        user, colon, password = (_decoded(authorization) or b"").decode("utf-8").partition(":")
    except UnicodeDecodeError:
        return None
    return (user, password) if user and colon and password else None


def login_required() -> Response:
    """Return the response that makes a browser ask for a login."""
    return PlainTextResponse(
        "A login is required.\n",
        status_code=401,
        headers={"WWW-Authenticate": 'Basic realm="Headrace", charset="UTF-8"'},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Host names that requests may use beside addresses and localhost, and the login, if one is required."""

    allowed_hosts: frozenset[str] = frozenset()
    login: Login | None = None

    @classmethod
    def for_address(
        cls, host: str, *, allowed_hosts: Iterable[str] = (), login: Login | None = None, cluster_login: bool = False
    ) -> AccessRules:
        """Return the rules of a server that listens on `host`.

        Args:
            host: The address.
            allowed_hosts: Names of the server beside it.
            login: The one login, if there is one.
            cluster_login: Whether users log in at the cluster instead.

        Raises:
            ConfigError: `bad-value`: others can reach the address and there is no login.
        """
        if not is_loopback(host) and login is None and not cluster_login:
            raise ConfigError(
                "bad-value",
                f"The page would be readable for everyone who reaches {host}: a login is required.",
                "Set HEADRACE_UI_LOGIN=user:password, --login-file FILE or --cluster-login, or leave out --host.",
                host=host,
            )
        names = {name.strip().lower().rstrip(".") for name in allowed_hosts}
        return cls(allowed_hosts=frozenset(names | {host.lower()}), login=login)

    def allows_host(self, header: str) -> bool:
        """Return whether a header `Host` names this server.

        DNS rebinding needs a name: a page of evil.example whose name resolves to the loopback sends `evil.example`
        here. Addresses cannot be rebound.
        """
        name = host_name(header)
        if name is None:
            return False
        return name == "localhost" or name in self.allowed_hosts or _is_address(name)


def host_name(header: str) -> str | None:
    """Return the name or address of a header `Host` without its port; None if it is malformed."""
    if header.startswith("["):
        name, bracket, rest = header[1:].partition("]")
        well_formed = bool(bracket) and (not rest or (rest.startswith(":") and rest[1:].isdigit()))
    else:
        name, colon, port = header.partition(":")
        well_formed = not colon or port.isdigit()
    name = name.lower().rstrip(".")
    return name if well_formed and name else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Access:
    """ASGI middleware that applies the rules and adds the headers."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = await self._refusal(scope)
        await (self._app if refused is None else refused)(scope, receive, send_with_headers)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        # 1. The host before the login: a browser must not be asked for a password under a foreign name.
        if len(hosts) != 1 or not self._rules.allows_host(hosts[0]):
            return PlainTextResponse(
                "This name is not one of the page's. Add it: headrace ui --allowed-host NAME\n", status_code=421
            )
        # 2. Only reading.
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The page is read-only.\n", status_code=405, headers={"Allow": "GET, HEAD"})
        # 3. Requests of other sites. Links from elsewhere to a page are fine; data is for our own script alone.
        if scope["path"].startswith("/api/") and not _is_own(headers, hosts[0]):
            return JSONResponse(
                {"error": {"code": "cross-site", "message": "Requests of other sites are refused."}}, status_code=403
            )
        # 4. The login.
        login = self._rules.login
        if login is None or login.admits(headers.get("authorization", "")):
            return None
        if "authorization" in headers:
            await asyncio.sleep(WRONG_LOGIN_SECONDS)
        return login_required()


def _is_own(headers: Headers, host: str) -> bool:
    # Browsers since 2020 and 2023 send Sec-Fetch-Site; "none" is an address that the user typed. Programs send neither.
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == host
