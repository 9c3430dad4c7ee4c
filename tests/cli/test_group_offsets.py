"""`headrace streams-groups --reset-offsets` and `--delete-offsets`: positions, files, refusals, what goes together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import pytest

from headrace.cli.group_offsets import duration_ms, moment_ms, plan_lines, read_plan
from headrace.cli.streams_group_changes import is_inferred
from headrace.client.admin import Admin
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.command_lines import Command

    from headrace.broker.embedded import EmbeddedBroker

RESET = ("streams-groups", "--reset-offsets")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-14T22:13:20.000", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20.250Z", 1_700_000_000_250),
        ("2023-11-14T23:13:20.250+01:00", 1_700_000_000_250),
    ],
)
def test_moments_are_utc_unless_they_say_otherwise(text: str, expected: int) -> None:
    assert moment_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT0S", 0),
        ("PT1.5S", 1_500),
        ("P1DT2H3M4S", 93_784_000),
        ("pt10m", 600_000),
        ("P2D", 172_800_000),
        ("PT-6H3M", -21_420_000),
        ("-PT6H", -21_600_000),
    ],
)
def test_durations_are_those_of_iso_8601(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


def test_plans_are_written_and_read(tmp_path: Path) -> None:
    plan = {"group, one": {("a" * 25, 1): 7, ("a" * 25, 0): 3}, "g": {("in", 0): 1}}
    lines = plan_lines(plan, with_group=True)
    assert lines == [f'"group, one","{"a" * 25}",0,3', f'"group, one","{"a" * 25}",1,7', "g,in,0,1"]
    path = tmp_path / "plan.csv"
    path.write_text("\n".join(lines) + "\n\n")
    assert read_plan(path, []) == plan
    path.write_text("in,0,1\n")
    assert read_plan(path, ["g"]) == {"g": {("in", 0): 1}}
    for wrong in ("in,0,1\n", "g,in,x,1\n", "g,in\n"):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=r"line 1 of .* is no position"):
            read_plan(path, [])


def test_internal_topics_of_a_group() -> None:
    assert is_inferred("app-counts-changelog", "app")
    assert is_inferred("app-by-key-repartition", "app")
    assert is_inferred("app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic", "app")
    assert not any(is_inferred(name, "app") for name in ("other-changelog", "app-results", "app2-x-changelog"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--list", "--describe"],
        ["--list", "--group", "g"],
        ["--list", "--members"],
        ["--list", "--state", "Stabel"],
        ["--describe"],
        ["--describe", "--group", "g", "--all-groups"],
        ["--describe", "--group", "g", "--members", "--state"],
        ["--describe", "--group", "g", "--state", "Stable"],
        ["--describe", "--group", "g", "--to-latest"],
        ["--delete", "--group", "g", "--input-topic", "in"],
        ["--delete", "--group", "g", "--execute"],
        ["--delete-offsets", "--group", "g"],
        ["--delete-offsets", "--group", "g", "--group", "h", "--all-input-topics"],
        ["--reset-offsets", "--group", "g", "--all-input-topics", "--to-latest"],
        ["--reset-offsets", "--group", "g", "--all-input-topics", "--to-latest", "--dry-run", "--execute"],
        ["--reset-offsets", "--group", "g", "--all-input-topics", "--dry-run"],
        ["--reset-offsets", "--group", "g", "--all-input-topics", "--to-latest", "--to-earliest", "--dry-run"],
        ["--reset-offsets", "--group", "g", "--to-latest", "--dry-run"],
        ["--reset-offsets", "--all-input-topics", "--to-latest", "--dry-run"],
        ["--reset-offsets", "--group", "g", "--all-input-topics", "--to-latest", "--dry-run", "--verbose"],
        ["--reset-offsets", "--group", "g", "--from-file", "/nowhere.csv", "--dry-run"],
    ],
    ids=" ".join,
)
def test_incompatible_options_are_wrong_usage(headrace: Command, broker: EmbeddedBroker, arguments: list[str]) -> None:
    told = headrace("streams-groups", *arguments, "--bootstrap-server", broker.bootstrap_servers)
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("error[wrong-usage]: ")


def test_positions_of_a_group_that_is_not_there_come_from_a_file(
    headrace: Command, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The way back after a group was deleted, and the way into a new one."""
    at = ("--bootstrap-server", broker.bootstrap_servers)
    broker.produce("flights", [b"x"] * 40)
    plan = tmp_path / "plan.csv"
    plan.write_text("flights,0,3\nflights,1,999\n")
    given = ("--group", "app", "--from-file", str(plan))
    (document,) = json.loads(headrace(*RESET, *given, "--dry-run", "--json", *at).out)
    assert document == {
        "group": "app",
        "executed": False,
        "error": None,
        "offsets": [
            {"topic": "flights", "partition": 0, "before": None, "after": 3},
            {"topic": "flights", "partition": 1, "before": None, "after": 10},
        ],
    }
    done = headrace(*RESET, *given, "--execute", *at)
    assert (done.code, "note   flights-1 has offsets 0 to 10: 10 is taken instead of 999" in done.err) == (0, True)
    with Admin(broker.bootstrap_servers) as admin:
        assert admin.committed_offsets("app") == {("flights", 0): 3, ("flights", 1): 10}
    assert headrace(*RESET, *given, "--dry-run", *at).code == 0, "an empty classic group"
    plan.write_text("other,flights,0,3\n")
    refused = headrace(*RESET, *given, "--dry-run", *at)
    assert "\nError: No reset plan for group app found\n" in refused.out
    assert (refused.code, "error[no-offset]: " in refused.err) == (1, True)
    for rows, code in (("flights,9,1\n", "topic-missing"), ("nowhere,0,1\n", "topic-missing")):
        plan.write_text(rows)
        refused = headrace(*RESET, *given, "--execute", *at)
        assert (refused.code, f"error[{code}]: " in refused.err) == (1, True)


def test_a_reset_that_needs_a_topology_needs_the_group(headrace: Command, broker: EmbeddedBroker) -> None:
    told = headrace(
        *RESET, "--group", "app", "--all-input-topics", "--to-latest", "--dry-run",
        "--bootstrap-server", broker.bootstrap_servers,
    )  # fmt: skip
    assert (told.code, told.err.startswith("error[group-missing]: ")) == (1, True)


def test_settings_of_the_connection_come_from_a_file(headrace: Command, broker: EmbeddedBroker, tmp_path: Path) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    settings = tmp_path / "admin.properties"
    settings.write_text("client.id=operator\nrequest.timeout.ms=5000\n")
    assert headrace("streams-groups", "--list", "--timeout", "9000", "--command-config", str(settings), *at).code == 0
    settings.write_text("request.timeout.sm=5000\n")
    refused = headrace("groups", "--list", "--command-config", str(settings), *at)
    assert (refused.code, "did you mean request.timeout.ms?" in refused.err) == (1, True)


@pytest.mark.parametrize("wrong", ["2023-11-14", "yesterday", "2023-13-14T00:00:00.000"])
def test_a_moment_that_is_none_is_wrong_usage(wrong: str) -> None:
    with pytest.raises(click.UsageError, match="--to-datetime takes"):
        moment_ms(wrong)
    with pytest.raises(click.UsageError, match="--by-duration takes"):
        duration_ms(wrong)
