"""kill -9 of an application with two top-Ns at points of its commit path: its topics hold what one batch would give.

A bid that is processed twice would be twice among the first ones, one that is lost would be missing, and a deletion
that is lost would leave a row that nothing replaces.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.longer import LONG, longer
from tests.spark.application.crash_points import CrashFile, crash_while_fed, crashing_application
from tests.spark.application.crashing import DRIVER_POINTS, WORKER_POINTS
from tests.spark.application.processes import BrokerProcess, Feed, records_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign, longer]

GROUP = "top-bids"
AUCTIONS, PARTITIONS, WORK_BETWEEN = 60, 4, 400
OF_TABLES = {"after EndTxn, before the table is told", "in the table's commit", "a part of the table was written"}
POINTS = [point for point in (*WORKER_POINTS, *DRIVER_POINTS) if point not in OF_TABLES] if LONG else []


def bid(number: int) -> dict[str, int]:
    """Prices that grow, so that rows leave all the time, in steps, so that some are equal."""
    return {"auction": number % AUCTIONS, "price": number // 700 + number * 37 % 3, "n": number}


class Bids(Feed):
    """A feed of bids, in partitions that have nothing to do with their auctions."""

    def send(self, number: int) -> None:
        self._produce(number, bid(number), number * 7 % PARTITIONS)


def expected(sent: int) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """(auction, position) → number of the bid, of the first three, and of all that share the best price."""
    top: dict[tuple[int, int], int] = {}
    best: dict[tuple[int, int], int] = {}
    for auction in range(min(sent, AUCTIONS)):
        mine = sorted(map(bid, range(auction, sent, AUCTIONS)), key=lambda one: (-one["price"], one["n"]))
        top |= {(auction, at): one["n"] for at, one in enumerate(mine[:3], start=1)}
        share = [one for one in mine if one["price"] == mine[0]["price"]]
        best |= {(auction, at): one["n"] for at, one in enumerate(share, start=1)}
    return top, best


def newest(bootstrap_servers: str, topic: str, position: str) -> tuple[dict[tuple[int, int], int], int]:
    """(auction, position) → number of the bid, and how many deletions the topic holds."""
    found: dict[tuple[int, int], int] = {}
    deletions = 0
    for message in records_of(bootstrap_servers, topic):
        key = json.loads(message.key() or b"")
        where = key["auction"], key[position]
        value = message.value()
        if value is None:
            deletions += 1
            del found[where]
        else:
            found[where] = json.loads(value)["n"]
    return found, deletions


def test_the_first_rows_of_each_key_survive_kills(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        application = crashing_application(servers, tmp_path / "a", crash, program="crashing_ranks.py")
        with Bids(servers, PARTITIONS, topic="bids") as feed:
            topics = {"bids": PARTITIONS}
            crash_while_fed(
                POINTS, application, crash, broker, feed, group=GROUP, topics=topics, work_between=WORK_BETWEEN
            )
        top, best = expected(feed.next)
        assert newest(servers, "top", "rn") == (top, 0)
        found, deletions = newest(servers, "best", "row_number")
        assert found == best
        assert deletions > AUCTIONS
