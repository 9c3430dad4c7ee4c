"""kill -9 of an application that joins two streams, at points of its commit path: each order is paid once.

In event time, an order that is not paid within 400 s leaves once by itself, when all partitions have passed that.

A payment follows 200 records behind its order, so it comes in another micro-batch, often after a crash: only the
store, undone or restored to what was committed, has the order.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.longer import LONG, longer
from tests.spark.application.crash_points import CrashFile, crash_while_fed, crashing_application
from tests.spark.application.crashing import DRIVER_POINTS, WORKER_POINTS
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import BrokerProcess, Feed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

GROUP = "paid-orders"
APART = 200  # records between an order and its payment
WORK_BETWEEN = 2 * APART
PATIENCE = 400  # seconds of event time; a record takes one second
PARTITIONS = 2
OF_TABLES = {"after EndTxn, before the table is told", "in the table's commit", "a part of the table was written"}
ALL_POINTS = [point for point in (*WORKER_POINTS, *DRIVER_POINTS) if point not in OF_TABLES]
POINTS = ALL_POINTS if LONG else ["in the undo of a store"]


def is_payment(number: int) -> bool:
    return number // APART % 2 == 1


def pays(number: int) -> bool:
    """Whether a payment is one of an order; the others move time on."""
    return number % 7 != 3


def unpaid(sent: int) -> set[int]:
    """The orders whose time is over in event time, of the first `sent` records."""
    last = [max(n for n in range(sent) if is_payment(n) and n % PARTITIONS == p) for p in range(PARTITIONS)]
    over = min(last) - 1 - PATIENCE
    return {n for n in range(sent) if not is_payment(n) and n < over and not pays(n + APART)}


class Orders(Feed):
    """A feed of orders, and of the payment of each, or of most."""

    leaves_out = False

    def send(self, number: int) -> None:
        is_order = not is_payment(number)
        order = -1 if self.leaves_out and not pays(number) else number - APART
        row = {"id": number, "n": number} if is_order else {"id": order, "paid": number}
        self._produce(number, row, number % PARTITIONS, "orders" if is_order else "payments")


@pytest.mark.parametrize("in_event_time", [False, pytest.param(True, marks=longer)], ids=["for-ever", "in-event-time"])
def test_each_order_is_paid_once(tmp_path: Path, in_event_time: bool) -> None:
    crash = CrashFile(tmp_path / "crash")
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        variables = {"IN_EVENT_TIME": "1"} if in_event_time else {}
        application = crashing_application(servers, tmp_path / "a", crash, program="crashing_orders.py", **variables)
        with Orders(servers, PARTITIONS) as feed:
            feed.leaves_out = in_event_time
            topics = {"orders": PARTITIONS, "payments": PARTITIONS}
            sent = crash_while_fed(
                POINTS, application, crash, broker, feed, group=GROUP, topics=topics, work_between=WORK_BETWEEN
            )
        paid = {number - APART for number in range(sent) if is_payment(number)}
        if in_event_time:
            alone = unpaid(sent)
            assert len(alone) > 20
            paid = {number for number in paid if pays(number + APART)} | alone
        assert wrongly_counted(servers, "paid", paid) == []
