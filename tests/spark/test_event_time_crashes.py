"""kill -9 of an application in event time at points of its commit path: each click and each window leaves once.

A duplicate follows 200 clicks behind the first one, so it comes in another micro-batch, often after a crash: only the
store, undone or restored to what was committed, knows that it is one. Windows of five seconds close by the watermarks
of four source tasks, which travel through a repartition topic: a lost, repeated or premature one shows in their counts.
Every 50th click is followed by one of the day before, which each operator writes to the topic of late records once.
Clicks are numbered in the order of their times, as far as the watermarks have come.
All of them are counted by the rest of their number, and these counts again by how high they are: a change that is lost
or repeated leaves a group that should be gone, or counts a rest twice.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from tests.harness.values import not_none
from tests.longer import LONG
from tests.spark.application.crash_points import CrashFile, crash_while_fed, crashing_application
from tests.spark.application.crashing import DRIVER_POINTS, WORKER_POINTS
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import (
    BrokerProcess,
    Feed,
    records_of,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

GROUP = "unique-clicks"
APART = 200  # clicks between the first one and its duplicate
WORK_BETWEEN = 2 * APART
PARTITIONS = 4
START = datetime(2026, 1, 1, tzinfo=UTC)
PER_SECOND = 20  # clicks in a second of event time
FIRST_LATE, LATE_EACH = 200, 50  # number of the first click that a late one follows, and how often one does
WINDOW_S = DELAY_S = 5
OF_TABLES = {"after EndTxn, before the table is told", "in the table's commit", "a part of the table was written"}
ALL_POINTS = [point for point in (*WORKER_POINTS, *DRIVER_POINTS) if point not in OF_TABLES]
POINTS = (
    ALL_POINTS if LONG else ["in the undo of a store", "after TxnOffsetCommit, before EndTxn", "worker, while opening"]
)


def id_of(number: int) -> int:
    return number - APART if number // APART % 2 else number


class Clicks(Feed):
    """A feed of clicks, each of which comes twice, and of late ones."""

    def send(self, number: int) -> None:
        click_id = id_of(number)
        clicks = [{"id": click_id, "n": number, "at": (START + timedelta(seconds=number / PER_SECOND)).isoformat()}]
        if number in late_numbers(number + 1):
            clicks.append({"id": -number, "n": number, "at": (START - timedelta(days=1)).isoformat()})
        for click in clicks:
            self._produce(number, click, click_id % PARTITIONS)


def test_each_click_and_each_window_leaves_once(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        application = crashing_application(servers, tmp_path / "a", crash, program="crashing_clicks.py")
        with Clicks(servers, PARTITIONS, topic="clicks") as feed:
            topics = {"clicks": PARTITIONS}
            sent = crash_while_fed(
                POINTS, application, crash, broker, feed, group=GROUP, topics=topics, work_between=WORK_BETWEEN
            )
        assert wrongly_counted(servers, "unique", {id_of(number) for number in range(sent)}) == []
        assert windows_of(servers) == closed_windows(sent)
        assert numbers_of(servers) == numbered_clicks(sent)
        assert groups_of(servers) == counts_of_counts(sent)
        letters = late_records(servers)
        assert len(set(letters)) == len(letters), "no operator writes a record twice"
        assert sorted(number for number, _ in letters) == sorted([*late_numbers(sent)] * 3)


def late_numbers(sent: int) -> range:
    """The clicks that a late one follows."""
    return range(FIRST_LATE, sent, LATE_EACH)


def late_records(servers: str) -> list[tuple[int, bytes]]:
    """Number of each late click that was kept aside, and the reason, which names the operator."""
    found = []
    for message in records_of(servers, "late"):
        headers: dict[str, Any] = dict(cast("list[tuple[str, Any]]", not_none(message.headers())))
        found.append((json.loads(not_none(message.value()))["n"], headers["headrace.reason"]))
    return found


def groups_of(servers: str) -> dict[int, tuple[int, int]]:
    """Number of rests and their sum, by how often each was counted, as the table has them at the end."""
    table: dict[int, tuple[int, int]] = {}
    for message in sorted(records_of(servers, "groups"), key=lambda one: (one.partition(), one.offset())):
        times = json.loads(not_none(message.key()))["times"]
        row = json.loads(message.value() or b"null")
        table.pop(times, None)
        if row is not None:
            table[times] = (row["rests"], row["total"])
    return table


def counts_of_counts(sent: int) -> dict[int, tuple[int, int]]:
    """The same of the clicks that were sent."""
    times = Counter(number % 50 for number in (*range(sent), *late_numbers(sent)))
    found: dict[int, tuple[int, int]] = {}
    for rest, count in times.items():
        rests, total = found.get(count, (0, 0))
        found[count] = (rests + 1, total + rest)
    return found


def windows_of(servers: str) -> list[tuple[str, int, int]]:
    """Start, clicks and total of each window that left, as often as it left."""
    rows = [json.loads(not_none(message.value())) for message in records_of(servers, "windows")]
    starts = [datetime.fromisoformat(row["window"]["start"]).isoformat() for row in rows]
    return sorted((start, row["clicks"], row["total"]) for start, row in zip(starts, rows, strict=True))


def newest_of_partitions(sent: int) -> list[int]:
    """The newest click of each partition."""
    return [max(n for n in range(sent) if id_of(n) % PARTITIONS == partition) for partition in range(PARTITIONS)]


def closed_windows(sent: int) -> list[tuple[str, int, int]]:
    """The same of all windows that end at or before the least watermark of the partitions."""
    per_window = WINDOW_S * PER_SECOND
    complete = int((min(newest_of_partitions(sent)) / PER_SECOND - DELAY_S) // WINDOW_S)
    return [
        (
            (START + timedelta(seconds=WINDOW_S * window)).isoformat(),
            per_window,
            sum(range(window * per_window, (window + 1) * per_window)),
        )
        for window in range(complete)
    ]


def numbers_of(servers: str) -> list[tuple[int, int, int]]:
    """Each click that left in its order: itself, how many of its rest there were, and the sum of the last four."""
    rows = [json.loads(not_none(message.value())) for message in records_of(servers, "numbered")]
    return sorted((row["n"], row["number"], row["last"]) for row in rows)


def numbered_clicks(sent: int) -> list[tuple[int, int, int]]:
    """The same of all clicks that are older than the least watermark of the partitions."""
    passed = min(newest_of_partitions(sent)) - DELAY_S * PER_SECOND
    return [(n, n // 10 + 1, sum(range(n, max(n - 40, -1), -10))) for n in range(passed)]
