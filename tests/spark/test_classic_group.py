"""Two applications on a broker without streams groups share their tasks in a classic group; one is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS
from tests.harness.polling import wait_until
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import PROGRAMS, Application, BrokerProcess, Feed, headrace

from headrace.client.admin import Admin
from headrace.client.protocol_choice import has_classic_members

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

GROUP = "each-flight"
PROGRAM = "each_flight.py"
TASKS = 8  # 4 that read flights, 4 that read the repartition topic
WITHOUT_STREAMS = {
    **CLASSIC_GROUPS_WITHOUT_DELAYS,
    "group.coordinator.rebalance.protocols": "classic,consumer",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", WITHOUT_STREAMS) as running:
        with Admin(running.bootstrap_servers) as admin:
            admin.create_topics({"flights": 4})
        yield running


def test_two_applications_share_and_one_is_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    servers = broker.bootstrap_servers
    with ExitStack() as ends, Admin(servers) as admin, Feed(servers, 4) as feed:
        feed.run(300)
        first, second = (Application(PROGRAM, servers, tmp_path / name) for name in "ab")
        for each in (first, second):
            ends.callback(each.end)
        first.start()
        wait_until(lambda: first.open_tasks == TASKS, "all tasks open", first, broker, timeout_s=240)
        second.start()
        # The feed goes on: batches of tasks that stay are committed across the generations of the two phases.
        wait_until(
            lambda: first.open_tasks == second.open_tasks == TASKS // 2, "shared", first, second, broker, timeout_s=240
        )
        assert has_classic_members(admin.client, GROUP)

        killed_s = time.monotonic()
        second.kill()
        wait_until(lambda: first.open_tasks == TASKS, "all tasks at the survivor", first, broker, timeout_s=240)
        print(f"\nall tasks open at the survivor {time.monotonic() - killed_s:.2f} s after the kill")
        sent = feed.stop()
        wait_until(lambda: _committed(admin) >= sent, "caught up", first, broker, timeout_s=240)
        assert first.stop() == 0
    sink = f"{GROUP}-counted"
    wait_until(lambda: not wrongly_counted(servers, sink, range(sent)), "each flight once", timeout_s=60)
    out = headrace("verify", str(PROGRAMS / PROGRAM), "--bootstrap-server", servers, "--json")
    assert out.returncode == 0, out.stdout.decode() + out.stderr.decode()
    verdict = json.loads(out.stdout)
    assert (verdict["records"], verdict["waiting"]) == (sent, 0)
    assert [(each["lost"], each["missing"], each["repeated"]) for each in verdict["sinks"]] == [(0, 0, 0)]


def _committed(admin: Admin) -> int:
    return sum(offset for (topic, _), offset in admin.committed_offsets(GROUP).items() if topic == "flights")
