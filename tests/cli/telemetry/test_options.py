"""Options of `headrace telemetry`: as an environment variable, and the file of teams."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.telemetry.options import TelemetryOptions, read_teams


def test_options_survive_the_environment() -> None:
    options = TelemetryOptions(window="1 hour", storm=3, teams={"orders": "shop", "ü": 'a"b'})
    assert TelemetryOptions.from_json(options.to_json()) == options


def test_a_recorders_topic_adds_a_topic_of_results() -> None:
    assert TelemetryOptions().topics() == ("telemetry-groups", "telemetry-alerts")
    options = TelemetryOptions(history_topic="h", rebalances_topic="r")
    assert options.topics() == ("telemetry-groups", "telemetry-alerts", "r")
    assert TelemetryOptions.from_json(options.to_json()) == options


def test_teams_of_groups(tmp_path: Path) -> None:
    file = tmp_path / "teams.csv"
    file.write_text('team,group,since\nshop,orders,2024\n"a, b",stock,2025\n')
    assert read_teams(file) == {"orders": "shop", "stock": "a, b"}
    file.write_text("team,service\nshop,orders\n")
    with pytest.raises(ValueError, match="needs the columns group and team"):
        read_teams(file)
