"""ClassicMember: one member of a classic group. Its protocols' metadata and its assignment are bytes that nobody here
reads, but for the topics of a consumer's subscription."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["ClassicMember"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """`protocols`: (name, metadata) by rank, the preferred one first.

    `join_token`, `sync_token`: the request that waits for an answer, None = none does. `is_new`: the broker gave it an
    id that it has not heard of yet, so it cannot send heartbeats.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join_token: int | None = None
    sync_token: int | None = None
    is_new: bool = False

    @property
    def waits_for_join(self) -> bool:
        return self.join_token is not None

    @property
    def needs_no_heartbeat(self) -> bool:
        """Who waits for an answer of ours is alive; not so a new member, whose connection may have been lost."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Raises LookupError for a protocol that the member does not speak."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise LookupError(f"member {self.member_id} does not speak {protocol}")

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate it prefers. Raises LookupError when it speaks none of them."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise LookupError(f"member {self.member_id} speaks none of the protocols that all others speak")
