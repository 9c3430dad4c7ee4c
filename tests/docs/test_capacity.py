"""The capacity page: its examples are what the command prints, its unit costs those of the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.commands.capacity import command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "capacity.md").read_text()
EXAMPLES = re.findall(r"^\$ headrace capacity(.*)\n((?:.*\n)+?)```", PAGE, re.MULTILINE)


def test_there_are_two_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(("arguments", "shown"), EXAMPLES)
def test_an_example_is_what_the_command_prints(arguments: str, shown: str) -> None:
    assert CliRunner().invoke(command, arguments.split()).output == shown


def test_the_unit_costs_are_those_of_the_package() -> None:
    costs = json.loads((ROOT / "src" / "headrace" / "simulator" / "unit_costs.json").read_text())
    application, group = costs["application"], costs["group"]
    own, broker = application["cycles"]["application"], application["cycles"]["broker"]
    for row in (
        f"| task in a micro-batch | {own['task_ms']} ms | {broker['task_ms']} ms |",
        f"| micro-batch, by itself | {own['cycle_ms']} ms | {broker['cycle_ms']} ms |",
        f"| transaction | {own['transaction_ms']} ms | {broker['transaction_ms']} ms |",
        f"| heartbeat, steady |  | {group['heartbeat_us']} µs |",
        f"| assignment, 1,000 members, 10,000 tasks |  | {group['assignment_ms']} ms |",
        f"| description of that group, nothing changed |  | {group['description_ms']} ms |",
    ):
        assert row in PAGE
    names = {"copy": "copy", "count": "count of 10,000 keys", "count, a million keys": "count of 1,000,000 keys"}
    for operator, name in names.items():
        cost = application["operators"][operator]
        assert f"| record, {name} | {cost['application_us']} µs | {cost['broker_us']} µs |" in PAGE
