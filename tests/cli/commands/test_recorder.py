"""`headrace recorder` as a process: it records what happens while it runs, and ends when it is asked to."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.cli.command_lines import Command
from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.doctor.recorded_history import read_history
from headrace.client.admin import Admin


def test_a_group_is_recorded_until_the_command_is_ended(broker: EmbeddedBroker) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "recorder", "--interval", "0.2"]
    process = subprocess.Popen(
        [*command, "--bootstrap-server", broker.bootstrap_servers], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"Recording the groups of {broker.bootstrap_servers}")
        with Admin(broker.bootstrap_servers) as admin:
            config: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "reader"}
            with RunningConsumer("flights", group_id="recorded", config=config) as reader:
                wait_until(lambda: len(reader.assigned) == 4, "it has everything")
                wait_until(lambda: bool(read_history(admin, "recorded")), "the join is recorded")
            # The leave may come after the last look: the end takes one more.
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            kinds = [(entry.kind, entry.client_id) for entry in read_history(admin, "recorded")]
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    assert ("joined", "reader") in kinds
    assert ("left", "reader") in kinds


def test_without_a_cluster_it_ends_with_a_remedy(headrace: Command) -> None:
    outcome = headrace("recorder", "--bootstrap-server", "127.0.0.1:1")
    assert outcome.code == 3
    assert "error[broker-unreachable]" in outcome.err
