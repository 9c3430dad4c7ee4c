"""A course of a large group, small enough for every run, and its checkers: each of them can fail."""

from __future__ import annotations

import json

import pytest

from headrace.client.membership.streams_membership import StreamsMembership
from headrace.simulator import capacity_world
from headrace.simulator.capacity_world import CapacityWorld, StepFigures, WorldSize, run_course
from headrace.simulator.checkers import RuleBroken
from headrace.simulator.restore_links import RestoreLinks

SMALL = {"instances": 12, "tasks": 120, "brokers": 3, "restart_share": 0.25}


def course(**size: object) -> dict[str, StepFigures]:
    return {figures.step: figures for figures in run_course(WorldSize(**{**SMALL, **size}))}  # type: ignore[arg-type]


def test_static_instances_move_only_what_a_lost_rack_demands() -> None:
    steps = course(instances=32, tasks=320)
    assert steps["rolling restart"].tasks_moved == steps["broker failover"].tasks_moved == 0
    assert steps["broker failover"].restored_bytes == 0
    assert steps["lost rack"].tasks_moved == 110
    # A task whose standby survived runs again when the session has ended; one without a copy restores all of it.
    assert 45 < steps["lost rack"].median_pause_s < 50 < steps["lost rack"].longest_pause_s


def test_dynamic_instances_pause_less_and_restore_more() -> None:
    static, dynamic = course()["rolling restart"], course(static=False)["rolling restart"]
    assert dynamic.median_pause_s < 1 < 20 < static.median_pause_s
    assert dynamic.tasks_moved > 0
    assert dynamic.restored_bytes > 5 * static.restored_bytes


def test_the_same_seed_gives_the_same_figures() -> None:
    assert list(run_course(WorldSize(**SMALL), seed=3)) == list(run_course(WorldSize(**SMALL), seed=3))  # type: ignore[arg-type]


def test_a_task_that_runs_twice_is_reported() -> None:
    world = CapacityWorld(WorldSize(**SMALL))  # type: ignore[arg-type]
    world.task_runs(("count", 1), "i00001")
    with pytest.raises(RuleBroken, match="runs at i00001 and at i00002"):
        world.task_runs(("count", 1), "i00002")


def test_a_restore_above_the_bandwidth_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    world = CapacityWorld(WorldSize(**SMALL))  # type: ignore[arg-type]
    monkeypatch.setattr(world.links, "_instance_bytes", world.links._instance_bytes * 3)
    with pytest.raises(RuleBroken, match="received"):
        world.measure("start", world.start_all, most_moves=0)


def test_a_step_that_moves_too_much_is_reported() -> None:
    world = CapacityWorld(WorldSize(**SMALL))  # type: ignore[arg-type]
    world.measure("start", world.start_all, most_moves=0)
    with pytest.raises(RuleBroken, match="moved 40 tasks, 39 would do"):
        world.measure("lost rack", world.lose_rack, most_moves=39)


def test_a_task_that_never_runs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_world, "PATIENCE_MS", 60_000)
    monkeypatch.setattr(StreamsMembership, "acknowledge", lambda *_, **__: None)
    monkeypatch.setattr(RestoreLinks, "start", lambda *_: None)
    world = CapacityWorld(WorldSize(**SMALL))  # type: ignore[arg-type]
    with pytest.raises(RuleBroken, match="not settled"):
        world.measure("start", world.start_all, most_moves=0)


def test_the_program_prints_a_line_for_each_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["capacity_world", "--instances", "6", "--tasks", "30", "--brokers", "2"])
    assert capacity_world.main() == 0
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == [
        "start of all instances",
        "rolling restart",
        "broker failover",
        "lost rack",
    ]
