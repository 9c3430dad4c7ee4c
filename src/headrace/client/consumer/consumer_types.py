"""What a consumer's callers see: partitions, records, positions in time, and the rebalance listener."""

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
    """Base of listeners: overwrite what is of interest. They run inside `poll`, on its thread.

    When a topic was deleted and created again, the partitions of the old one are lost and those of the new one
    assigned, without a rebalance: offsets of the old topic mean nothing in the new one.

    What they raise comes out of that `poll`, after the rebalance went on. In `on_revoked` the partitions may still be
    committed; in `on_lost` they belong to others already. With cooperative assignors and consumer groups only what
    changes is named; eager ones name everything.
    """

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """New partitions; `seek` in here decides where they begin."""

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These go to others when this returns."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are gone; Kafka's default is to treat it as a revocation, and so is this one."""
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
        """`earliest`, `latest`, `none`, `by_duration:PT24H`. Raises ConfigError `bad-value`."""
        lowered = text.strip().lower()
        if lowered in _PLAIN:
            return cls(_PLAIN[lowered])
        kind, _, duration = lowered.partition(":")
        match = _DURATION.fullmatch(duration)
        if kind == "by_duration" and match is not None and any(match.groupdict().values()):
            given = {unit: float(amount) for unit, amount in match.groupdict().items() if amount}
            return cls("by_duration", round(sum(amount * _UNITS_MS[unit] for unit, amount in given.items())))
        raise ConfigError(
            "bad-value",
            f"auto.offset.reset is {text!r}, which cannot be",
            "give earliest, latest, none, or by_duration: and a duration as in by_duration:PT24H",
            key="auto.offset.reset",
        )
