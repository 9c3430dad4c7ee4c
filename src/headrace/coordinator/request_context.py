"""Who asks: what the server knows about a request beside its message."""

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
