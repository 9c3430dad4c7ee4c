"""Types of a consumer's public API: partitions, records, offset resets, and the rebalance listener."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.errors import ConfigError

__all__ = ["ConsumerRecord", "OffsetReset", "RebalanceListener", "TopicPartition"]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class ConsumerRecord(NamedTuple):
    """One record. `timestamp_type`: 0 when its producer set the time, 1 when the broker did."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    timestamp_type: int


class RebalanceListener:
    """Base class of rebalance listeners; override what is of interest. Methods are called inside `poll`, on its thread.

    An exception is raised by that `poll`, after the rebalance went on. In `on_revoked` the partitions may still be
    committed; in `on_lost` they belong to other members already. Cooperative assignors and consumer groups name only
    what changes; eager ones name everything.

    When a topic was deleted and created again, the partitions of the old one are lost and those of the new one
    assigned, without a rebalance: offsets of the old topic mean nothing in the new one.
    """

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle new partitions; `seek` in here sets where they begin."""

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that go to other members when this returns."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that are lost. The default calls `on_revoked`, as Kafka's does."""
        self.on_revoked(partitions)


_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_PLAIN: dict[str, Literal["earliest", "latest", "none"]] = {"earliest": "earliest", "latest": "latest", "none": "none"}
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """`auto.offset.reset`: where to begin without a committed offset (KIP-1106 for by_duration)."""

    kind: Literal["earliest", "latest", "none", "by_duration"]
    duration_ms: int = 0

    @classmethod
    def parsed(cls, text: str) -> OffsetReset:
        """Parse `earliest`, `latest`, `none` or `by_duration:PT24H`.

        Raises:
            ConfigError: `bad-value`.
        """
        lowered = text.strip().lower()
        if lowered in _PLAIN:
            return cls(_PLAIN[lowered])
        kind, _, duration = lowered.partition(":")
        # ISO 8601 as in Java's Duration: days, hours, minutes, seconds; months and years have no fixed length.
        match = _DURATION.fullmatch(duration)
        if kind == "by_duration" and match is not None and any(match.groupdict().values()):
            given = {unit: float(amount) for unit, amount in match.groupdict().items() if amount}
            return cls("by_duration", round(sum(amount * _UNITS_MS[unit] for unit, amount in given.items())))
        raise ConfigError(
            "bad-value",
            f"Invalid auto.offset.reset {text!r}.",
            "Set earliest, latest, none, or by_duration: with an ISO 8601 duration, such as by_duration:PT24H.",
            key="auto.offset.reset",
        )
