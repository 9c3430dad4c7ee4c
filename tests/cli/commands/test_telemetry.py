"""`headrace telemetry` against a broker that real clients' protocol filled: one start of an application with Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from kio.static.primitive import i8, i32
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from tests.broker.consumer_group_member import Member, run_crash
from tests.cli.command_lines import headrace_process
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.cli.commands.telemetry import SUBSCRIPTION
from headrace.cli.telemetry.options import METRICS, REBALANCES
from headrace.client.admin import Admin
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey

BEGIN_MS = 1_700_000_400_000
RECORDING = {
    "headrace.group.history.records": 100,
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.assignment.interval.ms": 0,
    # The entries are years old, by their timestamps.
    "log.retention.check.interval.ms": 2**40,
}


def push(broker: EmbeddedBroker, values: dict[int, int]) -> None:
    """Minute → rebalances: as a client of the group `orders` pushes them."""
    data = MetricsData()
    resource = data.resource_metrics.add()
    resource.resource.attributes.add(key="group_id").value.string_value = "orders"
    metric = resource.scope_metrics.add().metrics.add(name=REBALANCES)
    metric.sum.aggregation_temporality = 1
    for minute, value in values.items():
        end_ns = (BEGIN_MS + minute * 60_000) * 1_000_000
        metric.sum.data_points.add(as_double=value, start_time_unix_nano=end_ns - 60_000_000_000, time_unix_nano=end_ns)
    client = WireClient(int(broker.bootstrap_servers.rpartition(":")[2]), client_id="shop.loader")
    request = m.get_telemetry_subscriptions_request.GetTelemetrySubscriptionsRequest(client_instance_id=uuid.uuid4())
    subscription = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, request)
    assert set(subscription.requested_metrics) == set(METRICS)
    answer = client.call(
        ApiKey.PUSH_TELEMETRY,
        m.push_telemetry_request.PushTelemetryRequest(
            client_instance_id=subscription.client_instance_id,
            subscription_id=i32(subscription.subscription_id),
            terminating=False,
            compression_type=i8(0),
            metrics=data.SerializeToString(),
        ),
    )
    client.close()
    assert answer.error_code.name == "none"


def rows(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(record.value or b"") for record in broker.records(topic)]
    except BrokerError:  # the command has not created it yet
        return []


def test_a_file_of_teams_without_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "teams.csv"
    file.write_text("a,b\n")
    outcome = headrace_process("telemetry", "--teams", str(file))
    assert outcome.code == 2
    assert "needs the columns group and team" in outcome.err


@pytest.mark.spark
@pytest.mark.slow
def test_pushes_and_entries_become_rows_and_alerts(tmp_path: Path) -> None:
    # A recorder's topic from five days after the pushes: a crash, and an entry an hour later that closes the window.
    clock = ManualClock(BEGIN_MS + 5 * 86_400_000)
    with EmbeddedBroker({"in": 4}, data_dir=tmp_path / "data", config=RECORDING, clock=clock) as recording:
        run_crash(recording)
        clock.advance(3_600)
        with Member(recording, "later") as later:
            later.beat()
    with EmbeddedBroker(data_dir=tmp_path / "data", config={"log.retention.ms": -1}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.alter_configs("client-metrics", SUBSCRIPTION, {"metrics": ",".join(METRICS), "interval.ms": "1000"})
        push(broker, {1: 4, 2: 3, 40: 0})
        command = [sys.executable, "-m", "headrace.cli.main", "telemetry", "--subscribe", "1000"]
        command += ["--history", "--standstill-ms", "40000"]
        log = tmp_path / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--bootstrap-server", broker.bootstrap_servers],
                stdout=output,
                stderr=output,
                env={**os.environ, "HEADRACE_STATE_DIR": str(tmp_path / "state")},
            )
        try:
            wait_until(lambda: process.poll() is not None or len(rows(broker, "telemetry-alerts")) >= 2, timeout_s=240)
            assert process.poll() is None, log.read_text()
            (row,), alerts = rows(broker, "telemetry-groups"), rows(broker, "telemetry-alerts")
            (recorded,) = rows(broker, "telemetry-rebalances")
        finally:
            process.terminate()
            process.wait(60)
    assert (row["group_id"], row["team"], row["rebalances"]) == ("orders", "shop", 7.0)
    storm, standstill = sorted(alerts, key=lambda each: str(each["alert"]))
    assert (storm["alert"], storm["source"], storm["value"]) == ("rebalance-storm", "metrics", 42.0)
    assert (standstill["alert"], standstill["source"], standstill["group_id"]) == ("standstill", "recorder", "g")
    # The survivor vanishes too, when nothing beats in the hour that follows.
    assert (recorded["group_id"], recorded["left"], recorded["sessions_expired"]) == ("g", 2, 2)
    assert recorded["partitions_stood_still"] == 4
    assert standstill["value"] == recorded["longest_standstill_ms"]


def test_history_without_a_recorder_is_refused_with_the_fix(broker: EmbeddedBroker) -> None:
    outcome = headrace_process("telemetry", "--history", "--bootstrap-server", broker.bootstrap_servers)
    assert outcome.code == 2
    assert "headrace.group.history.records" in outcome.err
