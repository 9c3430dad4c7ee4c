"""The web page of a large cluster: a streams group of 1,000 members with 10,000 tasks, and a second group that has
committed 10,000 offsets. One collection (time, CPU), the document of each screen (time, bytes), and the refresh of the
group's screen in Chromium, if there is one. Prints a table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from large_group import Member
from tests.cli.ui.served_page import PageUnderTest, served_page
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS, BrokerEngineProcess
from tests.harness.browser import CHROMIUM, Browser

from headrace.client.admin import Admin
from headrace.client.group_offsets import commit_offsets

GROUP = "large"
TOPIC = "in"
ROUNDS = 5


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--members", type=int, default=1_000)
    options.add_argument("--partitions", type=int, default=10_000)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    settings = {
        **STREAMS_GROUPS_WITHOUT_DELAYS,
        "group.streams.max.size": 1_000_000,
        # Members do not beat while the page is measured.
        "group.streams.max.session.timeout.ms": 3_600_000,
        "group.streams.session.timeout.ms": 3_600_000,
    }
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        broker = BrokerEngineProcess(Path(directory), settings=settings).start()
        stack.callback(broker.kill)
        with Admin(broker.bootstrap_servers, api_timeout_ms=120_000) as admin:
            fill(admin, chosen.members, chosen.partitions)
        with served_page(broker.bootstrap_servers, timeout_ms=120_000) as page:
            found = {"members": chosen.members, "partitions": chosen.partitions, **measure(page)}
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<34}{value:>14,.3f}" if isinstance(value, float) else f"{name:<34}{value:>14,}")
    return 0


def fill(admin: Admin, count: int, partitions: int) -> None:
    """Let the members join and settle, and commit an offset for every partition twice."""
    admin.create_topics({TOPIC: partitions})
    admin.alter_offsets("idle", {(TOPIC, number): 0 for number in range(partitions)})
    members = [Member(member_id=f"member-{number:06}") for number in range(count)]
    unsettled = True
    while unsettled:
        unsettled = False
        for member in members:
            answer = admin.client.call_coordinator(GROUP, member.next_request(), lambda r: (r.error_code,))
            unsettled = member.take(answer) or unsettled
    for member in members:
        own = {(TOPIC, int(number)): 0 for tasks in member.owned for number in tasks.partitions}
        commit_offsets(admin.client, GROUP, own, member_id=member.member_id, member_epoch=member.epoch)


def measure(page: PageUnderTest) -> dict[str, Any]:
    """Return the figures; the first collection, which loads code, does not count."""
    page.watch.collect()
    walls, cpus = [], []
    for _ in range(ROUNDS):
        began, cpu = time.perf_counter(), cpu_seconds()
        error = page.watch.collect()
        walls.append(time.perf_counter() - began)
        cpus.append(cpu_seconds() - cpu)
        if error is not None:
            raise error
    found: dict[str, Any] = {
        "collection_seconds": median(walls),
        "collection_cpu_seconds": median(cpus),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    for name, path, query in (
        ("overview", "/api/overview", {}),
        ("groups", "/api/groups", {}),
        ("group", "/api/group", {"id": GROUP}),
        ("group_by_lag", "/api/group", {"id": GROUP, "partitions.sort": "-lag", "members.sort": "-lag"}),
        ("topic", "/api/topic", {"name": TOPIC}),
    ):
        first = timed(lambda path=path, query=query: page.get(path, query, Accept_Encoding="gzip"))  # type: ignore[misc]
        again = timed(lambda path=path, query=query: page.get(path, query, Accept_Encoding="gzip"))  # type: ignore[misc]
        found[f"{name}_document_ms"] = first[0]
        found[f"{name}_again_ms"] = again[0]
        found[f"{name}_bytes"] = int(first[1].headers["content-length"])
    if CHROMIUM is not None:
        found["group_refresh_in_browser_ms"] = browser_refresh(page)
    return found


def timed(get: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = get()
    return (time.perf_counter() - began) * 1000, answer


def browser_refresh(page: PageUnderTest) -> float:
    """Return the ms from the request of a new frame's document until it is drawn, in the median."""
    with Browser() as browser:
        browser.open(f"{page.url}/group?id={GROUP}")
        measured = "performance.getEntriesByName('refresh').at(-1)"
        browser.wait(f"{measured}?.duration")
        times = []
        for _ in range(ROUNDS):
            last = browser.run(f"{measured}.startTime")
            page.watch.collect()
            browser.wait(f"{measured}.startTime > {last}")
            times.append(float(browser.run(f"{measured}.duration")))
        return median(times)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
