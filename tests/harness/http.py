"""HTTP requests to a server of the test."""

from __future__ import annotations

import http.client
import json
from typing import Any

__all__ = ["http_get"]

TIMEOUT_S = 60.0


def http_get(port: int, path: str) -> tuple[int, Any]:
    """Return the status and the body of a GET request to the loopback; a JSON body is decoded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if "json" in (response.getheader("Content-Type") or "") else body
    finally:
        connection.close()
