"""Between kio's types and plain numbers: milliseconds, timestamps, null UUIDs."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import cast

from kio.static.primitive import TZAware, i32Timedelta, i64Timedelta

__all__ = ["from_ms", "from_ms_i64", "timestamp_from_ms", "timestamp_to_ms", "to_ms"]

_MILLISECOND = dt.timedelta(milliseconds=1)
_UNIX_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_ms(duration: dt.timedelta) -> int:
    """Return the whole milliseconds of a duration; -1 ms is -1."""
    return duration // _MILLISECOND


# Settings and throttle times are few different numbers, and kio's check of each costs a microsecond.
@lru_cache(maxsize=1024)
def from_ms(duration_ms: int) -> i32Timedelta:
    """Return a duration field of 32 bits (`session_timeout`, `throttle_time`). Raises TypeError beyond 32 bits."""
    return i32Timedelta.parse(dt.timedelta(milliseconds=duration_ms))


def from_ms_i64(duration_ms: int) -> i64Timedelta:
    """Return a duration field of 64 bits (`retention_time` of OffsetCommit). Raises TypeError beyond 64 bits."""
    return i64Timedelta.parse(dt.timedelta(milliseconds=duration_ms))


def timestamp_from_ms(timestamp_ms: int | None) -> TZAware | None:
    """Return a timestamp field; None for None and for -1."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    # Not TZAware.parse: that refuses fractions of a second, which kio's writer carries well.
    return cast("TZAware", _UNIX_EPOCH + dt.timedelta(milliseconds=timestamp_ms))


def timestamp_to_ms(timestamp: dt.datetime | None) -> int:
    """Return milliseconds since 1970; -1 for None."""
    return -1 if timestamp is None else (timestamp - _UNIX_EPOCH) // _MILLISECOND
