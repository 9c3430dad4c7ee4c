"""Requests for queries as HTTP/1.1 carries them: parsed, limited and checked before anything is looked up. Pure.

Only GET without a body is answered. A request names a store in its path and everything else in its query string.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

__all__ = [
    "ARROW",
    "JSON",
    "MOST_HEAD_BYTES",
    "Answer",
    "BadRequest",
    "Request",
    "check_access",
    "problem",
    "read_head",
]

MOST_HEAD_BYTES = 16_384
MOST_PARAMETERS = 16
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A GET request. `target` is its path and query string as they came."""

    target: str
    path: tuple[str, ...]  # segments, decoded
    parameters: Mapping[str, str]
    host: str  # as the client named this server, without its port; empty: it did not
    token: str | None = field(repr=False)
    keeps_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response: its body, or pieces that are sent as they are made."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    pieces: Iterator[bytes] | None = None


class BadRequest(Exception):
    """A request that is not understood or not allowed. `answer` is the response; the connection is closed."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def problem(status: int, code: str, message: str, fix: str = "", **headers: str) -> Answer:
    """Return an error as a response. Underscores in names of headers become hyphens."""
    document: dict[str, Any] = {"error": {"code": code, "message": message, "fix": fix}}
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(status=status, body=json.dumps(document).encode() + b"\n", headers=named)


def read_head(head: bytes) -> Request:
    """Parse the head of a request, its final empty line included. Raises BadRequest."""
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise _refused(400, "This is not an HTTP/1.1 request.")
    method, target, version = parts
    if method != b"GET":
        raise BadRequest(problem(405, "bad-value", "Only GET is answered here.", Allow="GET"))
    # 1. The target is sent back in redirects, so it has to be free of everything that could end a header.
    if not target.startswith(b"/") or any(not 0x21 <= byte <= 0x7E for byte in target):
        raise _refused(400, "The target of the request is no path.")
    headers = _headers(lines[1:])
    # 2. Requests have no body. One with a body is not answered, as what follows on the connection would be its body.
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise _refused(400, "Requests have no body.")
    path, _, query = target.decode("ascii").partition("?")
    try:
        segments = tuple(unquote(segment, errors="strict") for segment in path.split("/")[1:])
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=MOST_PARAMETERS, errors="strict"
        )
    except (ValueError, UnicodeDecodeError) as error:
        raise _refused(400, f"The target of the request cannot be read: {error}.") from error
    if len(dict(pairs)) != len(pairs):
        raise _refused(400, "A parameter is named twice.")
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    return Request(
        target=target.decode("ascii"),
        path=segments,
        parameters=dict(pairs),
        host=_without_port(headers.get("host", "")),
        token=credentials.strip() if scheme.lower() == "bearer" else None,
        keeps_open=version == b"HTTP/1.1" and headers.get("connection", "").lower() != "close",
    )


def check_access(request: Request, *, token: str | None, own_host: str) -> None:
    """Refuse a request with a wrong token, and one that a web page sent through a name of its own.

    Args:
        request: The request.
        token: What clients have to know; None: nothing.
        own_host: The name under which the group knows this server.

    Raises:
        BadRequest: 401 or 403.
    """
    # 1. A web page may resolve its own name to this address, and would then read answers with the browser of its
    #    reader (DNS rebinding). It cannot choose the Host header, which names the page.
    if not _is_address(request.host) and request.host not in ("localhost", own_host):
        raise BadRequest(
            problem(403, "not-authorized", "The Host header names another server.", "Use the address of this one.")
        )
    if token is None:
        return
    # 2. Compared in constant time: how long a comparison takes would tell how much of a token is right.
    if request.token is None or not hmac.compare_digest(request.token.encode("latin-1"), token.encode()):
        raise BadRequest(
            problem(
                401,
                "authentication-failed",
                "The query has no token, or a wrong one.",
                "Send it as Authorization: Bearer TOKEN.",
                WWW_Authenticate="Bearer",
            )
        )


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        if not line:
            continue
        name, colon, value = line.partition(b":")
        # A folded line, or white space before the colon, is read by some servers in one way and by some in another.
        if not colon or not name or name != name.strip():
            raise _refused(400, "A header of the request cannot be read.")
        key = name.decode("latin-1").lower()
        if key in headers and key in ("host", "content-length", "transfer-encoding", "authorization"):
            raise _refused(400, f"The header {key} is there twice.")
        headers[key] = value.strip().decode("latin-1")
    return headers


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host.rpartition(":")[0] or host if host.count(":") == 1 else host).lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refused(status: int, message: str) -> BadRequest:
    return BadRequest(problem(status, "bad-value", message))
