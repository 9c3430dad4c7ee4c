"""`headrace run`: instances as processes, the keys of its table, and what it says when they fail. Starts Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.command_lines import headrace_process
from tests.cli.run_processes import PROGRAM
from tests.longer import longer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@longer
def test_a_backfill_by_two_instances_then_verify(program: Path, broker: EmbeddedBroker) -> None:
    broker.produce("flights", [json.dumps({"origin": origin}).encode() for origin in ["JFK", "EWR", "JFK"] * 50])
    at = {"HEADRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    ran = headrace_process("run", str(program), "--instances", "2", "--until", "caught-up", timeout=240, **at)
    assert ran.code == 0, ran.err
    assert ran.out == ""
    newest = {record.key: json.loads(record.value or b"{}")["count"] for record in broker.records("counts")}
    assert newest == {b"JFK": 100, b"EWR": 50}
    assert {path.name for path in (program.parent / "state" / "counts-app").iterdir()} == {"A", "B"}
    broker.produce("counts", [b'{"origin": "JFK", "count": 7}'], key=b"JFK")
    differs = headrace_process("verify", str(program), "--json", timeout=240, **at)  # equal: the README's test
    assert differs.code == 4
    assert json.loads(differs.out)["status"] == "differs"


def test_an_instance_that_fails_says_why(program: Path) -> None:
    program.write_text(PROGRAM.replace(", partitions=2", ""))
    with EmbeddedBroker(topics={"flights": 1}) as broker:
        outcome = headrace_process("run", str(program), "--bootstrap-server", broker.bootstrap_servers, timeout=240)
    assert outcome.code == 1
    assert "error[topic-missing]" in outcome.err
    assert "Traceback" not in outcome.err
    unreachable = headrace_process("run", str(program), "--bootstrap-server", "127.0.0.1:1", timeout=240)
    assert unreachable.code == 3
    assert "error[broker-unreachable]" in unreachable.err


def test_dev_refuses_to_start_a_broker_elsewhere(program: Path) -> None:
    outcome = headrace_process("run", str(program), "--dev", "--bootstrap-server", "192.0.2.1:9092")
    assert outcome.code == 1
    assert "--dev starts a broker on this machine only" in outcome.err
