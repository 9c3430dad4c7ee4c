"""Moments and durations as Kafka's tools take them: `2026-11-21T06:00:00.000` (UTC unless said otherwise), `P1DT2H`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

__all__ = ["duration_ms", "moment_ms"]

_DURATION = re.compile(
    r"(?P<sign>[-+])?P(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?=[-+\d.])(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE,
)
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000}


def moment_ms(text: str) -> int:
    """Milliseconds since 1970. Raises click.UsageError."""
    try:
        if "T" not in text:
            raise ValueError
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to-datetime takes YYYY-MM-DDThh:mm:ss.sss, UTC or with an offset (…Z, …+02:00), not {text!r}."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days and less. Raises click.UsageError."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found[unit] for unit in ("days", "hours", "minutes", "seconds")):
        raise click.UsageError(f"--by-duration takes PnDTnHnMnS, such as PT30M or P1DT12H, not {text!r}.")
    whole = sum(int(found[unit] or 0) * size for unit, size in _UNITS_MS.items())
    whole += round(float((found["seconds"] or "0").replace(",", ".")) * 1000)
    return -whole if found["sign"] == "-" else whole
