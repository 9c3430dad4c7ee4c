"""What every pure request manager answers: the requests to send now, and when to ask again at the latest."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NEVER_MS", "Outgoing", "PollResult"]

NEVER_MS = 1 << 62
"""A time that does not come: nothing is due until a response or a call arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One request (newest kio class) for one node; `node` None means any broker."""

    request: object
    node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """At most one request is out at a time: each is answered by `on_response` or given up by `on_failure`."""

    requests: tuple[Outgoing, ...]
    next_poll_ms: int
