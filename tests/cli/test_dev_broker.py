"""The development broker of `--dev`: who starts it, who stops it, and that a failure leaves it up. No Spark."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.cli.command_lines import headrace_process

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli import dev_broker
from headrace.cli.dev_broker import DevBroker, SampleFeed, generated_days, rest_of
from headrace.cli.instances import answers, free_port

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"127.0.0.1:{free_port('127.0.0.1')}"


def is_up(address: str) -> bool:
    host, _, port = address.partition(":")
    return answers(host, int(port))


FAILING_RUN = """
import sys
from headrace.cli.dev_broker import DevBroker
broker = DevBroker.open(sys.argv[1])
print(flush=True)
input()
broker.leave_running()
"""


def test_a_broker_that_was_left_running_is_taken_over(address: str) -> None:
    command = [sys.executable, "-c", FAILING_RUN, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        beside = DevBroker.open(address)  # a second run while the first one lives
        beside.stop()
        assert is_up(address)
        _, err = first.communicate(b"\n", timeout=30)
    assert re.search(rf"still runs at {address} \(process \d+\)", err.decode())
    second = DevBroker.open(address)
    assert not second.started
    second.stop()
    assert not is_up(address)


def test_a_broker_of_somebody_else_is_left_alone(address: str) -> None:
    with EmbeddedBroker() as broker:
        found = DevBroker.open(broker.bootstrap_servers)
        found.stop()
        assert is_up(broker.bootstrap_servers)


def test_a_program_that_fails_leaves_the_broker_up(address: str, tmp_path: Path) -> None:
    """So that the advised fix can be applied; the next run stops it."""
    (tmp_path / "flights.py").write_text("raise ValueError('not yet')\n")
    try:
        failed = headrace_process("run", "flights.py", "--dev", "--bootstrap-server", address, "--sample", "flights")
        assert failed.code == 1
        assert "error[user-code]" in failed.err
        assert f"still runs at {address}" in failed.err
        created = headrace_process("topics", "--create", "--topic", "more", "--bootstrap-server", address)
        assert created.code == 0
        listed = headrace_process("topics", "--list", "--bootstrap-server", address)
        assert {"flights", "more"} <= set(listed.out.split())
    finally:
        DevBroker.open(address).stop()
    assert not is_up(address)


def test_ctrl_c_while_the_program_is_loaded_ends_the_run_well(address: str, tmp_path: Path) -> None:
    (tmp_path / "flights.py").write_text("import pathlib, time\npathlib.Path('loading').touch()\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "headrace.cli.main", "run", "flights.py", "--dev", "--bootstrap-server", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        while not (tmp_path / "loading").exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 0, err
    assert not is_up(address)


def test_sample_needs_dev() -> None:
    refused = headrace_process("run", "flights.py", "--sample", "flights")
    assert refused.code == 2
    assert "--sample needs --dev" in refused.err


def test_sample_records_continue_where_an_earlier_run_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_broker, "_has_year", lambda: False)
    monkeypatch.setattr("headrace.cli.demo.replay.DAY_SECONDS", 0.0)
    flights = [value for day in generated_days() for value in day.values]
    with EmbeddedBroker() as broker:
        for _ in range(2):
            feed = SampleFeed(broker.bootstrap_servers, partitions=2)
            feed.create_topic()
            if not broker.records("flights"):
                broker.produce("flights", flights[:75])
            else:
                feed.start()
        while len(broker.records("flights")) < len(flights):
            time.sleep(0.05)
        feed.stop()
        assert sorted(record.value or b"" for record in broker.records("flights")) == sorted(flights)


def test_sample_records_are_all_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_broker, "_has_year", lambda: False)
    flights = [value for day in generated_days() for value in day.values]
    with EmbeddedBroker() as broker:
        for _ in range(2):  # the second run finds nothing left to send
            feed = SampleFeed(broker.bootstrap_servers, partitions=2, at_once=True)
            feed.create_topic()
            feed.send_all()
            feed.start()
            feed.stop()
            assert sorted(record.value or b"" for record in broker.records("flights")) == sorted(flights)


def test_an_application_that_ends_when_caught_up_finds_the_whole_sample(address: str, tmp_path: Path) -> None:
    """Its end is decided by the topics' ends at its start; the records must be there by then."""
    (tmp_path / "flights.py").write_text("raise ValueError('read later')\n")
    run = ("run", "flights.py", "--dev", "--bootstrap-server", address, "--sample", "flights", "--until", "caught-up")
    try:
        headrace_process(*run)
        again = headrace_process(*run)
        sent = re.search(r"flights: ([\d,]+) .*, all before the application starts; the first ([\d,]+) are", again.err)
        assert sent is not None, again.err
        assert sent[1] == sent[2]
    finally:
        DevBroker.open(address).stop()


def test_generated_flights_fit_the_readme() -> None:
    flights = [json.loads(value) for day in generated_days() for value in day.values]
    assert {flight["origin"] for flight in flights} == {"EWR", "JFK", "LGA"}
    assert {type(flight["dep_delay"]) for flight in flights} == {int, type(None)}
    assert [len(day.values) for day in rest_of(generated_days(), 75)][:2] == [25, 50]
    assert rest_of(generated_days(), len(flights)) == ()
