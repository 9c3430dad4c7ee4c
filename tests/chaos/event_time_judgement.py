"""Recomputation of the rows of `chaos_windows_app` and `chaos_timers_app` from the flights' numbers, without Spark.

A row that is final must be there once; a row whose window may be open need not be there, and must be right if it is.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from tests.harness.values import not_none
from tests.spark.application.processes import flight, records_of

__all__ = ["TIMERS", "WINDOWS", "Rows", "time_ms", "visits", "watermark_ms", "wrong_in_event_time", "wrong_rows"]

PARTITIONS = 4
DELAY_MS, SECOND_MS = 2000, 1000
Rows = Mapping[Any, int]  # row → when it is final, as event time in ms
Topics = Mapping[str, tuple[Callable[[Collection[int]], Rows], Callable[[dict[str, Any]], Any]]]  # and a record's row


def time_ms(number: int) -> int:
    """Return the event time of a flight."""
    return number * 50 + number // 1000 * 60_000


def watermark_ms(flights: Collection[int]) -> int:
    """Return the watermark behind these flights: the least of all partitions."""
    newest = [-DELAY_MS] * PARTITIONS
    for number in flights:
        newest[number % PARTITIONS] = max(newest[number % PARTITIONS], time_ms(number))
    return min(newest) - DELAY_MS


def windows(flights: Collection[int]) -> Rows:
    """Rows (start, origin, flights, delays) of tumbling windows of ten seconds."""
    found: dict[tuple[int, str], list[object]] = defaultdict(lambda: [0, None])
    for number in flights:
        one = flight(number)
        row = found[time_ms(number) // 10_000 * 10_000, one["origin"]]
        row[0] = int(str(row[0])) + 1
        if one["dep_delay"] is not None:
            row[1] = float(str(row[1] or 0)) + one["dep_delay"]
    return {(*key, *row): key[0] + 10_000 for key, row in found.items()}


def busiest(flights: Collection[int]) -> Rows:
    """Rows (start, gate, flights) of the gates with the most flights of each five seconds; ties stay."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for number in flights:
        counts[time_ms(number) // 5000 * 5000][number % 7] += 1
    return {
        (start, gate, count): start + 5000
        for start, gates in counts.items()
        for gate, count in gates.items()
        if count == max(gates.values())
    }


def sessions(flights: Collection[int]) -> Rows:
    """Rows (start, end, visitor, flights) of sessions with gaps of at most ten seconds."""
    found: list[list[int]] = []
    newest: dict[int, list[int]] = {}
    for number in sorted(flights):
        at, visitor = time_ms(number), number % 40
        session = newest.get(visitor)
        if session is None or at > session[1]:
            session = newest[visitor] = [at, at, visitor, 0]
            found.append(session)
        session[1], session[3] = at + 10_000, session[3] + 1
    # A session closes when the watermark is after its end.
    return {tuple(session): session[1] + 1 for session in found}


def joined(flights: Collection[int]) -> Rows:
    """Rows (id, carrier) of even flights: the carrier of the next flight, if that one landed."""
    there = set(flights)
    rows: dict[Any, int] = {}
    for number in sorted(there):
        if number % 2 == 0:
            lands = number + 1 in there and (number + 1) % 5 != 0
            carrier = flight(number + 1)["carrier"] if lands else None
            # Without a partner, a row waits until landings have passed the last time at which one could come.
            rows[number, carrier] = time_ms(number + 1) if lands else time_ms(number) + SECOND_MS + 1
    return rows


def visits(flights: Collection[int]) -> Rows:
    """Rows (start, visitor, flights, delays, number of the visitor's timer) of the processor."""
    sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0, 0.0])
    for number in sorted(flights):
        row = sums[number % 40, time_ms(number) // 10_000 * 10_000]
        row[0] += 1
        row[1] += flight(number)["dep_delay"] or 0.0
    fired: Counter[int] = Counter()
    rows: dict[Any, int] = {}
    for (visitor, start), (count, delays) in sorted(sums.items()):
        rows[start, visitor, count, delays, fired[visitor]] = start + 10_000
        fired[visitor] += 1
    return rows


def wrong_in_event_time(bootstrap_servers: str, flights: Collection[int], topics: Topics) -> list[str]:
    """Return what is wrong with the topics of a program, in words."""
    closed = watermark_ms(flights)
    landings = watermark_ms([number for number in flights if number % 2 == 1 and number % 5 != 0] or [0])
    found: list[str] = []
    for topic, (expected, row_of) in topics.items():
        rows = Counter(row_of(row) for row in _rows(bootstrap_servers, topic))
        found += wrong_rows(topic, rows, expected(flights), landings if topic == "chaos-joined" else closed)
    return found


def wrong_rows(topic: str, rows: Mapping[Any, int], expected: Rows, final_ms: int) -> list[str]:
    """Return what is wrong with the rows of a topic, which are counted, in words."""
    faults = {
        "lost": {row for row, end in expected.items() if end <= final_ms} - set(rows),
        "wrong": set(rows) - set(expected),
        "written more than once": {row for row, times in rows.items() if times > 1},
    }
    return [f"{topic}: {len(them)} rows {what}: {sorted(them, key=str)[:10]}" for what, them in faults.items() if them]


def _rows(bootstrap_servers: str, topic: str) -> Iterator[dict[str, Any]]:
    for message in records_of(bootstrap_servers, topic):
        yield json.loads(not_none(message.value()))


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


WINDOWS: Topics = {
    "chaos-windows": (windows, lambda row: (row["start"], row["origin"], row["flights"], row.get("delays"))),
    "chaos-busiest": (busiest, lambda row: (_ms(row["window"]["start"]), row["gate"], row["flights"])),
    "chaos-sessions": (
        sessions,
        lambda row: (
            _ms(row["session_window"]["start"]),
            _ms(row["session_window"]["end"]),
            row["visitor"],
            row["flights"],
        ),
    ),
    "chaos-joined": (joined, lambda row: (row["id"], row.get("carrier"))),
}
TIMERS: Topics = {
    "chaos-visits": (
        visits,
        lambda row: (row["start"], row["visitor"], row["flights"], row["delays"], row["number"]),
    ),
}
