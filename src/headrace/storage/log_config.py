"""The settings of one log, with Kafka's names and defaults (`segment.bytes` → `segment_bytes`).

`LogConfig.from_kafka` reads a topic's configuration; keys that the disk does not know are somebody else's and pass.
fsync is said in Kafka's own words: `flush.messages=1` is "always", a finite `flush.ms` is "interval", both at their
defaults is "never" (page cache: survives kill -9, not a power loss). `fsync()` builds these three by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from headrace.errors import ConfigError
from headrace.storage.producer_state import MOST_PRODUCERS

__all__ = ["NO_LIMIT", "FsyncPolicy", "LogConfig"]

NO_LIMIT = 2**63 - 1
FsyncPolicy = Literal["never", "interval", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes in bytes, times in ms; -1 in `retention_*` means no limit."""

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 * 1024**2
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    max_message_bytes: int = 1024**2 + 12
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    message_timestamp_before_max_ms: int = NO_LIMIT
    message_timestamp_after_max_ms: int = 3600 * 1000
    compression_type: str = "producer"
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_LIMIT
    flush_messages: int = NO_LIMIT
    flush_ms: int = NO_LIMIT
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    max_producers: int = MOST_PRODUCERS

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """`segment.ms`; in a compacted log at most `max.compaction.lag.ms`, as what is active is never cleaned."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def fsync(self) -> FsyncPolicy:
        if self.flush_messages <= 1:
            return "always"
        return "interval" if self.flush_ms < NO_LIMIT else "never"

    def with_fsync(self, policy: FsyncPolicy, *, flush_ms: int = 1000) -> LogConfig:
        """The same settings under another policy; `flush_ms` counts for "interval" only."""
        match policy:
            case "always":
                return replace(self, flush_messages=1)
            case "interval":
                return replace(self, flush_messages=NO_LIMIT, flush_ms=flush_ms)
            case "never":
                return replace(self, flush_messages=NO_LIMIT, flush_ms=NO_LIMIT)

    @classmethod
    def from_kafka(cls, configs: Mapping[str, object], defaults: LogConfig | None = None) -> LogConfig:
        """A topic's configuration over the broker's defaults. Raises ConfigError (bad-value)."""
        known: dict[str, Any] = {}
        for field in fields(cls):
            name = field.name.replace("_", ".")
            if name in configs:
                known[field.name] = _parse(name, str(configs[name]).strip())
        return replace(defaults or cls(), **known)


_SMALLEST_INDEX_BYTES = 24  # three entries: with fewer an index would be full before it is begun
_LEAST = {
    "segment.bytes": 1,
    "segment.ms": 1,
    "index.interval.bytes": 0,
    "retention.ms": -1,
    "retention.bytes": -1,
    "flush.messages": 1,
    "max.compaction.lag.ms": 1,
}


def _number(name: str, text: str) -> int:
    value = int(text)
    if value < _LEAST.get(name, 0):
        raise ValueError
    return max(value, _SMALLEST_INDEX_BYTES) if name == "segment.index.bytes" else value


def _ratio(_name: str, text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _timestamp_type(_name: str, text: str) -> str:
    if text not in {"CreateTime", "LogAppendTime"}:
        raise ValueError
    return text


def _policies(_name: str, text: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not parts <= {"delete", "compact"}:
        raise ValueError
    return parts


def _codec(_name: str, text: str) -> str:
    if text not in {"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"}:
        raise ValueError
    return text


_PARSERS: dict[str, Callable[[str, str], object]] = {
    "message.timestamp.type": _timestamp_type,
    "compression.type": _codec,
    "min.cleanable.dirty.ratio": _ratio,
    "cleanup.policy": _policies,
}


def _parse(name: str, text: str) -> object:
    try:
        return _PARSERS.get(name, _number)(name, text)
    except ValueError:
        raise ConfigError(
            "bad-value",
            f"Invalid value {text} for configuration {name}.",
            "See Kafka's topic configuration reference for what this setting takes.",
            name=name,
            value=text,
        ) from None
