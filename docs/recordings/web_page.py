"""Pictures of the web page of a cluster: a streams group in Chromium, on a desktop and a phone, light and dark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cli.ui.served_page import PageUnderTest, served_page
from tests.client.running_consumers import RunningConsumer
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS
from tests.harness.browser import Browser
from tests.harness.polling import wait_until
from tests.interop.group_members import Worker, members, topology

from headrace import Admin, EmbeddedBroker
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


def photograph_pages(directory: Path) -> list[Path]:
    """Write the pictures; return their paths."""
    written = []
    with _cluster() as page:
        for name, address, width, height, dark, phone in PICTURES:
            with Browser(width=width, height=height, dark=dark, mobile=phone) as browser:
                browser.open(page.url + address)
                browser.wait("document.querySelector('main tbody .spark')")
                browser.photograph(directory / name)
                written.append(directory / name)
    return written


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
