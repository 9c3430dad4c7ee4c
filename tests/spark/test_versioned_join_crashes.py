"""kill -9 of an application that joins orders with the price of their time, at points of its commit path.

Each order leaves once, with the newest price of its item that is not newer than the order, as if nothing had died.
An order waits for the prices of all partitions, so it often leaves after a crash, from a store that was undone or
restored.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.harness.values import not_none
from tests.longer import longer
from tests.spark.application.crash_points import CrashFile, crash_while_fed, crashing_application
from tests.spark.application.processes import BrokerProcess, Feed, records_of
from tests.spark.test_join_crashes import ALL_POINTS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign, longer]

GROUP = "priced-orders"
ITEMS, PARTITIONS = 11, 2
WORK_BETWEEN = 400


def is_price(number: int) -> bool:
    """Whether a record is a price; every partition of both topics gets records all the time."""
    return number // PARTITIONS % 3 == 0


def item_of(number: int) -> int:
    """Return the item of a record; the last item has no price."""
    return number * 5 % ITEMS if is_price(number) else number * 7 % (ITEMS + 1)


class Prices(Feed):
    """A feed of orders and of prices, one second of event time apart."""

    def send(self, number: int) -> None:
        if is_price(number):
            topic, row = "prices", {"product": item_of(number), "price": number}
        else:
            topic, row = "orders", {"id": number, "item": item_of(number)}
        self._produce(number, row, number % PARTITIONS, topic)


def expected(sent: int) -> dict[int, int | None]:
    """Return the price of each order. A price is the number of its record, which is its time too."""
    newest: dict[int, int] = {}
    priced: dict[int, int | None] = {}
    for number in range(sent):
        if is_price(number):
            newest[item_of(number)] = number
        else:
            priced[number] = newest.get(item_of(number))
    return priced


def test_each_order_leaves_once_with_the_price_of_its_time(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        application = crashing_application(servers, tmp_path / "a", crash, program="crashing_prices.py")
        with Prices(servers, PARTITIONS) as feed:
            topics = {"orders": PARTITIONS, "prices": PARTITIONS}
            sent = crash_while_fed(
                ALL_POINTS, application, crash, broker, feed, group=GROUP, topics=topics, work_between=WORK_BETWEEN
            )
        rows = [json.loads(not_none(message.value())) for message in records_of(servers, "priced")]
    found = {row["id"]: row.get("price") for row in rows}
    assert len(found) == len(rows), "a row left twice"
    # The last orders still wait for a price of each partition that is newer.
    passed = min(max(n for n in range(sent) if is_price(n) and n % PARTITIONS == p) for p in range(PARTITIONS)) - 1
    wanted = expected(sent)
    assert {number: price for number, price in found.items() if number < passed} == {
        number: price for number, price in wanted.items() if number < passed
    }
    assert all(wanted[number] == price for number, price in found.items())
