"""HTTP requests to a server of the test."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "http_get", "http_request"]

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers with names in lower case, and body of a response; a JSON body is decoded."""

    status: int
    headers: dict[str, str]
    body: Any


def http_get(port: int, path: str) -> tuple[int, Any]:
    """Return the status and the body of a GET request to the loopback; a JSON body is decoded."""
    answer = http_request(port, path)
    return answer.status, answer.body


def http_request(
    port: int, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> Answer:
    """Send a request to the loopback; `Host` may be among the headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=dict(headers or {}), body=body)
        response = connection.getresponse()
        content = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        is_json = "json" in found.get("content-type", "") and content and "content-encoding" not in found
        return Answer(response.status, found, json.loads(content) if is_json else content)
    finally:
        connection.close()
