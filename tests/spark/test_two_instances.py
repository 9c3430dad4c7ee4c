"""`headrace run --instances 2`, as a user starts it: the two share the tasks, and a graceful stop repeats nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.polling import wait_until
from tests.longer import longer
from tests.spark.application.processes import (
    PROGRAMS,
    Application,
    BrokerProcess,
    Feed,
    active_tasks,
    broker_with_flights,
    caught_up,
    descendants,
    group,
    group_state,
    headrace,
    still_alive,
)

from headrace.client.admin import Admin

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.foreign,
    # The demo shares and kills, the short chaos stops and kills, the backfill of test_run has two instances.
    longer,
]

PROGRAM = str(PROGRAMS / "flight_delays.py")
GROUP = "flight-delays"


class Run:
    """`headrace run … --instances 2` as a child."""

    def __init__(self, broker: BrokerProcess, directory: Path) -> None:
        directory.mkdir()
        self.log = directory / "log"
        command = [sys.executable, "-m", "headrace.cli.main", "run", PROGRAM, "--instances", "2"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--bootstrap-server", broker.bootstrap_servers],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HEADRACE_STATE_DIR": str(directory / "state"), "MASTER": "local[2]"},
                start_new_session=True,
            )

    def end(self) -> None:
        left = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for entry in still_alive(left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, 9)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_with_flights(tmp_path / "data") as running:
        yield running


def test_a_pair_comes_shares_goes_and_nothing_is_repeated(broker: BrokerProcess, tmp_path: Path) -> None:
    pair = Run(broker, tmp_path / "pair")
    third = Application("flight_delays.py", broker.bootstrap_servers, tmp_path / "third")
    try:
        with Admin(broker.bootstrap_servers) as admin, Feed(broker.bootstrap_servers, 4) as feed:

            def owned() -> list[int]:
                return sorted(active_tasks(group(admin, GROUP)).values())

            feed.run(500)
            wait_until(lambda: owned() == [4, 4], "4 + 4 tasks", pair, broker)
            third.start()
            wait_until(lambda: owned() == [2, 3, 3], "three share", pair, third, broker)
            wait_until(lambda: third.open_tasks in (2, 3), "the third works", pair, third, broker)

            family = descendants(pair.process.pid)
            assert len(family) > 8, "two drivers with guardians, JVMs and workers"
            pair.process.terminate()
            assert pair.process.wait(120) == 0, pair.log.read_text()[-3000:]
            wait_until(lambda: not still_alive(family), "all of the pair gone", pair)
            wait_until(
                lambda: active_tasks(group(admin, GROUP)) == {third.member_id: 8}, "the third has all", third, broker
            )
            sent = feed.stop()
            wait_until(lambda: caught_up(admin, GROUP), "caught up", third, broker)
            assert third.stop() == 0, third.log.read_text()[-3000:]
            wait_until(lambda: group_state(admin, GROUP) == "Empty", "empty", third, broker)
    finally:
        pair.end()
        third.end()
    out = headrace("verify", PROGRAM, "--bootstrap-server", broker.bootstrap_servers, "--json")
    verdict = json.loads(out.stdout)
    assert out.returncode == 0, verdict
    assert (verdict["status"], verdict["records"]) == ("equal", sent), "tasks moved twice, and nothing was repeated"
    print(f"\n{sent} records, two moves: {verdict['status']}")
