"""`headrace capacity`: a table, JSON, unit costs of one's own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command_lines import Command

import headrace.simulator


def test_the_table_and_the_json_have_the_same_figures(headrace: Command) -> None:
    found = json.loads(headrace("capacity", "--instances", "20", "--tasks", "400", "--json").out)
    assert found["transactions"]["transactions per second"] == {"perSlot": 80.0, "perTask": 400.0}
    assert found["kafka"]["partitions"] == 1_200
    assert {"resource", "load", "fix"} == found["limits"][0].keys()
    text = headrace("capacity", "--instances", "20", "--tasks", "400").out
    assert "transactions per second and coordinator" in text
    assert "1,200" in text


def test_at_least_once_shows_no_transactions(headrace: Command) -> None:
    assert "per slot" not in headrace("capacity", "--at-least-once").out


def test_unit_costs_of_one_s_own(headrace: Command, tmp_path: Path) -> None:
    source = Path(headrace_file()).with_name("unit_costs.json")
    costs = json.loads(source.read_text())
    costs["group"]["heartbeat_us"] *= 10
    (tmp_path / "mine.json").write_text(json.dumps(costs))
    ours, mine = (
        {each["resource"]: each["load"] for each in json.loads(headrace("capacity", "--json", *given).out)["limits"]}
        for given in ((), ("--unit-costs", str(tmp_path / "mine.json")))
    )
    (name,) = (name for name in ours if "heartbeats" in name)
    assert mine[name] > 9 * ours[name]


def test_a_file_that_has_no_unit_costs_is_refused(headrace: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    outcome = headrace("capacity", "--unit-costs", str(tmp_path / "bad.json"))
    assert outcome.code == 2
    assert "is not a file of unit costs" in outcome.err
    assert "benchmarks/unit_costs.py" in outcome.err


def headrace_file() -> str:
    assert headrace.simulator.__file__ is not None
    return headrace.simulator.__file__
