"""Pictures of the web page of a cluster in Chromium: a streams group, groups, the internals of an application."""

from __future__ import annotations

import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import functions as F
from tests.cli.ui.served_page import PageUnderTest, served_page
from tests.client.running_consumers import RunningConsumer
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS
from tests.harness.browser import Browser
from tests.harness.polling import wait_until
from tests.interop.group_members import Worker, members, topology

from headrace import Admin, DeadLetter, EmbeddedBroker, StreamsApp
from headrace.client.group_offsets import commit_offsets

__all__ = ["photograph_pages"]

GROUP = "flight-delays"
# (file, address, width, height, dark, phone)
PICTURES = (
    ("ui-group.png", f"/group?id={GROUP}&partitions.sort=-lag", 1180, 1010, False, False),
    ("ui-group-dark.png", f"/group?id={GROUP}&partitions.sort=-lag", 1180, 1010, True, False),
    ("ui-group-phone.png", f"/group?id={GROUP}", 390, 844, False, True),
    ("ui-group-phone-dark.png", f"/group?id={GROUP}", 390, 844, True, True),
    ("ui-groups.png", "/groups", 1180, 520, False, False),
)
APPLICATION = "arrivals"
PICTURES_OF_AN_APPLICATION = (
    ("ui-application.png", f"/application?id={APPLICATION}", 1180, 1130, False, False),
    ("ui-application-phone-dark.png", f"/application?id={APPLICATION}", 390, 844, True, True),
)


def photograph_pages(directory: Path) -> list[Path]:
    """Write the pictures; return their paths."""
    with _cluster() as page:
        written = [_photograph(page, directory, *each, awaited="main tbody .spark") for each in PICTURES]
    with _application() as page:
        return written + [
            _photograph(page, directory, *each, awaited="main .graph") for each in PICTURES_OF_AN_APPLICATION
        ]


def _photograph(
    page: PageUnderTest,
    directory: Path,
    name: str,
    address: str,
    width: int,
    height: int,
    dark: bool,
    phone: bool,
    *,
    awaited: str,
) -> Path:
    with Browser(width=width, height=height, dark=dark, mobile=phone) as browser:
        browser.open(page.url + address)
        browser.wait(f"document.querySelector('{awaited}')")
        browser.photograph(directory / name)
    return directory / name


@contextmanager
def _application() -> Iterator[PageUnderTest]:
    """A running application with windows, a late row now and then, and half a minute of records."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker({"flights": 4}, config=STREAMS_GROUPS_WITHOUT_DELAYS))
        page = stack.enter_context(served_page(broker.bootstrap_servers))
        state_dir = stack.enter_context(tempfile.TemporaryDirectory())
        app = StreamsApp(
            APPLICATION,
            bootstrap_servers=broker.bootstrap_servers,
            state_dir=state_dir,
            config={"application.server": "127.0.0.1:0"},
        )
        flights = app.stream("flights", schema="origin string, delay double, at timestamp", on_late=DeadLetter("late"))
        windows = flights.withWatermark("at", "10 seconds").groupBy(F.window("at", "1 minute"), "origin")
        windows.agg(F.count("*").alias("flights"), F.avg("delay").alias("delay"), name="by-minute").to_topic(
            "delays-by-minute", partitions=2
        )
        running = stack.enter_context(app.start())
        begun = time.monotonic()
        for step in itertools.count():
            now = datetime.now(UTC)
            for partition in range(4):
                ages = [90 if (step + number) % 40 == 0 else number % 5 for number in range(60 + 25 * partition)]
                broker.produce(
                    "flights",
                    [
                        json.dumps(
                            {
                                "origin": ("EWR", "JFK", "LGA")[number % 3],
                                "delay": number / 2,
                                "at": (now - timedelta(seconds=age)).isoformat(),
                            }
                        )
                        for number, age in enumerate(ages)
                    ],
                    partition=partition,
                )
            wait_until(lambda: page.watch.collect() is None, "the page collects")
            if time.monotonic() - begun > 40 and running.status["state"] == "running":
                break
            time.sleep(0.3)
        yield page


@contextmanager
def _cluster() -> Iterator[PageUnderTest]:
    """Groups of three types and one that waits for its topic, after a minute of records."""
    topics = {"flights": 6, "orders": 4, "payments": 4}
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(topics, config=STREAMS_GROUPS_WITHOUT_DELAYS))
        admin = stack.enter_context(Admin(broker.bootstrap_servers))
        page = stack.enter_context(served_page(broker.bootstrap_servers))
        common: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers}
        for topic, group, protocol in (("orders", "billing", "consumer"), ("payments", "fraud-check", "classic")):
            config = common | {"group.protocol": protocol, "client.id": f"{group}-1"}
            stack.enter_context(RunningConsumer(topic, group_id=group, config=config))
        workers = stack.enter_context(members(admin, GROUP, "flights", 2))
        waiting = Worker(
            broker.bootstrap_servers, topology("weather-report", "wheather"), "weather-report", "weather-1"
        )
        stack.callback(waiting.close)
        stop = threading.Event()
        thread = threading.Thread(target=_process_flights, args=(broker, admin, workers, stop))
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        for _ in range(40):
            wait_until(lambda: page.watch.collect() is None, "the page collects")
            time.sleep(0.5)
        yield page


def _process_flights(broker: EmbeddedBroker, admin: Admin, workers: list[Worker], stop: threading.Event) -> None:
    """Produce flights, and commit for each member behind them, with a lag that comes and goes."""
    ends = dict.fromkeys(range(6), 0)
    step = 0
    while not stop.wait(0.5):
        step += 1
        for number in ends:
            ends[number] += 20 + 4 * number
            broker.produce("flights", [b"x"] * (20 + 4 * number), partition=number)
        broker.produce("orders", [b"x"] * 30)
        broker.produce("payments", [b"x"] * 12)
        for worker in workers:
            snapshot = worker.member.assignment
            behind = 15 + 25 * abs(step % 20 - 10)
            offsets = {
                ("flights", number): max(0, ends[number] - behind - 9 * number)
                for number in snapshot.active.get("0", ())
            }
            if offsets:
                commit_offsets(
                    admin.client, GROUP, offsets, member_id=snapshot.member_id, member_epoch=snapshot.member_epoch
                )
