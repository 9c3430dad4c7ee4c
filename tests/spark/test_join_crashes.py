"""kill -9 of an application that joins two streams, at points of its commit path: each order is paid once.

A payment follows 200 records behind its order, so it comes in another micro-batch, often after a crash: only the
store, undone or restored to what was committed, has the order.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.longer import LONG
from tests.spark.application.crash_points import CrashFile, crash_at
from tests.spark.application.crashing import DRIVER_POINTS, WORKER_POINTS
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import PROGRAMS, Application, BrokerProcess, Feed, caught_up

from headrace.client.admin import Admin

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

GROUP = "paid-orders"
APART = 200  # records between an order and its payment
WORK_BETWEEN = 2 * APART
PARTITIONS = 2
OF_TABLES = {"after EndTxn, before the table is told", "in the table's commit", "a part of the table was written"}
ALL_POINTS = [point for point in (*WORKER_POINTS, *DRIVER_POINTS) if point not in OF_TABLES]
POINTS = ALL_POINTS if LONG else ["in the undo of a store"]


def is_payment(number: int) -> bool:
    return number // APART % 2 == 1


class Orders(Feed):
    """A feed of orders, and of the payment of each."""

    def send(self, number: int) -> None:
        pays = is_payment(number)
        row = {"id": number - APART, "paid": number} if pays else {"id": number, "n": number}

        def told(error: Any, _message: Any) -> None:
            if error is not None:
                self.failed.append(f"{number}: {error}")

        topic = "payments" if pays else "orders"
        self._producer.produce(topic, value=json.dumps(row).encode(), partition=number % PARTITIONS, on_delivery=told)
        self.next = max(self.next, number + 1)
        self._producer.poll(0)


def test_each_order_is_paid_once(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    path = f"{PROGRAMS}:{Path.cwd()}:{Path.cwd() / 'src'}"
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        application = Application(
            "crashing_orders.py", servers, tmp_path / "a", CRASH_FILE=str(crash.path), PYTHONPATH=path
        )
        with Admin(servers) as admin, Orders(servers, PARTITIONS) as feed:
            admin.create_topics({"orders": PARTITIONS, "payments": PARTITIONS}, replication_factor=1)
            application.start()
            feed.run(per_second=200)
            try:
                for point in ("nowhere", *POINTS):
                    if point != "nowhere":
                        crash_at(point, application, crash, broker)
                    at = committed(admin)
                    if application.has_ended:
                        application.start()
                    reached = partial(has_committed, admin, at + WORK_BETWEEN)
                    wait_until(reached, f"at work again after: {point}", application, broker)
                sent = feed.stop()
                wait_until(lambda: caught_up(admin, GROUP), "caught up", application, broker)
                assert application.stop() == 0
            finally:
                application.end()
        paid = {number - APART for number in range(sent) if is_payment(number)}
        assert wrongly_counted(servers, "paid", paid) == []


def committed(admin: Admin) -> int:
    return sum(admin.committed_offsets(GROUP).values())


def has_committed(admin: Admin, more_than: int) -> bool:
    return committed(admin) > more_than
