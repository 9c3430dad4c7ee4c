"""`APP` on the command line, and what the settings of the command line do to it. Starts Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.command_lines import headrace_process
from tests.longer import longer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
from pyspark.sql import functions as F
from headrace import StreamsApp
import words

app = StreamsApp({name!r})
app.stream("flights", schema=words.SCHEMA).groupBy("origin").count().to_topic("counts", partitions=2)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "words.py").write_text('SCHEMA = "origin string"\n')
    (tmp_path / "flights.py").write_text(PROGRAM.format(name="flights-app"))
    (tmp_path / "two.py").write_text(PROGRAM.format(name="one") + "other = StreamsApp('two')\n")
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("x = 1\ny = undefined\n")
    return tmp_path


def test_describe_a_file_and_one_of_its_applications(directory: Path) -> None:
    described = headrace_process("describe", str(directory / "flights.py"))
    assert described.code == 0, described.err
    assert described.err == f"Starting Spark for {directory / 'flights.py'} …\n"  # Spark's greeting went elsewhere
    assert "application flights-app" in described.out
    named = headrace_process("describe", f"{directory / 'two.py'}:app", "--json")
    assert json.loads(named.out)
    assert named.err == ""


@pytest.mark.parametrize(
    ("application", "code", "words"),
    [
        ("two.py", "app-missing", "several StreamsApps: app, other"),
        pytest.param("two.py:third", "app-missing", "no StreamsApp called third", marks=longer),
        ("none.py", "app-missing", "no StreamsApp"),
        ("broken.py", "user-code", "NameError: name 'undefined' is not defined"),
    ],
)
def test_application_errors(directory: Path, application: str, code: str, words: str) -> None:
    outcome = headrace_process("describe", str(directory / application))
    assert outcome.code == 1
    first, _, rest = outcome.err.partition("\n")
    assert first.startswith("Starting Spark for ")
    assert rest.startswith(f"error[{code}]: ")
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    if code == "user-code":
        assert "broken.py:2  y = undefined" in outcome.err


def test_check_tells_problems_and_a_broker_that_is_not_there(directory: Path) -> None:
    with EmbeddedBroker(topics={"flihgts": 2}) as broker:
        outcome = headrace_process(
            "check", str(directory / "flights.py"), "--bootstrap-server", broker.bootstrap_servers
        )
        assert outcome.code == 1
        assert 'did you mean "flihgts"?' in outcome.out
        assert f"flights-app has 1 problem on {broker.bootstrap_servers}" in outcome.out
    outcome = headrace_process("check", str(directory / "flights.py"), "--bootstrap-server", "127.0.0.1:1", "--json")
    assert outcome.code == 3
    assert "broker-unreachable" in [finding["code"] for finding in json.loads(outcome.out)]
