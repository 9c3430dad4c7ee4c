"""Whether exactly once was kept, read from the topics themselves, as readers of committed records see them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection

from tests.spark.application.processes import records_of

__all__ = ["flights_in", "wrongly_counted"]


def wrongly_counted(bootstrap_servers: str, topic: str, expected: Collection[int], *, name: str = "id") -> list[str]:
    """What is wrong with a topic that holds one row for each flight, in words; nothing when nothing is.

    A row's `times`, where it has one, counts the flight: more than 1 is a repeat, as is a second row.
    """
    rows: Counter[int] = Counter()
    twice: set[int] = set()
    for message in records_of(bootstrap_servers, topic):
        row = json.loads(message.value())
        rows[int(row[name])] += 1
        if row.get("times", 1) != 1:
            twice.add(int(row[name]))
    said = {
        "lost": set(expected) - set(rows),
        "of nobody": set(rows) - set(expected),
        "written twice": {number for number, times in rows.items() if times > 1},
        "counted twice": twice,
    }
    return [f"{topic}: {len(found)} {what}: {sorted(found)[:10]}" for what, found in said.items() if found]


def flights_in(bootstrap_servers: str, topic: str = "flights") -> list[int]:
    """The flights that a topic holds, as often as it holds them."""
    return [int(json.loads(message.value())["id"]) for message in records_of(bootstrap_servers, topic)]
