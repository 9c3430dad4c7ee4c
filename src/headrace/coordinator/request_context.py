"""RequestContext and CoordinatorError: who sent a request, and how a rule refuses it.

A module of its own because a broker imports it at start, long before any group exists; `result` is imported later.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.protocol.error_codes import ErrorCode

__all__ = ["CoordinatorError", "CorruptRecord", "RequestContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Caller of a request, as the rules see it.

    Attributes:
        token: identifies the request in `Reply`.
        client_id: of the request header.
        client_host: address in Kafka's form, "/127.0.0.1".
        api_version: version of the request.
        principal: "User:NAME".
    """

    token: int
    client_id: str
    client_host: str
    api_version: int
    principal: str = "User:ANONYMOUS"


class CoordinatorError(Exception):
    """A request is refused with `code`; nothing was changed. `message` is a whole sentence for the client's log."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"CoordinatorError({self.code.name}, {self.message!r})"


class CorruptRecord(Exception):
    """A record of `__consumer_offsets` that cannot be what it says it is."""
