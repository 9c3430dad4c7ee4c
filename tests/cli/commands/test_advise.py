"""`headrace advise` as it is called: files in both forms, what it writes, what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.advice.advise import TEMPLATES, template
from headrace.cli.advice.given_configuration import GivenConfiguration, corrected_text
from headrace.client.client_settings import parse_properties
from headrace.client.consumer.consumer_settings import ConsumerConfiguration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command_lines import Command
    from tests.harness.commands import CommandResult

ORDERS = """# The team's settings
bootstrap.servers=kafka:9092
session.timeout.ms = 10000
heartbeat.interval.ms=3000
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="a" password="secret";
auto.offset.reset=earliest
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "consumer.properties"
    path.write_text(ORDERS)
    path.chmod(0o600)
    return path


@pytest.fixture
def run(headrace: Command) -> Callable[..., CommandResult]:
    return lambda *arguments: headrace("advise", *map(str, arguments))


def test_a_file_is_advised_and_corrected(run: Callable[..., CommandResult], file: Path) -> None:
    result = run(file, "--group", "classic", "--worst-batch", "400s", "--longest-pause", "8s")
    assert result.code == 0
    assert "session.timeout.ms=10000" in result.out
    assert "→ 60000" in result.out
    assert "the member leaves in the middle of it" in result.out
    written = file.with_name("consumer.advised.properties")
    assert f"Wrote {written}." in result.err
    assert written.stat().st_mode & 0o777 == 0o600
    text = written.read_text()
    assert "# The team's settings\n" in text
    assert "# was: session.timeout.ms = 10000\nsession.timeout.ms=60000\n" in text
    assert parse_properties(text)["sasl.jaas.config"] == parse_properties(ORDERS)["sasl.jaas.config"]
    assert "secret" not in result.out + result.err
    again = run(file, "--group", "classic")
    assert again.code == 0  # over what it has written itself


def test_only_a_check(run: Callable[..., CommandResult], file: Path) -> None:
    result = run(file, "--group", "classic", "--check", "--json")
    assert result.code == 4
    document = json.loads(result.out)
    assert {finding["rule"] for finding in document["findings"]} == {"session-timeout", "eager-assignor"}
    assert document["written"] is None
    assert document["stage"] == 1
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_json_keeps_the_types_of_what_stays(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    path = tmp_path / "client.json"
    path.write_text('{"statistics.interval.ms": 1000, "enable.auto.commit": true, "session.timeout.ms": 5000}')
    assert run(path).code == 0
    assert json.loads((tmp_path / "client.advised.json").read_text()) == {
        "statistics.interval.ms": 1000,
        "enable.auto.commit": True,
        "session.timeout.ms": 45000,
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.auto.offset.store": False,
    }


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", "[1]", "no object of settings"),
        ("a.json", '{"a": {"b": 1}}', "no plain value"),
        ("a.json", "{", "it is no JSON"),
        ("a.json", "[" * 100_000, "it is no JSON"),
        ("a.properties", "x=" + "y" * 1_000_001, "larger than a megabyte"),
    ],
)
def test_files_that_cannot_be_read(
    run: Callable[..., CommandResult], tmp_path: Path, name: str, text: str, told: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    result = run(path)
    assert result.code == 1
    assert told in result.err


def test_bytes_that_are_no_text(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in run(path).err


def test_errors_in_a_file_are_findings(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text("session.timeout.ms=60s\nsession.time.out.ms=1\nclient.id=a\nclient.id=b\n")
    rules = [finding["rule"] for finding in json.loads(run(path, "--check", "--json").out)["findings"]]
    assert {"no-number", "mistyped-setting", "written-twice"} <= set(rules)


def test_it_writes_over_nothing_of_others(run: Callable[..., CommandResult], file: Path) -> None:
    other = file.with_name("other.properties")
    other.write_text("mine=1\n")
    result = run(file, "--output", other)
    assert result.code == 2
    assert "was not written by this command" in result.err
    assert other.read_text() == "mine=1\n"
    assert run(file, "--output", file).code == 2
    assert file.read_text() == ORDERS


def test_it_writes_over_no_json_of_others(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    mine, other = tmp_path / "a.json", tmp_path / "other.json"
    mine.write_text('{"enable.auto.commit": "true", "session.timeout.ms": "6000", "max.poll.interval.ms": "5000"}')
    other.write_text('{"mine": 1}')
    assert run(mine, "--output", other).code == 2
    assert other.read_text() == '{"mine": 1}'
    assert run(mine, "--output", mine).code == 2
    for _ in range(2):  # over what the command wrote before
        assert run(mine).code == 0
    assert json.loads((tmp_path / "a.advised.json").read_text()) != json.loads(mine.read_text())


def test_wrong_usage(run: Callable[..., CommandResult], file: Path) -> None:
    assert run().code == 2
    assert "no duration" in run(file, "--worst-batch", "soon").err
    assert "no size" in run(file, "--state-size", "much").err


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_printed_and_taken_by_our_consumer(run: Callable[..., CommandResult], name: str) -> None:
    printed = parse_properties(run("--template", name).out)
    assert printed == template(name, "java").values
    ours = {key: value for key, value in printed.items() if not value.startswith("org.apache")}
    assert ConsumerConfiguration(ours, environment={})["auto.offset.reset"] == "earliest"


@pytest.mark.foreign
@pytest.mark.parametrize("name", TEMPLATES)
def test_librdkafka_takes_the_templates(run: Callable[..., CommandResult], name: str) -> None:
    from confluent_kafka import Consumer

    values = parse_properties(run("--template", name, "--client", "librdkafka").out)
    Consumer({"group.id": "g", "bootstrap.servers": "", **values}).close()


NAMES = st.text(st.characters(categories=["L", "N"], include_characters="._-"), min_size=1)
ODD = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028\u2029"))


@settings(max_examples=50)
@given(
    values=st.dictionaries(NAMES, ODD, max_size=5),
    changed=st.dictionaries(NAMES, st.from_regex(r"[0-9]+", fullmatch=True)),
)
def test_a_corrected_file_says_what_the_correction_is(values: dict[str, str], changed: dict[str, str]) -> None:
    text = "".join(f"# about it\n{name}={_escaped(value)}\n" for name, value in values.items())
    before = GivenConfiguration(client="java", values=parse_properties(text))
    after = before.with_values({**changed, **dict.fromkeys(list(values)[:1], None)})
    assert parse_properties(corrected_text(text, before, after)) == after.values


def _escaped(value: str) -> str:
    return value.strip().replace("\\", "\\\\")
