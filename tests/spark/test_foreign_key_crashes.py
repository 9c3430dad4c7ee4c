"""kill -9 of an application that joins two tables by a foreign key, at points of its commit path.

Orders move to other customers all the time, and customers change. In the end each order has the newest row of its last
customer, as if nothing had died.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.longer import longer
from tests.spark.application.crash_points import CrashFile, crash_while_fed, crashing_application
from tests.spark.application.processes import BrokerProcess, Feed, newest
from tests.spark.test_join_crashes import ALL_POINTS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign, longer]

GROUP = "named-orders"
ORDERS, CUSTOMERS, PARTITIONS = 60, 13, 2
WORK_BETWEEN = 300


def record(number: int) -> tuple[str, dict[str, Any], int]:
    """Return topic, row and key of a record: all records of a key go to one partition."""
    if number % 3 == 0:
        customer = number * 7 % CUSTOMERS
        return "customers", {"customer_id": customer, "n": number}, customer
    order = number * 11 % ORDERS
    # The last customer has no row.
    return "orders", {"id": order, "n": number, "customer": number * 5 % (CUSTOMERS + 1)}, order


class References(Feed):
    """A feed of orders and customers."""

    def send(self, number: int) -> None:
        topic, row, key = record(number)
        self._produce(number, row, key % PARTITIONS, topic)


def expected(sent: int) -> dict[int, tuple[int, int | None]]:
    """Return for each order its newest change, and the newest one of its customer."""
    orders: dict[int, tuple[int, int]] = {}
    customers: dict[int, int] = {}
    for number in range(sent):
        topic, row, key = record(number)
        if topic == "orders":
            orders[key] = number, row["customer"]
        else:
            customers[key] = number
    return {key: (number, customers.get(customer)) for key, (number, customer) in orders.items()}


def test_each_order_has_the_row_of_its_last_customer(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        application = crashing_application(servers, tmp_path / "a", crash, program="crashing_references.py")
        with References(servers, PARTITIONS) as feed:
            topics = {"orders": PARTITIONS, "customers": PARTITIONS}
            sent = crash_while_fed(
                ALL_POINTS, application, crash, broker, feed, group=GROUP, topics=topics, work_between=WORK_BETWEEN
            )
        found = {row["id"]: (row["changed"], row.get("named")) for row in newest(servers, "named").values()}
        assert found == expected(sent)
