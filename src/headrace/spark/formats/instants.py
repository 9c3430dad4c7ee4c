"""Text to timestamps and dates, by the rules of Spark's `cast(.. as timestamp)` and `cast(.. as date)`.

A timestamp without a zone is in the session's time zone; fractions are cut at microseconds. Unlike Spark, a time of day
alone ("05:06") is refused: it would mean another day tomorrow.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.formats.arrow_types import INSTANT, LOCAL_TIME

_INSTANT = re.compile(
    r"(?P<year>[+-]?\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[ T](?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?)?"
    r"(?: ?(?P<zone>[A-Za-z+-].*))?)?)?)?"
)
_DATE = re.compile(r"(?P<year>[+-]?\d{4,7})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2})(?::?(?P<seconds>\d{2}))?)?"
)
_CYCLE_DAYS = 146_097  # the Gregorian calendar repeats itself every 400 years
_CYCLE_US = _CYCLE_DAYS * 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN_INSTANT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z?$"
_PLAIN_DATE = r"^\d{4}-\d{2}-\d{2}$"


def parse_instant(text: str, zone_name: str) -> int | None:
    """Microseconds since the epoch, or None when `text` is no timestamp."""
    return _micros(text, zone_name)


def parse_local_time(text: str) -> int | None:
    """Microseconds since 1970 on a clock without a zone; None when `text` is no timestamp or names a zone."""
    return _micros(text, None)


def _micros(text: str, zone_name: str | None) -> int | None:
    match = _INSTANT.fullmatch(text.strip())
    if match is None or (zone_name is None and match["zone"]):
        return None
    part = match.groupdict()
    year, cycles = _in_range(int(part["year"]))
    try:
        zone = UTC if zone_name is None else _zone(part["zone"] or zone_name)
        local = datetime(
            year,
            int(part["month"] or 1),
            int(part["day"] or 1),
            int(part["hour"] or 0),
            int(part["minute"] or 0),
            int(part["second"] or 0),
            # Digits beyond the sixth are cut off, not rounded, as in Spark's `DateTimeUtils`.
            int((part["fraction"] or "0").ljust(6, "0")[:6]),
            tzinfo=zone,
        )
        micros = (local - _EPOCH) // timedelta(microseconds=1) + cycles * _CYCLE_US
    except (ValueError, OverflowError):
        return None
    return micros if -(1 << 63) <= micros < 1 << 63 else None


def _in_range(year: int) -> tuple[int, int]:
    """Map `year` into the range of `datetime`: (mapped year, number of 400-year cycles subtracted)."""
    # Python's datetime ends at the years 1 and 9999, Spark's timestamps reach further. The Gregorian calendar and its
    # weekdays repeat every 400 years, so a year is moved by whole cycles and the microseconds are moved back.
    if 1 < year < 9999:
        return year, 0
    shown = year % 400 + (400 if year <= 1 else 9200)
    return shown, (year - shown) // 400


def parse_date(text: str) -> int | None:
    """Days since 1970-01-01, or None when `text` is no date."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    year, cycles = _in_range(int(match["year"]))
    try:
        days = date(year, int(match["month"] or 1), int(match["day"] or 1)).toordinal() - _EPOCH.toordinal()
    except ValueError:
        return None
    return days + cycles * _CYCLE_DAYS if abs(cycles) * _CYCLE_DAYS < 1 << 30 else None


def instants(texts: pa.Array, zone_name: str) -> tuple[pa.Array, pa.Array]:
    """Parse texts as timestamps: (timestamps, mask of invalid texts).

    Each distinct text is parsed once; the common form is parsed for all rows at once.
    """
    # Timestamps of a batch repeat (same second, same day), so each distinct text is parsed once.
    encoded = texts.dictionary_encode()
    distinct = encoded.dictionary
    usual = pc.match_substring_regex(distinct, _PLAIN_INSTANT)
    parsed = _common_instants(distinct, zone_name) if len(distinct) and pc.all(usual).as_py() else None
    if parsed is None:
        parsed = pa.array([parse_instant(text, zone_name) for text in distinct.to_pylist()], pa.int64()).cast(INSTANT)
    values = parsed.take(encoded.indices)
    return values, pc.and_(texts.is_valid(), values.is_null())


def local_times(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Parse texts as timestamps without a zone: (timestamps, mask of invalid texts)."""
    encoded = texts.dictionary_encode()
    parsed = pa.array([parse_local_time(text) for text in encoded.dictionary.to_pylist()], pa.int64()).cast(LOCAL_TIME)
    values = parsed.take(encoded.indices)
    return values, pc.and_(texts.is_valid(), values.is_null())


def dates(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Parse texts as dates: (dates, mask of invalid texts)."""
    encoded = texts.dictionary_encode()
    distinct = encoded.dictionary
    parsed = pa.array([parse_date(text) for text in distinct.to_pylist()], pa.int32()).cast(pa.date32())
    values = parsed.take(encoded.indices)
    return values, pc.and_(texts.is_valid(), values.is_null())


def _common_instants(texts: pa.Array, zone_name: str) -> pa.Array | None:
    zoned = pc.ends_with(texts, "Z")
    plain = pc.replace_substring(pc.utf8_rtrim(texts, "Z"), "T", " ")
    try:
        naive = plain.cast(pa.timestamp("us"))
        utc = naive.cast(INSTANT)
        if zone_name == "UTC" or pc.all(zoned).as_py():
            return utc
        # An hour that exists twice when the clock is set back takes the earlier instant, as java.time does in Spark. An
        # hour that is skipped raises, and is resolved one by one.
        local = pc.assume_timezone(naive, zone_name, ambiguous="earliest", nonexistent="raise").cast(INSTANT)
    except pa.ArrowInvalid:
        return None  # a day that no month has, or an hour that was skipped: one by one
    return pc.if_else(zoned, utc, local)


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    name = name.strip()
    if name in {"Z", "UTC", "GMT", "UT"}:
        return UTC
    match = _OFFSET.fullmatch(name)
    if match is None:
        try:
            return ZoneInfo(name)
        except (KeyError, OSError) as error:
            raise ValueError(name) from error
    offset = timedelta(
        hours=int(match["hours"]), minutes=int(match["minutes"] or 0), seconds=int(match["seconds"] or 0)
    )
    # java.time.ZoneOffset ends at 18 hours.
    if offset > timedelta(hours=18):
        raise ValueError(name)
    return timezone(-offset if match["sign"] == "-" else offset)
