"""Two applications on a broker without streams groups share their tasks in a classic group; one is killed."""

from __future__ import annotations

import runpy
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.chaos.chaos import judge
from tests.chaos.world import PROGRAM as CHAOS_PROGRAM
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.polling import wait_until
from tests.longer import longer
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import PROGRAMS, Application, BrokerProcess, Feed, caught_up, send_flights

from headrace import StreamsApp
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.protocol_choice import has_classic_members

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

GROUP = "each-flight"
TASKS = 8  # 4 that read flights, 4 that read the repartition topic

broker = broker_fixture(
    {"flights": 4},
    config={**CLASSIC_GROUPS_WITHOUT_DELAYS, "group.coordinator.rebalance.protocols": "classic,consumer"},
)


def test_two_applications_share_and_one_is_killed(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark  # the program takes the active session
    servers, sink = broker.bootstrap_servers, f"{GROUP}-counted"
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", servers)
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "a"))
    app: StreamsApp = runpy.run_path(str(PROGRAMS / "each_flight.py"))["app"]
    findings = {finding.code: finding for finding in app.check()}
    assert "turned off" in findings["classic-protocol"].message
    assert findings["group"].level == "ok"

    strict = StreamsApp(GROUP, group_protocol="streams")
    strict.stream("flights", value="string").to_topic("copy", partitions=1)
    refused = {finding.code: finding for finding in strict.check()}["streams-protocol-off"]
    assert (refused.level, 'group_protocol="auto"' in refused.fix) == ("problem", True)

    other = Application("each_flight.py", servers, tmp_path / "b")
    with Admin(servers) as admin, Feed(servers, 4) as feed, app.start() as running:
        try:
            feed.run(300)
            other.start()
            # The feed goes on: batches of tasks that stay are committed across the generations of a move.
            wait_until(lambda: len(running.tasks) == other.open_tasks == TASKS // 2, "shared", other, timeout_s=240)
            assert has_classic_members(admin.client, GROUP)
            assert {finding.code: finding.level for finding in app.check()}["group"] == "ok"
            killed_s = time.monotonic()
            other.kill()
            wait_until(lambda: len(running.tasks) == TASKS, "all tasks at the survivor", other, timeout_s=240)
            moved_s = time.monotonic() - killed_s
            print(f"\nall tasks open at the survivor {moved_s:.2f} s after the kill")
            assert moved_s < 20, "the guardian told the group; nobody waited for the session timeout of 45 s"
            sent = feed.stop()
            running.processAllAvailable()
        finally:
            other.end()
    assert wrongly_counted(servers, sink, range(sent)) == []
    verdict = app.verify()
    assert (verdict.status, verdict.records) == ("equal", sent)


@longer
def test_an_application_changes_from_classic_to_streams_and_back(tmp_path: Path) -> None:
    """All instances are stopped for each change; counts and sums go on from the state of the other kind."""
    off = {**CLASSIC_GROUPS_WITHOUT_DELAYS, "group.coordinator.rebalance.protocols": "classic,consumer"}
    for number, kind in enumerate(("classic", "streams", "classic")):
        with BrokerProcess(tmp_path / "data", off if kind == "classic" else {}) as broker:
            servers = broker.bootstrap_servers
            application = Application(str(CHAOS_PROGRAM), servers, tmp_path / "a")
            with Admin(servers) as admin:
                if number == 0:
                    admin.create_topics({"flights": 4})
                send_flights(servers, range(number * 200, number * 200 + 200), 4)
                application.start()
                try:
                    is_done = partial(caught_up, admin, "chaos")
                    wait_until(is_done, f"caught up in a {kind} group", application, timeout_s=240)
                    assert admin.describe_streams_groups(["chaos"])["chaos"].group_type == kind
                    assert application.stop() == 0
                finally:
                    application.end()
            assert judge(broker, number * 200 + 200) == []
