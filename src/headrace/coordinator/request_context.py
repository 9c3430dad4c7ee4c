"""RequestContext: what the broker knows about the sender of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """`token` names the request for `Reply`; `client_host` is Kafka's form, "/127.0.0.1"."""

    token: int
    client_id: str
    client_host: str
    api_version: int
    principal: str = "User:ANONYMOUS"
