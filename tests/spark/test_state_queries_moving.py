"""Queries while instances come, are killed and leave: a row, or "moving", and never a row from before."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.harness import polling
from tests.longer import longer
from tests.spark.application.processes import (
    Application,
    BrokerProcess,
    Feed,
    active_tasks,
    broker_with_flights,
    caught_up,
    group,
    newest,
)

from headrace import StateQuery
from headrace.client.admin import Admin
from headrace.errors import StateError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign, longer]

GROUP = "queried-flights"
NUMBERS = 50
WITHIN_S = 400
wait_until = partial(polling.wait_until, timeout_s=WITHIN_S)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_with_flights(tmp_path / "data") as running:
        yield running


class Asker:
    """Thread that asks for one key after another. Exactly once, a committed count never goes back."""

    def __init__(self, servers: str, feed: Feed) -> None:
        self._servers, self._feed = servers, feed
        self._over = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.seen: dict[int, int] = {}
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with StateQuery(self._servers, GROUP, store="counts", timeout_ms=2_000) as query:
            number = 0
            while not self._over.is_set():
                number = (number + 1) % NUMBERS
                try:
                    row = query.get(number).row
                except StateError as error:
                    self.outcomes[error.code] += 1
                    if error.code != "state-moving":
                        self.wrong.append(str(error))
                    continue
                except Exception as error:
                    self.wrong.append(repr(error))
                    continue
                self.check(number, row["flights"] if row is not None else 0, "StateQuery")
                self._ask_directly(query, number)

    def _ask_directly(self, query: StateQuery, number: int) -> None:
        """Ask each instance that the group knows, whether it has the task or not."""
        for member in query._members:
            connection = http.client.HTTPConnection(member.endpoint.host, member.endpoint.port, timeout=5)
            try:
                connection.request("GET", f"/v1/stores/counts/key?key={number}")
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                self.outcomes["no answer"] += 1
                continue
            finally:
                connection.close()
            self.outcomes[str(response.status)] += 1
            if response.status == http.client.OK:
                rows = json.loads(body)["rows"]
                self.check(number, rows[0]["flights"] if rows else 0, str(member.endpoint))
            elif response.status not in (307, 503):
                self.wrong.append(f"{response.status} {body[:200]!r}")

    def check(self, number: int, count: int, where: str) -> None:
        self.outcomes["rows"] += 1
        if count < self.seen.get(number, 0):
            self.wrong.append(f"{where}: {number} has {count} after {self.seen[number]}")
        sent = (self._feed.next - number + NUMBERS - 1) // NUMBERS
        if count > sent:
            self.wrong.append(f"{where}: {number} has {count}, and {sent} were sent")
        self.seen[number] = max(self.seen.get(number, 0), count)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)


def test_rows_never_go_back_while_instances_come_and_are_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    names = ("a", "b", "c")
    a, b, c = (Application("queried_flights.py", broker.bootstrap_servers, tmp_path / name) for name in names)
    asker = None
    try:
        with Admin(broker.bootstrap_servers) as admin, Feed(broker.bootstrap_servers, 4) as feed:

            def owned() -> list[int]:
                return sorted(active_tasks(group(admin, GROUP)).values())

            feed.run(500)
            a.start()
            wait_until(lambda: owned() == [8], "one has all", a, broker)
            asker = Asker(broker.bootstrap_servers, feed)
            wait_until(lambda: len(asker.seen) == NUMBERS, "answers", a, broker)
            b.start()
            wait_until(lambda: owned() == [4, 4], "two share", a, b, broker)
            wait_until(lambda: b.open_tasks == 4, "the second works", b, broker)
            time.sleep(5)
            answered = asker.outcomes["rows"]
            b.kill()
            wait_until(lambda: owned() == [8], "one has all again", a, broker)
            wait_until(lambda: asker.outcomes["rows"] > answered + 500, "answers after the kill", a, broker)
            c.start()
            wait_until(lambda: owned() == [4, 4], "two share again", a, c, broker)
            wait_until(lambda: c.open_tasks == 4, "the third works", c, broker)
            assert a.stop() == 0
            wait_until(lambda: owned() == [8], "the third has all", c, broker)
            answered = asker.outcomes["rows"]
            wait_until(lambda: asker.outcomes["rows"] > answered + 500, "answers after the stop", c, broker)
            feed.stop()
            wait_until(lambda: caught_up(admin, GROUP), "caught up", c, broker)
            asker.stop()
            assert asker.wrong == []
            topic = {row["number"]: row["flights"] for row in newest(broker.bootstrap_servers, "counts").values()}
            with StateQuery(broker.bootstrap_servers, GROUP, store="counts") as query:
                wait_until(
                    lambda: {row["number"]: row["flights"] for row in query.scan().to_pylist()} == topic, "equal", c
                )
                for number in range(NUMBERS):
                    row = query.get(number).row
                    assert row is not None
                    assert row["flights"] == topic[number]
            assert c.stop() == 0
            print(f"\n{dict(asker.outcomes)}")
            assert asker.outcomes["307"] > 0
    finally:
        if asker is not None:
            asker.stop()
        for instance in (a, b, c):
            instance.end()
