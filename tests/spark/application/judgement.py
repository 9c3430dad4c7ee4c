"""Whether exactly once was kept, read from the topics themselves, as readers of committed records see them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection

from tests.harness.values import not_none
from tests.spark.application.processes import flight, newest, records_of

__all__ = ["flights_in", "rows_of_flights", "wrong_sums", "wrongly_counted"]


def wrongly_counted(bootstrap_servers: str, topic: str, expected: Collection[int], *, name: str = "id") -> list[str]:
    """What is wrong with a topic that holds one row for each flight, in words; nothing when nothing is.

    A row's `times`, where it has one, counts the flight: more than 1 is a repeat, as is a second row.
    """
    rows = rows_of_flights(bootstrap_servers, topic, name=name)
    said = {
        "lost": set(expected) - set(rows),
        "of nobody": set(rows) - set(expected),
        "written more than once, or counted otherwise than once": {
            number for number, times in rows.items() if times > 1
        },
    }
    return [f"{topic}: {len(found)} {what}: {sorted(found)[:10]}" for what, found in said.items() if found]


def rows_of_flights(bootstrap_servers: str, topic: str, *, name: str = "id") -> Counter[int]:
    """How often each flight was told; a row that counts it otherwise than once is told more than once."""
    rows: Counter[int] = Counter()
    for message in records_of(bootstrap_servers, topic):
        row = json.loads(not_none(message.value()))
        rows[int(row[name])] += 1 if row.get("times", 1) == 1 else 2
    return rows


def wrong_sums(bootstrap_servers: str, topic: str, flights: Collection[int]) -> list[str]:
    """What is wrong with a topic that holds count and sum of the delays by origin; sums of halves are exact."""
    expected: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for one in map(flight, flights):
        if one["dep_delay"] is not None:
            expected[one["origin"]][0] += 1
            expected[one["origin"]][1] += one["dep_delay"]
    found = {key: [row["flights"], row["delays"]] for key, row in newest(bootstrap_servers, topic).items()}
    return [] if found == expected else [f"{topic}: {found} instead of {dict(expected)}"]


def flights_in(bootstrap_servers: str, topic: str = "flights") -> list[int]:
    """The flights that a topic holds, as often as it holds them."""
    return [int(json.loads(not_none(message.value()))["id"]) for message in records_of(bootstrap_servers, topic)]
