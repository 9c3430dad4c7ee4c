"""The plugin as a test author meets it: pytest in a process of its own, in a directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import BrokerError

pytestmark = pytest.mark.slow

HEAVY = {"pyarrow", "numpy", "numba", "pandas", "pyspark", "py4j", "lmdb"}


def run_pytest(directory: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (directory / "test_it.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            "-q",
            *arguments,
        ],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def outcomes(done: subprocess.CompletedProcess[str], **expected: int) -> None:
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    for what, count in expected.items():
        assert f"{count} {what}" in last, done.stdout + done.stderr
    assert ("failed" in last, "error" in last) == ("failed" in expected, "error" in expected), done.stdout


FIXTURES = """
import pytest
from headrace import HeadraceError as BrokerError
from headrace.testing import ManualClock

made = []
pytestmark = pytest.mark.kafka_broker(topics={"of-module": 1})

def test_a_fresh_broker(kafka_broker):
    kafka_broker.produce("of-module", [b"1"])
    assert [record.value for record in kafka_broker.records("of-module")] == [b"1"]

@pytest.mark.kafka_broker(topics={"orders": 3}, config={"num.partitions": 2})
def test_another_one_as_the_mark_wants_it(kafka_broker):
    kafka_broker.produce("made-by-producing", ["x"])
    assert kafka_broker.records("orders") == []
    with pytest.raises(Exception, match="no topic of-module"):
        kafka_broker.records("of-module")

@pytest.mark.kafka_broker(clock=ManualClock(5_000))
def test_a_clock(kafka_broker):
    kafka_broker.clock.advance(seconds=1)
    assert kafka_broker.clock.now_ms() == 6_000

@pytest.mark.parametrize("number", [1, 2])
def test_names_of_ones_own(kafka_session_broker, kafka_topic, kafka_group, number):
    name = kafka_topic(2, configs={"retention.ms": "1000"})
    assert name.startswith("test_names_of_ones_own-") and name != kafka_topic()
    assert kafka_group() != kafka_group()
    kafka_session_broker.produce(name, ["a", "b"])
    assert {record.partition for record in kafka_session_broker.records(name)} == {0, 1}
    for earlier in made:
        with pytest.raises(BrokerError, match="no topic"):
            kafka_session_broker.records(earlier)
    made.append(name)

def test_topics_on_the_tests_own_broker(kafka_broker, kafka_topic):
    kafka_broker.produce(kafka_topic(), ["x"])

def test_what_a_test_leaves_behind(kafka_session_broker):
    kafka_session_broker.faults.fail("Metadata", "NOT_CONTROLLER")
    kafka_session_broker.kill()

def test_does_not_meet_the_next_one(kafka_session_broker):
    assert kafka_session_broker.running and not kafka_session_broker.faults.active
"""


def test_the_fixtures(tmp_path: Path) -> None:
    outcomes(run_pytest(tmp_path, FIXTURES), passed=8)


def test_an_invalid_mark_is_an_error(tmp_path: Path) -> None:
    program = "import pytest\n@pytest.mark.kafka_broker(topic='x')\ndef test_it(kafka_broker): pass\n"
    done = run_pytest(tmp_path, program)
    outcomes(done, error=1)
    assert "The mark is written as kafka_broker(topics=None" in done.stdout


def test_against_a_cluster_elsewhere(tmp_path: Path) -> None:
    program = """
import pytest
from headrace.testing import ManualClock

@pytest.mark.kafka_broker(topics={"mine": 2})
def test_the_same_test(kafka_broker):
    kafka_broker.produce("mine", [{"id": n} for n in range(4)], key=lambda value: str(value["id"]), timestamp_ms=7)
    records = kafka_broker.records("mine")
    assert sorted(record.value for record in records) == [b'{"id":%d}' % n for n in range(4)]
    assert {record.timestamp_ms for record in records} == {7}
    assert kafka_broker.port == int(kafka_broker.bootstrap_servers.split(":")[1])

def test_on_the_shared_one(kafka_session_broker, kafka_topic, kafka_group):
    name = kafka_topic(3)
    kafka_session_broker.produce(name, ["x", None], key=b"k")
    assert [record.value for record in kafka_session_broker.records(name)] == [b"x", None]

def test_faults(kafka_broker):
    kafka_broker.faults.fail("Fetch", "NOT_COORDINATOR")

def test_kill(kafka_session_broker):
    kafka_session_broker.kill()

@pytest.mark.kafka_broker(clock=ManualClock())
def test_clock(kafka_broker): ...

@pytest.mark.kafka_broker(config={"num.partitions": 2})
def test_settings(kafka_broker): ...

@pytest.mark.kafka_broker(topics={"somebodys": 1})
def test_what_is_somebodys(kafka_broker): ...
"""
    with EmbeddedBroker(topics={"somebodys": 1}) as broker:
        done = run_pytest(tmp_path, program, f"--kafka={broker.bootstrap_servers}", "-rs")
        outcomes(done, passed=2, skipped=4, error=1)
        assert "somebodys exists on" in done.stdout
        assert broker.records("somebodys") == []
        assert "this test injects faults, which needs a broker of its own: run it without --kafka" in done.stdout
        assert "asks for a clock" in done.stdout
        with pytest.raises(BrokerError, match="no topic mine"):
            broker.records("mine")


def test_a_cluster_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        nobody = broker.bootstrap_servers
    done = run_pytest(tmp_path, "def test_it(kafka_topic): kafka_topic()\n", f"--kafka={nobody}")
    assert done.returncode == 1
    assert nobody in done.stdout


def test_switched_off(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "def test_it(kafka_broker): pass\n", "-p", "no:headrace")
    assert "fixture 'kafka_broker' not found" in done.stdout


def modules_of(directory: Path, program: str, *arguments: str) -> set[str]:
    (directory / "conftest.py").write_text(
        "import json, pathlib, sys\n"
        "def pytest_unconfigure():\n"
        "    pathlib.Path('modules.json').write_text(json.dumps(sorted(sys.modules)))\n"
    )
    done = run_pytest(directory, program, *arguments)
    outcomes(done, passed=1)
    return set(json.loads((directory / "modules.json").read_text()))


def test_loading_the_plugin_imports_nothing_but_itself(tmp_path: Path) -> None:
    """What stands between a run with the plugin and one without are its own three modules."""
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    program = "def test_it(): pass\n"
    loaded = modules_of(tmp_path / "with", program)
    plain = modules_of(tmp_path / "without", program, "-p", "no:headrace")
    mine = {"headrace", "headrace.version", "headrace.testing", "headrace.testing.plugin"}
    assert loaded - plain == mine


def test_pytest_does_not_compile_the_broker_anew(tmp_path: Path) -> None:
    """It would for the sake of asserts, in each run where nothing may be cached, and take longer than the start."""
    program = (
        "import sys\n"
        "def test_it(kafka_broker):\n"
        "    ours = [module for name, module in sys.modules.items() if name.startswith('headrace.broker.')]\n"
        "    assert len(ours) > 20\n"
        "    assert {type(module.__spec__.loader).__name__ for module in ours} == {'SourceFileLoader'}\n"
    )
    outcomes(run_pytest(tmp_path, program), passed=1)


def test_a_broker_in_a_test_needs_the_base_install_only(tmp_path: Path) -> None:
    program = (
        "def test_it(kafka_broker, kafka_topic):\n"
        "    name = kafka_topic(2)\n"
        "    kafka_broker.produce(name, [{'a': 1}], key='a')\n"
        "    assert len(kafka_broker.records(name)) == 1\n"
        "    kafka_broker.faults.fail('Fetch', 'NOT_LEADER_OR_FOLLOWER')\n"
        "    kafka_broker.group('nobody')\n"
    )
    loaded = modules_of(tmp_path, program, "-p", "no:xdist")
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


def test_with_workers(tmp_path: Path) -> None:
    program = (
        "import pytest\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_it(kafka_session_broker, kafka_topic, number):\n"
        "    kafka_session_broker.produce(kafka_topic(), ['x'])\n"
    )
    outcomes(run_pytest(tmp_path, program, "-n", "2"), passed=4)
