"""Settings of one log, with Kafka's names and defaults: the field `segment_bytes` is the setting `segment.bytes`.

`LogConfig.from_kafka` reads a topic's configuration and ignores settings that are not the storage package's. The fsync
policy follows from Kafka's own settings: `flush.messages=1` is "always", a finite `flush.ms` is "interval", and the
defaults of both are "never": data in the page cache survives a kill -9, but not a power loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from headrace.errors import ConfigError
from headrace.storage.producer_state import MOST_PRODUCERS

__all__ = ["NO_LIMIT", "FsyncPolicy", "LogConfig"]

NO_LIMIT = 2**63 - 1
FsyncPolicy = Literal["never", "interval", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Log settings. Sizes are in bytes, times in ms; -1 in `retention_*` means no limit."""

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
    # Computed once: every append asks for it.
    roll_ms: int = field(init=False, repr=False, compare=False)
    """`segment.ms`; in a compacted log at most `max.compaction.lag.ms`: the active segment is never cleaned."""

    def __post_init__(self) -> None:
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)

    @property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` has "compact"."""
        return "compact" in self.cleanup_policy

    @property
    def fsync(self) -> FsyncPolicy:
        """The fsync policy that `flush.messages` and `flush.ms` stand for."""
        if self.flush_messages <= 1:
            return "always"
        return "interval" if self.flush_ms < NO_LIMIT else "never"

    def with_fsync(self, policy: FsyncPolicy, *, flush_ms: int = 1000) -> LogConfig:
        """Return the settings with another fsync policy; `flush_ms` is used for "interval" only."""
        match policy:
            case "always":
                return replace(self, flush_messages=1)
            case "interval":
                return replace(self, flush_messages=NO_LIMIT, flush_ms=flush_ms)
            case "never":
                return replace(self, flush_messages=NO_LIMIT, flush_ms=NO_LIMIT)

    @classmethod
    def from_kafka(cls, configs: Mapping[str, object], defaults: LogConfig | None = None) -> LogConfig:
        """Return the settings of a topic.

        Args:
            configs: The topic's configuration by Kafka's names.
            defaults: Settings of the broker, for those that the topic does not set.

        Raises:
            ConfigError: bad-value: a value is invalid.
        """
        known: dict[str, Any] = {}
        for each in fields(cls):
            name = each.name.replace("_", ".")
            if each.init and name in configs:
                known[each.name] = _parse(name, str(configs[name]).strip())
        return replace(defaults or cls(), **known)


_MIN_INDEX_BYTES = 24  # three entries; an index for fewer is full from the start
_MINIMUMS = {
    "segment.bytes": 1,
    "segment.ms": 1,
    "index.interval.bytes": 0,
    "retention.ms": -1,
    "retention.bytes": -1,
    "flush.messages": 1,
    "max.compaction.lag.ms": 1,
}


def _parse_number(name: str, text: str) -> int:
    value = int(text)
    if value < _MINIMUMS.get(name, 0):
        raise ValueError
    return max(value, _MIN_INDEX_BYTES) if name == "segment.index.bytes" else value


def _parse_ratio(_name: str, text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _parse_timestamp_type(_name: str, text: str) -> str:
    if text not in {"CreateTime", "LogAppendTime"}:
        raise ValueError
    return text


def _parse_policies(_name: str, text: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not parts <= {"delete", "compact"}:
        raise ValueError
    return parts


def _parse_codec(_name: str, text: str) -> str:
    if text not in {"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"}:
        raise ValueError
    return text


_PARSERS: dict[str, Callable[[str, str], object]] = {
    "message.timestamp.type": _parse_timestamp_type,
    "compression.type": _parse_codec,
    "min.cleanable.dirty.ratio": _parse_ratio,
    "cleanup.policy": _parse_policies,
}


def _parse(name: str, text: str) -> object:
    try:
        return _PARSERS.get(name, _parse_number)(name, text)
    except ValueError:
        raise ConfigError(
            "bad-value",
            f"Invalid value {text} for configuration {name}.",
            "See Kafka's topic configuration reference for what this setting takes.",
            name=name,
            value=text,
        ) from None
